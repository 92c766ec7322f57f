"""What the faults' tests rest on can fail: each way to lose, repeat or make up a plan or a token is noticed."""

from __future__ import annotations

import pytest

from service.load.submitter import LOST, Received
from tests.faults.bed import assert_conserved, assert_whole

RUN = "run-1"


@pytest.fixture
def stored(store, tmp_path, make):
    """Six plans of two requests, each of which got a token by every plan; and what a client would have received."""
    make.write_frames(tmp_path / "journal", make.story(6))
    make.drain(store, tmp_path / "journal")
    return store


def received(tokens: int = 6, ended: str | None = "length") -> dict[str, Received]:
    return {f"request-{number}": Received(RUN, tokens, ended) for number in range(2)}


def change(store, *statements: str) -> str:
    with store.connect() as connection:
        raw = connection.connection.driver_connection
        raw.execute("PRAGMA query_only=OFF")
        for statement in statements:
            raw.execute(statement)
    return str(store.url)


GAP = "INSERT INTO trace_gaps (run_id, from_fence, to_fence, noticed_at, reason) VALUES ('run-1', {}, {}, '2026', 'x')"
WITHOUT_3 = ("DELETE FROM plans WHERE fence = 3", "DELETE FROM plan_lanes WHERE fence = 3")


def test_a_whole_trace_passes(stored):
    assert_whole(str(stored.url), received())
    assert_whole(str(stored.url), received(5, LOST))  # more was committed than the client got


@pytest.mark.parametrize("statements", [WITHOUT_3, (*WITHOUT_3, GAP.format(4, 5))])
def test_a_missing_plan_that_no_gap_names_is_noticed(stored, statements):
    with pytest.raises(AssertionError, match=r"\[3\] are neither stored nor in a gap"):
        assert_conserved(change(stored, *statements), received())


def test_a_missing_plan_within_a_gap_may_have_held_one_token_of_each_request(stored):
    url = change(stored, *WITHOUT_3, GAP.format(2, 3))
    assert assert_conserved(url, received())[RUN].fences == {3}
    with pytest.raises(AssertionError):
        assert_whole(url, received())
    with pytest.raises(AssertionError, match="committed; missing"):
        assert_conserved(url, received(7))


@pytest.mark.parametrize("ended", ["length", "abort", LOST])
def test_a_received_token_that_no_lane_counts_is_noticed(stored, ended):
    with pytest.raises(AssertionError, match="5 committed"):
        assert_conserved(
            change(stored, "UPDATE plan_lanes SET committed_tokens = 0 WHERE fence = 2"), received(6, ended)
        )


def test_a_token_that_is_counted_twice_is_noticed(stored):
    with pytest.raises(AssertionError, match="twice"):
        assert_conserved(change(stored, "UPDATE plan_lanes SET committed_tokens = 2 WHERE fence = 2"), received())


def test_a_plan_that_lost_its_lanes_is_noticed(stored):
    with pytest.raises(AssertionError):
        assert_conserved(change(stored, "DELETE FROM plan_lanes WHERE fence = 2 AND lane = 1"), received(5, LOST))


def test_a_request_of_which_sql_knows_nothing_is_noticed(stored):
    with pytest.raises(AssertionError, match="0 committed"):
        assert_conserved(str(stored.url), {"request-9": Received(RUN, 1, "length")})
