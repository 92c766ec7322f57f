"""What can never be served is refused at admission, and says why; what can be served later waits."""

from __future__ import annotations

import pytest

from scheduler import Catalog, GraphKind, GraphShape, PolicyConfig, RequestScheduler, RequestSpec
from scheduler.errors import SlotsFull, SnapshotPending, UnknownHandle, Unservable
from scheduler.records import ImageSpan
from tests.scheduler.conftest import decode, prefill

STATE = tuple(
    GraphShape(kind, 1)
    for kind in (GraphKind.INIT, GraphKind.RESTORE, GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT, GraphKind.VISION)
)
SCORED = GraphShape(GraphKind.SCORED_PREFILL, 1, prefill_capacity=64)
MIXED = GraphShape(GraphKind.MIXED, 2, prefill_capacity=128)


def scheduler(*shapes, slots=2, feature_rows=0):
    return RequestScheduler(Catalog(shapes), PolicyConfig(), slots, image_feature_rows=feature_rows)


def spec(name="a", prompt=100, output=8, **more):
    return RequestSpec(name, prompt, output, prompt + output, **more)


IMAGES = (ImageSpan(0, 20, 3), ImageSpan(40, 60, 3))


@pytest.mark.parametrize(
    ("shapes", "request_spec", "says"),
    [
        ((decode(1),), spec(), "no prefill graph"),
        ((prefill(64), decode(1)), spec(scored=True), "no scored prefill graph"),
        ((SCORED, MIXED, decode(1)), spec(scored=True, atomic_spans=((0, 65),)), "65 tokens must be prefilled at once"),
        ((prefill(64),), spec(), "no generation graph"),
        ((prefill(64), decode(1)), spec(atomic_spans=((10, 90),)), "80 tokens must be prefilled at once"),
        ((prefill(64), decode(1)), spec(atomic_spans=((0, 40),), images=(ImageSpan(30, 70),)), "70 tokens"),
        ((prefill(64), decode(1)), spec(images=IMAGES), "no vision graph"),
        ((prefill(64), decode(1), *STATE), spec(images=(ImageSpan(0, 9, 5),)), "5 feature rows"),
        ((prefill(64), decode(1), STATE[-1]), spec(images=IMAGES), "snapshot and restore"),
        ((prefill(64), decode(1), *STATE), spec(images=IMAGES, atomic_spans=((30, 50),)), "crosses into the image"),
    ],
)
def test_what_no_graph_can_ever_serve_is_refused(shapes, request_spec, says):
    s = scheduler(*shapes, feature_rows=4)
    with pytest.raises(Unservable, match=says):
        s.admit(request_spec)
    assert s.resident_count == 0


def test_a_mixed_graph_is_enough_to_serve_an_unscored_prompt():
    s = scheduler(MIXED, decode(1))
    s.admit(spec(atomic_spans=((0, 100),)))
    assert s.plan().lanes[0].prompt_tokens == 100


def test_one_token_needs_no_generation_graph():
    assert scheduler(prefill(64)).admit(spec(output=1)).slot == 0


def test_cached_images_need_no_vision_graph():
    scheduler(prefill(64), decode(1)).admit(spec(images=IMAGES, cached_tokens=60))


def test_slots_are_looked_at_last():
    s = scheduler(prefill(64), decode(1), slots=1)
    s.admit(spec("a"))
    with pytest.raises(Unservable):
        s.admit(spec("b", scored=True))
    with pytest.raises(SlotsFull):
        s.admit(spec("b"))


def test_a_continuation_waits_for_the_published_snapshot(harness):
    h = harness(shapes=(prefill(64), decode(1), *STATE), measured=False)
    h.admit("a", output=1)
    while h.scheduler.resident_count and h.log[-1:] != [None]:
        plan = h.step()
        if plan.shape.kind is GraphKind.PREFILL:
            with pytest.raises(SnapshotPending):
                h.scheduler.admit(spec("b", continues="a"))
    with pytest.raises(UnknownHandle):
        h.scheduler.handle_of("a")
    with pytest.raises(SnapshotPending):
        h.scheduler.admit(spec("b", continues="a"))
    h.scheduler.published_snapshot("a")
    assert h.scheduler.admit(spec("b", continues="a", cached_tokens=64)).slot == 0
