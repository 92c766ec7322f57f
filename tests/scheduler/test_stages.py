"""A request's way through its stages: restoration, images, windows, captures, retirement, preemption."""

from __future__ import annotations

import pytest

from scheduler import Catalog, FinishReason, GraphKind, GraphShape, PolicyConfig, RequestScheduler, RequestSpec
from scheduler.errors import InvalidRequest, UnknownHandle
from scheduler.records import ImageSpan
from tests.scheduler.conftest import decode, prefill

KINDS = (GraphKind.INIT, GraphKind.RESTORE, GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT, GraphKind.VISION)
STATE = tuple(GraphShape(kind, 1) for kind in KINDS)
SHAPES = (*STATE, prefill(64), prefill(128), decode(1), decode(2))
MS = 1_000_000


def duration(shape):
    return (1 + shape.prefill_capacity // 64 + 3 * (shape.kind is GraphKind.TERMINAL_SNAPSHOT)) * MS


@pytest.fixture
def start(harness):
    def start(*, shapes=SHAPES, rows=4, pages=1 << 30, measured=True, **settings):
        h = harness(shapes=shapes, measured=measured, durations=duration, **settings)
        h.scheduler.set_resources(pages, rows)
        return h

    return start


def spec(name="a", prompt=100, output=4, **more):
    return RequestSpec(name, prompt, output, prompt + output, **more)


def kinds(h, **step):
    """The kinds of graphs that run until nothing is left."""
    seen = []
    while (plan := h.step(**step)) is not None:
        seen.append(plan.shape.kind.value)
    return seen


def test_a_cached_prefix_is_restored_and_a_new_prompt_initialized(start):
    h = start()
    h.scheduler.admit(spec("new", output=1))
    assert kinds(h)[:2] == ["init", "prefill"]
    h.scheduler.admit(spec("cached", output=1, cached_tokens=36))
    assert kinds(h)[:2] == ["restore", "prefill"]
    assert h.log[-1].lanes[0].prompt_tokens in (0, 64)


def test_without_state_graphs_a_request_begins_with_its_prompt(start):
    h = start(shapes=(prefill(128), decode(1)))
    h.scheduler.admit(spec(output=2, cached_tokens=36))
    assert kinds(h) == ["prefill", "decode"]


def test_a_request_that_is_being_restored_waits_for_it(start):
    h = start()
    handle = h.scheduler.admit(spec(cached_tokens=50, restoring=True))
    assert h.scheduler.plan() is None
    h.scheduler.restored(handle)
    assert h.scheduler.plan().shape.kind is GraphKind.PREFILL
    with pytest.raises(InvalidRequest, match="does not wait"):
        h.scheduler.restored(handle)


IMAGES = (ImageSpan(0, 10, 2), ImageSpan(10, 20, 2), ImageSpan(70, 80, 2))


def test_every_image_of_a_window_is_served_before_its_prompt_part(start):
    h = start()
    h.scheduler.admit(spec(output=1, images=IMAGES))
    assert kinds(h)[:5] == ["init", "vision", "vision", "vision", "prefill"]


def windowed(start):
    """A harness whose device stores four feature rows at a time."""
    h = start()
    h.scheduler = RequestScheduler(Catalog(SHAPES), PolicyConfig(), image_feature_rows=4)
    h.scheduler.advance_to(h.now_ns)
    for shape in SHAPES:
        h.scheduler.catalog.observe(shape, duration(shape), h.now_ns)
    return h


def test_images_of_several_windows_take_a_snapshot_between(start):
    h = windowed(start)
    h.scheduler.set_resources(1 << 30, 1)
    before = h.scheduler.admit(spec(output=1, images=IMAGES))
    seen = kinds(h)
    assert seen[:9] == ["init", "vision", "vision", "prefill", "prefill", "snapshot", "restore", "vision", "prefill"]
    assert [p.lanes[0].prompt_tokens for p in h.log if p.shape.kind is GraphKind.PREFILL] in ([64, 6, 30], [6, 64, 30])
    after = next(p.lanes[0].handle for p in h.log if p.shape.kind is GraphKind.RESTORE)
    assert (before.slot, before.generation + 1) == (after.slot, after.generation)
    assert not h.scheduler.is_resident(before)


def test_a_window_needs_a_snapshot_row(start):
    h = windowed(start)
    h.scheduler.admit(spec(output=1, images=IMAGES))
    assert kinds(h)[-1] == "prefill"
    h.scheduler.set_resources(1 << 30, 1)
    assert h.step().shape.kind is GraphKind.SNAPSHOT


def test_the_last_message_is_captured_on_the_way(start):
    h = start(slots=4)
    h.scheduler.admit(spec(prompt=128, output=2, message_boundaries=(40, 90)))
    seen = kinds(h)
    at = seen.index("snapshot")
    assert sum(p.lanes[0].prompt_tokens for p in h.log[:at] if p.shape.kind is GraphKind.PREFILL) == 90
    assert seen.count("snapshot") == 1, "a fraction of 0.05 pays for no extra here"


def test_a_prompt_without_messages_is_captured_at_its_end_before_decoding(start):
    h = start()
    h.scheduler.admit(spec(prompt=128, output=3))
    assert kinds(h)[:5] == ["init", "prefill", "snapshot", "decode", "decode"]
    h.scheduler.admit(spec("short", prompt=128, output=1))
    assert "snapshot" not in kinds(h), "a request that ends with its prompt is not captured there"


def test_without_a_snapshot_row_nothing_is_cut(start):
    h = start(rows=0)
    h.scheduler.admit(spec(prompt=128, output=2, message_boundaries=(40, 90)))
    assert kinds(h)[:3] == ["init", "prefill", "decode"]


def test_a_row_that_is_gone_when_the_cut_is_reached_skips_the_copy(start):
    h = start()
    h.scheduler.admit(spec(prompt=128, output=2, message_boundaries=(90,)))
    h.scheduler.set_resources(1 << 30, 0)
    assert "snapshot" not in kinds(h)
    assert sum(p.lanes[0].prompt_tokens for p in h.log if p.shape.kind is GraphKind.PREFILL) == 128
    assert 38 in [p.lanes[0].prompt_tokens for p in h.log], "the split had been decided"


def test_an_answer_is_kept_once_its_decoding_has_earned_the_copy(start):
    h = start(shapes=(STATE[3], prefill(64), decode(1)))
    for name, output in (("short", 3), ("long", 120)):
        h.scheduler.admit(spec(name, prompt=64, output=output))
        seen = kinds(h)
        # The capture takes 4 ms; each graph that emits earns 0.05 of its 1 or 2 ms.
        assert ("terminal_snapshot" in seen) == (output == 120)
        assert h.scheduler.resident_count == 0


def test_an_unmeasured_terminal_snapshot_is_tried(start):
    h = start(shapes=(STATE[3], prefill(64), decode(1)), measured=False)
    h.scheduler.admit(spec(prompt=64, output=1))
    assert kinds(h) == ["prefill", "terminal_snapshot"]


def test_a_stopped_answer_frees_its_slot_when_there_is_nothing_to_keep(start):
    h = start(shapes=(prefill(64), decode(1)))
    h.scheduler.admit(spec(prompt=64, output=50))
    h.step()
    h.step(finished={"a": FinishReason.STOP})
    assert h.scheduler.resident_count == 0
    assert h.tokens["a"][-1].finished is FinishReason.STOP


def test_an_aborted_answer_is_not_kept(start):
    h = start(shapes=(STATE[3], prefill(64), decode(1)), measured=False)
    h.scheduler.admit(spec(prompt=64, output=50))
    h.step(finished={"a": FinishReason.ABORT})
    assert h.scheduler.resident_count == 0


def test_a_preempted_request_retires_after_its_frame_and_publishes_what_that_brought(start):
    h = start(shapes=(STATE[3], prefill(64), decode(1)))
    handle = h.scheduler.admit(spec(prompt=64, output=50))
    h.step()
    plan = h.scheduler.plan()
    h.fence += 1
    h.scheduler.commit(plan, h.fence)
    h.scheduler.preempt(handle)
    assert h.scheduler.plan() is None
    assert len(h.complete(plan)) == 1
    assert h.step().shape.kind is GraphKind.TERMINAL_SNAPSHOT
    assert h.scheduler.resident_count == 0
    h.scheduler.admit(spec("next", continues="a"))  # it has not ended: no snapshot of its answer is awaited
    with pytest.raises(UnknownHandle):
        h.scheduler.preempt(handle)


def test_preemption_needs_its_graph_and_happens_once(start):
    h = start(shapes=(prefill(64), decode(1)))
    with pytest.raises(InvalidRequest, match="terminal snapshot"):
        h.scheduler.preempt(h.scheduler.admit(spec()))
    h = start()
    handle = h.scheduler.admit(spec())
    h.scheduler.preempt(handle)
    with pytest.raises(InvalidRequest, match="retires already"):
        h.scheduler.preempt(handle)


def test_who_came_last_is_preempted_when_only_pages_are_missing(start):
    h = start(shapes=(STATE[3], prefill(64), decode(1)), pages=8)
    h.scheduler.admit(spec("first", prompt=64, output=50))
    last = h.scheduler.admit(spec("last", prompt=64, output=50))
    assert h.scheduler.preemption_victim() is None
    h.scheduler.set_resources(1, 0)
    assert h.scheduler.plan() is None
    assert h.scheduler.preemption_victim() == last
    h.scheduler.preempt(last)
    assert h.step().shape.kind is GraphKind.TERMINAL_SNAPSHOT


def test_commits_count_the_pages_that_they_take(start):
    h = start(shapes=(prefill(64), decode(1)), pages=6)
    h.scheduler.admit(spec("a", prompt=40, output=40))
    h.scheduler.admit(spec("b", prompt=40, output=40))
    h.step()
    h.step()
    assert h.scheduler._state.resources.free_pages == 0, "41 tokens are 3 pages of 16"
    for _ in range(14):
        h.step()
    assert [t.index for t in h.tokens["a"]] == list(range(len(h.tokens["a"])))
    assert h.scheduler.plan() is None, "both have filled their pages"
