"""The request that a starting engine takes through a scheduler of its own."""

import pytest

from gpu.capacity import CatalogLimits, build_catalog
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import Allocation
from service.engine.rehearsal import rehearse

CALLS = ("admit", "plan", "commit", "published_outputs")


@pytest.fixture
def called(monkeypatch):
    """How often each of the scheduler's methods was called."""
    counts = dict.fromkeys((*CALLS, "complete", "complete_packed_round"), 0)

    def count(name):
        method = getattr(RequestScheduler, name)

        def counted(self, *arguments, **named):
            counts[name] += 1
            return method(self, *arguments, **named)

        monkeypatch.setattr(RequestScheduler, name, counted)

    for name in counts:
        count(name)
    return counts


@pytest.mark.parametrize("state_batches", [(), (1, 2)])
@pytest.mark.parametrize(
    ("draft_tokens", "allocation", "mixed"),
    [
        (0, Allocation.NONE, False),
        (3, Allocation.NONE, True),
        (3, Allocation.HOST, False),
        (3, Allocation.DEVICE, True),
        (9, Allocation.NONE, True),  # wider mixed rounds than a scheduler takes unless it is told to
    ],
)
def test_the_request_is_served_to_its_end_by_every_call_of_the_loop(
    called, state_batches, draft_tokens, allocation, mixed
):
    shapes = build_catalog(
        CatalogLimits(
            batches=(1, 2),
            prefill_capacities=(64, 128),
            scored_capacities=(64,),
            draft_tokens=draft_tokens,
            speculative_token_capacity=24,
            allocation=allocation,
            mixed_prefill=mixed,
            mixed_declared=True,
            state_batches=state_batches,
        )
    )
    plans = rehearse(shapes)
    assert plans == called["commit"] == called["complete"] + called["complete_packed_round"]
    assert called["plan"] == plans + 1  # the last found nothing left to do
    # With its fourth token the request has ended, and stays where a terminal snapshot can be taken.
    assert called["published_outputs"] == (4 if state_batches else 3)
    assert (called["complete_packed_round"] > 0) == (allocation is Allocation.DEVICE)
