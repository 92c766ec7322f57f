"""A scheduler that starts with what a real one had learned: estimates, acceptance and ledgers, but no requests."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.capacity import DEFAULT_COMPLETION_TOKEN_CAPACITY, check_bounds
from scheduler.catalog import Catalog
from scheduler.errors import InvalidCatalog
from scheduler.policy import PolicyConfig
from scheduler.records import CompletionRecord, ExecutionTiming
from scheduler.replay import decode, shapes_in
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import GraphShape


class WarmStart(NamedTuple):
    """`last_fence`: plans of the scheduler must have later ones. `now_ns`: its clock."""

    scheduler: RequestScheduler
    last_fence: int
    now_ns: int


def warm_scheduler(checkpoint: bytes, policy: PolicyConfig) -> WarmStart:
    """The scheduler of a checkpoint under another policy, emptied. Raises InvalidCheckpoint.

    Frames in flight end as failed, which teaches nothing; then every request is let go.
    """
    catalog = Catalog(shapes_in(checkpoint))
    saved = decode(checkpoint, catalog)
    scheduler = RequestScheduler.restore(checkpoint, catalog)
    for frame in saved.queue:
        records = [CompletionRecord(lane.handle, error="left behind") for lane in frame.plan.lanes]
        scheduler.complete(frame.fence, records, ExecutionTiming((), 0))
    for tenant in saved.tenants:
        if scheduler.is_resident(tenant.handle):
            scheduler.cancel(tenant.handle)
    scheduler.configure_policy(policy)
    return WarmStart(scheduler, saved.last_fence, saved.now_ns)


def cold_scheduler(shapes: tuple[GraphShape, ...], policy: PolicyConfig, request_slots: int) -> WarmStart:
    """A scheduler over these shapes that has learned nothing. Raises InvalidCatalog.

    Shapes that no scheduler can load are left out: whoever made them up did not run them.
    """
    widest = max(DEFAULT_COMPLETION_TOKEN_CAPACITY, *(shape.target_width for shape in shapes))
    catalog = Catalog(shape for shape in shapes if _loads(shape, widest))
    return WarmStart(RequestScheduler(catalog, policy, request_slots, completion_token_capacity=widest), 0, 0)


def _loads(shape: GraphShape, widest: int) -> bool:
    try:
        check_bounds(shape, widest)
    except InvalidCatalog:
        return False
    return True


def known_durations(checkpoint: bytes) -> dict[GraphShape, int]:
    """What the scheduler had measured of its shapes, ns. Raises InvalidCheckpoint."""
    catalog = Catalog(shapes_in(checkpoint))
    catalog.load(decode(checkpoint, catalog).estimates)
    found = {shape: catalog.duration_ns(position) for position, shape in enumerate(catalog.shapes)}
    return {shape: duration_ns for shape, duration_ns in found.items() if duration_ns}
