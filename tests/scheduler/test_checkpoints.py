"""Which endpoints are captured (S10), with costs that can be added in the head."""

from __future__ import annotations

import pytest

from scheduler.checkpoints import CaptureCosts, captures, choose_cuts, prefill_ms
from scheduler.prompts import Prompt, Window

MS = 1_000_000
MEASURED = ((64, 2 * MS), (128, 3 * MS), (256, 5 * MS))


def costs(fraction=0.5, snapshot_ms=1, measured=MEASURED):
    return CaptureCosts(measured, snapshot_ms * MS, fraction)


def test_prefill_takes_whole_largest_graphs_and_the_cheapest_that_holds_the_rest():
    assert [prefill_ms(MEASURED, n) for n in (0, 1, 64, 65, 256, 257, 512 + 129)] == [0, 2, 2, 3, 5, 7, 15]
    slow_small = ((64, 9 * MS), (256, 5 * MS))
    assert prefill_ms(slow_small, 10) == 5.0, "the cheapest, not the smallest"


def test_the_anchor_is_the_last_eligible_message_and_costs_nothing():
    free = costs(fraction=0.0)
    assert choose_cuts(Prompt(500), 0, (100, 300, 499), free) == (499, ())
    assert choose_cuts(Prompt(500), 0, (100, 300, 500), free) == (500, ()), "a message may end with the prompt"
    assert choose_cuts(Prompt(500), 0, (500,), free) == (500, ())
    assert choose_cuts(Prompt(500), 300, (100, 300), free) == (500, ()), "the cached prefix is captured already"


def test_boundaries_inside_a_block_or_at_a_window_are_not_eligible():
    prompt = Prompt(500, blocks=((90, 110), (300, 310)), windows=(Window(90, 1), Window(300, 1)))
    assert choose_cuts(prompt, 0, (50, 100, 300), costs(fraction=0.0)) == (50, ())


def test_extras_are_taken_from_the_end_while_they_fit_the_allowance():
    # 512 tokens cost 10 ms. An extra at 256 splits 0..448 (10 ms): 1 + 5 + 5 - 10 = 1 ms. Then 128 splits 0..256:
    # 1 + 3 + 3 - 5 = 2 ms. The prompt end costs its snapshot, 1 ms; where it is the anchor, nothing.
    boundaries = (128, 256, 448)
    chosen = {0.05: (), 0.1: (256,), 0.25: (256,), 0.3: (128, 256), 0.4: (128, 256, 512)}
    for fraction, extras in chosen.items():
        assert choose_cuts(Prompt(512), 0, boundaries, costs(fraction)) == (448, extras), fraction
    # Without the stop at 448 an extra at 256 splits 0..512: 1 + 5 + 5 - 10 = 1 ms.
    assert choose_cuts(Prompt(512), 0, (128, 256, 512), costs(0.1)) == (512, (256,))


def test_the_first_extra_that_does_not_fit_ends_the_search():
    expensive_split = (100, 448)  # 100 splits 0..448: 1 + 3 + (5 + 3) - 10 = 2 ms
    assert choose_cuts(Prompt(512), 0, expensive_split, costs(0.1)) == (448, ()), "the cheaper prompt end is not tried"


@pytest.mark.parametrize("unknown", [costs(snapshot_ms=0), costs(measured=())])
def test_unknown_costs_leave_only_the_anchor(unknown):
    assert choose_cuts(Prompt(512), 0, (128, 256), unknown) == (256, ())


def test_a_cut_is_captured_only_where_a_row_is_left_for_it():
    prompt = Prompt(512, anchor=256, extras=(128, 512))
    assert captures(prompt, 256, free_rows=1, guards=9, snapshot_fresh=False), "the anchor needs a row and no more"
    assert not captures(prompt, 256, free_rows=0, guards=0, snapshot_fresh=True)
    assert captures(prompt, 128, free_rows=3, guards=2, snapshot_fresh=True)
    assert not captures(prompt, 128, free_rows=2, guards=2, snapshot_fresh=True)
    assert not captures(prompt, 128, free_rows=9, guards=0, snapshot_fresh=False)
    assert not captures(prompt, 64, free_rows=9, guards=0, snapshot_fresh=True)
