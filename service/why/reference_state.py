"""A scheduler's checkpoint as a ReferenceScheduler, so that the slow twin can take up a recorded run anywhere.

The one place that knows both sides' state. A test sends thousands of commands to both after such a change over.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from scheduler import layout, replay
from scheduler.catalog import Catalog
from scheduler.plans import PLAN_FIELDS, Reason, ScheduledPlan
from scheduler.records import RequestHandle, RequestSpec
from scheduler.reference.catalog import ReferenceCatalog
from scheduler.reference.estimates import SOURCES, Estimates
from scheduler.reference.frames import CompletedFrame, DeliveryInterval, Frame, Participant
from scheduler.reference.prompts import Prompt, atomic_blocks, image_windows, window_starts
from scheduler.reference.residents import Resident, Stage
from scheduler.reference.scheduler import ReferenceScheduler
from scheduler.saved import Saved, SavedLedgers, SavedTenant

_STAGES = {
    layout.INIT: Stage.INIT,
    layout.RESTORE: Stage.RESTORE,
    layout.VISION: Stage.VISION,
    layout.PREFILL: Stage.PREFILL,
    layout.DECODE: Stage.DECODE,
    layout.SNAPSHOT: Stage.SNAPSHOT,
    layout.TERMINAL: Stage.TERMINAL,
    layout.WAITING: Stage.WAITING,
}


def reference_from(data: bytes) -> ReferenceScheduler:
    """The reference in the state of RequestScheduler.checkpoint(). Raises InvalidCheckpoint."""
    saved = replay.decode(data, Catalog(replay.shapes_in(data)))
    reference = ReferenceScheduler(ReferenceCatalog(saved.shapes), saved.policy(), *saved.settings.arguments())
    reference.catalog.load(saved.estimates)
    reference.now_ns, reference.tick = saved.now_ns, saved.tick
    reference._last_fence, reference._admissions = saved.last_fence, saved.admissions
    reference.unpublished_snapshots = set(saved.unpublished_snapshots)
    _load_resources(reference, saved)
    _load_ledgers(reference, saved.ledgers)
    _load_residents(reference, saved)
    _load_frames(reference, saved)
    return reference


def _load_resources(reference: ReferenceScheduler, saved: Saved) -> None:
    resources = saved.resources
    if resources.page_tokens:
        reference.free_pages, reference.page_tokens = resources.free_pages, resources.page_tokens
    reference.free_snapshot_rows = resources.free_snapshot_rows


def _load_ledgers(reference: ReferenceScheduler, saved: SavedLedgers) -> None:
    ledgers = reference.ledgers
    for reason, (units, _, spent_ns) in (
        (Reason.TIMING_REFRESH, saved.timing),
        (Reason.ACCEPTANCE_LEARNING, saved.acceptance),
    ):
        ledgers.of[reason].units, ledgers.of[reason].spent_ns = units, spent_ns
    ledgers.ordinary_ns, ledgers.discovery_ns = saved.timing[1], saved.discovery_ns
    ledgers.open = saved.episode is not None


def _load_residents(reference: ReferenceScheduler, saved: Saved) -> None:
    slots = np.frombuffer(saved.arrays["slots"], layout.SLOT)
    depths = reference.draft_capacity
    prior = np.frombuffer(saved.arrays["prior"]).reshape(len(SOURCES), depths)
    reference.prior.means = {source: prior[i].tolist() for i, source in enumerate(SOURCES)}
    pool = np.frombuffer(saved.arrays["pool"]).reshape(len(SOURCES), 2, 2).tolist()
    reference.pool.chances = {
        source: dict(zip(("first", "later"), pool[i], strict=True)) for i, source in enumerate(SOURCES)
    }
    tables = np.frombuffer(saved.arrays["acceptance"]).reshape(-1, len(SOURCES), 2, depths, 2)
    reference.generations = slots["generation"].tolist()
    for tenant in saved.tenants:
        number = tenant.handle.slot
        reference.slots[number] = _resident(reference, tenant, slots[number], tables[number])


def _resident(reference: ReferenceScheduler, kept: SavedTenant, slot: Any, tables: Any) -> Resident:
    spec, at_window = kept.spec, bool(slot["window"])
    return Resident(
        handle=kept.handle,
        spec=spec,
        prompt=_prompt(spec, kept, reference.image_feature_rows),
        estimates=_estimates(reference, tables),
        admitted=int(slot["admitted"]),
        stage=_STAGES[int(slot["stage"])],
        consumed=int(slot["consumed"]),
        images_left=int(slot["images_left"]),
        arrived_ns=int(slot["arrived_ns"]),
        emitted=int(slot["emitted"]),
        in_flight=int(slot["in_flight"]),
        pending=int(slot["pending"]),
        offered=int(slot["drafts"]) if slot["source"] == layout.COPY else 0,
        window=at_window,
        windows_done=kept.prompt.window - at_window,
        cancelled=bool(slot["cancelled"]),
        retiring=bool(slot["retiring"]),
        finished=kept.finished,
        epoch=int(slot["epoch"]),
        last_served_tick=int(slot["last_served_tick"]),
        terminal_since_ns=int(slot["terminal_since_ns"]),
        pages_held=int(slot["pages_held"]),
        decode_earned_ms=float(slot["decode_earned_ms"]),
        token_memory=_number(slot["token_memory"]),
        delivery_memory=_number(slot["delivery_memory"]),
        last_visible_ns=None if slot["last_visible_ns"] < 0 else int(slot["last_visible_ns"]),
    )


def _prompt(spec: RequestSpec, kept: SavedTenant, feature_rows: int) -> Prompt:
    anchor = None if kept.prompt.anchor < 0 else kept.prompt.anchor
    cuts = () if anchor is None else tuple(sorted({anchor, *kept.prompt.extras}))
    windows = image_windows(spec, feature_rows)
    stops = sorted({*cuts, *window_starts(windows), spec.prompt_tokens})
    return Prompt(windows, atomic_blocks(spec), anchor, cuts, tuple(stops))


def _estimates(reference: ReferenceScheduler, tables: Any) -> Estimates:
    """From means and weights [source, estimator, depth, 2]."""
    estimates = Estimates(reference.prior, reference.policy.adaptive_verification_alpha)
    for i, source in enumerate(SOURCES):
        for forecast in (False, True):
            table = tables[i, int(forecast)]
            means, weights = table[:, layout.MEAN].tolist(), table[:, layout.WEIGHT].tolist()
            estimates.load(source, forecast, means, weights)
    return estimates


def _load_frames(reference: ReferenceScheduler, saved: Saved) -> None:
    frames = np.frombuffer(saved.arrays["frames"], layout.FRAME)
    participants = np.frombuffer(saved.arrays["participants"], layout.PARTICIPANT).reshape(len(frames), -1)
    for kept in saved.queue:
        plan = ScheduledPlan(**{name: getattr(kept.plan, name) for name in PLAN_FIELDS})
        those = tuple(
            Participant(handle, _number(row["token_rate"]), _number(row["delivery_rate"]))
            for handle, row in _taking_part(participants[kept.number])
        )
        reference.queue.append(Frame(kept.fence, plan, those, kept.queued, kept.expected_end_ns))
    if saved.completed >= 0:
        reference.completed = _completed(saved, frames[saved.completed], participants[saved.completed])


def _completed(saved: Saved, frame: Any, participants: Any) -> CompletedFrame:
    rows = _taking_part(participants)
    return CompletedFrame(
        fence=int(frame["fence"]),
        completed_ns=int(frame["completed_ns"]),
        handles=frozenset(RequestHandle(slot, generation) for slot, generation in saved.served.items()),
        emitted={handle for handle, row in rows if row["unpublished"] > 0},
        unpublished={handle for handle, row in rows if row["unpublished"] == 1},
        open={
            handle: DeliveryInterval(
                float(frame["interval_ms"]), _number(row["delivery_before"]), _number(row["delivery_rate"])
            )
            for handle, row in rows
            if row["open"] == 1
        },
    )


def _taking_part(participants: Any) -> list[tuple[RequestHandle, Any]]:
    """The participants of one frame, in slot order."""
    return [
        (RequestHandle(slot, int(row["generation"])), row) for slot, row in enumerate(participants) if row["generation"]
    ]


def _number(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)
