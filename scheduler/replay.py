"""checkpoint() and restore(): the whole state as bytes, so that the same commands give the same plans again.

Arrays are stored as they are in memory, everything else as msgpack. The bytes belong to one version of the layout and
one catalog; both are checked, a checksum guards against damage, and everything that kernels index with against forgery.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, TypeVar

import msgspec
import numpy as np

from scheduler import layout
from scheduler.catalog import DEFAULT_TTL_NS, Catalog, CostEstimate
from scheduler.errors import InvalidCatalog, InvalidCheckpoint
from scheduler.frames import Frame, LaneColumns
from scheduler.ledgers import Episode, Ledgers
from scheduler.load_settings import LoadSettings
from scheduler.plans import PLAN_FIELDS, ScheduledPlan
from scheduler.saved import Head, Measured, Saved, SavedFrame, SavedLedgers, SavedPlan, SavedTenant, Shapes
from scheduler.saved_checks import check
from scheduler.shapes import GraphShape
from scheduler.state import SchedulerState, Tenant

VERSION = 2
_MAGIC = b"helios-scheduler"
_HEADER = len(_MAGIC) + 4
_T = TypeVar("_T")


def _arrays(state: SchedulerState) -> dict[str, np.ndarray[Any, Any]]:
    """What scheduler.saved.array_forms describes."""
    a = state.acceptance
    return {
        "slots": state.slots,
        "frames": state.frames,
        "lanes": state.lanes,
        "participants": state.participants,
        "works": state.works,
        "acceptance": a.estimates,
        "prior": a.prior,
        "pool": a.pool,
        "survival": a.survival,
        "yields": a.yields,
    }


def layout_digest() -> str:
    """A digest of the record layouts that a checkpoint holds."""
    described = [dtype.descr for dtype in (layout.SLOT, layout.FRAME, layout.LANE, layout.PARTICIPANT)]
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


def encode(state: SchedulerState, settings: LoadSettings) -> bytes:
    """The state as bytes; publications must have been applied."""
    ledgers, episode = state.ledgers, state.ledgers.episode
    saved = Saved(
        VERSION,
        layout_digest(),
        state.catalog.shapes,
        settings,
        state.policy.as_dict(),
        state.catalog.export(),
        {name: array.tobytes() for name, array in _arrays(state).items()},
        [SavedTenant(t.handle, t.spec, t.prompt, t.finished) for t in state.tenants if t is not None],
        [_saved_frame(frame) for frame in state.queue],
        state.completed,
        state.served,
        list(state.unpublished_snapshots),
        state.resources,
        SavedLedgers(
            (ledgers.timing.units, ledgers.timing.ordinary_ns, ledgers.timing.spent_ns),
            (ledgers.acceptance.units, ledgers.acceptance.ordinary_ns, ledgers.acceptance.spent_ns),
            ledgers.discovery_ns,
            None if episode is None else (episode.reason, episode.fence),
        ),
        state.now_ns,
        state.last_fence,
        state.tick,
        state.admissions,
    )
    payload = msgspec.msgpack.encode(saved)
    return _MAGIC + zlib.crc32(payload).to_bytes(4, "big") + payload


def _saved_frame(frame: Frame) -> SavedFrame:
    plan = frame.plan
    fields = {name: getattr(plan, name) for name in PLAN_FIELDS}
    saved = SavedPlan(**fields, cohort=plan.cohort.tobytes(), graph=plan.graph, needs_empty=plan.needs_empty)
    return SavedFrame(
        frame.number, frame.fence, saved, frame.known, frame.queued, frame.committed_ns, frame.expected_end_ns
    )


def decode(data: bytes, catalog: Catalog) -> Saved:
    """What encode() wrote, checked: load() of it cannot fail. Raises InvalidCheckpoint; nothing has been changed."""
    saved = _read(_checked_payload(data), Saved)
    if saved.shapes != catalog.shapes:
        raise InvalidCheckpoint("the checkpoint is of another catalog: its shapes or their order differ")
    check(saved, catalog)
    return saved


def shapes_in(data: bytes) -> tuple[GraphShape, ...]:
    """The shapes of the catalog that a checkpoint is of, in its order: some, each once. Raises InvalidCheckpoint."""
    shapes = _read(_checked_payload(data), Shapes).shapes
    if not shapes or len(set(shapes)) != len(shapes):
        raise InvalidCheckpoint("the checkpoint's catalog is none: it is empty, or lists a shape twice")
    return shapes


def durations_in(data: bytes) -> tuple[int, list[tuple[GraphShape, CostEstimate, int]]]:
    """The moment of a checkpoint, and what its catalog knew then: (shape, estimate, samples behind it), in its order.

    Times are ns of the run's monotonic clock. Raises InvalidCheckpoint.
    """
    saved = _read(_checked_payload(data), Measured)
    ttl_ns = saved.coefficients.get("estimate_ttl_ns", DEFAULT_TTL_NS)
    try:
        catalog = Catalog(saved.shapes, int(ttl_ns))
        catalog.load(saved.estimates)
        return saved.now_ns, [
            (shape, catalog.estimate(shape, saved.now_ns), len(samples))
            for shape, (samples, _, _) in zip(saved.shapes, saved.estimates, strict=True)
        ]
    except (InvalidCatalog, ValueError, OverflowError) as why:
        raise InvalidCheckpoint(f"the checkpoint's durations cannot be read: {why}") from None


def _checked_payload(data: bytes) -> bytes:
    """The checkpoint without its header. Raises InvalidCheckpoint for what this program cannot read."""
    if not isinstance(data, bytes):
        raise InvalidCheckpoint(f"a checkpoint is bytes, not {type(data).__name__}")
    payload = data[_HEADER:]
    if data[: len(_MAGIC)] != _MAGIC or zlib.crc32(payload).to_bytes(4, "big") != data[len(_MAGIC) : _HEADER]:
        raise InvalidCheckpoint("these bytes are no scheduler checkpoint, or they are damaged")
    head = _read(payload, Head)
    if (head.version, head.layout) != (VERSION, layout_digest()):
        raise InvalidCheckpoint(
            f"the checkpoint is of version {head.version}, layout {head.layout}; this program reads version {VERSION}, "
            f"layout {layout_digest()}"
        )
    return payload


def _read(payload: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError) as why:
        raise InvalidCheckpoint(f"the checkpoint cannot be read: {why}") from None


def load(state: SchedulerState, saved: Saved) -> None:
    """Makes a fresh state of the same catalog and settings what it was when it was saved; `saved`: of decode()."""
    state.catalog.load(saved.estimates)
    for name, array in _arrays(state).items():
        array[...] = np.frombuffer(saved.arrays[name], array.dtype).reshape(array.shape)
    for kept in saved.tenants:
        number = kept.handle.slot
        state.tenants[number] = Tenant(kept.handle, kept.spec, kept.prompt, kept.finished)
        state.slot_of[kept.spec.request_id] = number
    state.free_slots = [number for number, tenant in enumerate(state.tenants) if tenant is None]
    state.queue = [_frame(frame) for frame in saved.queue]
    state.completed, state.served = saved.completed, saved.served
    state.completed_fence = int(state.frames[saved.completed]["fence"]) if saved.completed >= 0 else 0
    state.unpublished_snapshots = dict.fromkeys(saved.unpublished_snapshots)
    state.resources = saved.resources
    _load_ledgers(state.ledgers, saved.ledgers)
    state.now_ns, state.last_fence = saved.now_ns, saved.last_fence
    state.tick, state.admissions = saved.tick, saved.admissions


def _load_ledgers(ledgers: Ledgers, saved: SavedLedgers) -> None:
    for ledger, numbers in ((ledgers.timing, saved.timing), (ledgers.acceptance, saved.acceptance)):
        ledger.units, ledger.ordinary_ns, ledger.spent_ns = numbers
    ledgers.discovery_ns = saved.discovery_ns
    ledgers.episode = None if saved.episode is None else Episode(*saved.episode)


def _frame(saved: SavedFrame) -> Frame:
    kept = saved.plan
    plan = ScheduledPlan(**{name: getattr(kept, name) for name in PLAN_FIELDS})
    plan.cohort = np.frombuffer(kept.cohort, layout.LANE).copy()
    plan.graph, plan.needs_empty = kept.graph, kept.needs_empty
    return Frame(
        saved.number,
        saved.fence,
        kept.graph,
        plan,
        saved.known,
        saved.queued,
        saved.committed_ns,
        saved.expected_end_ns,
        plan.cohort,
        LaneColumns.of(plan.cohort),
    )
