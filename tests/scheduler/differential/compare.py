"""Comparison by bits: plans field by field, candidates, and dumps of either side's state."""

from __future__ import annotations

import math

from scheduler.plans import PLAN_FIELDS
from scheduler.reference.estimates import SOURCES
from scheduler.reference.residents import Stage

STAGES = (
    None,
    Stage.INIT,
    Stage.RESTORE,
    Stage.VISION,
    Stage.PREFILL,
    Stage.DECODE,
    Stage.SNAPSHOT,
    Stage.TERMINAL,
    Stage.WAITING,
)


class Difference(AssertionError):
    """The two sides disagree."""


def differing(name, fast, plain):
    raise Difference(f"{name}\n  fast:      {fast!r}\n  reference: {plain!r}")


def same_plan(fast, plain):
    """repr() tells floats apart by bits, -0.0 from 0.0 and int from float."""
    if fast is None or plain is None:
        if fast is not plain:
            differing("plan", fast, plain)
        return
    for field in PLAN_FIELDS:
        one, two = getattr(fast, field), getattr(plain, field)
        if repr(one) != repr(two):
            differing(f"plan.{field}", one, two)


def same_candidates(fast, plain):
    one, two = list(fast), list(plain)
    for i, (a, b) in enumerate(zip(one, two, strict=False)):
        if repr(a) != repr(b):
            differing(f"candidate {i}", a, b)
    if len(one) != len(two):
        differing("number of candidates", len(one), len(two))


def same_dump(fast, plain):
    for key in sorted({*fast, *plain}):
        if repr(fast.get(key)) != repr(plain.get(key)):
            differing(f"state {key}", fast.get(key), plain.get(key))


def number(value):
    return None if math.isnan(value) else float(value)


def reference_dump(scheduler):
    """What the reference knows, as plain values by name."""
    scheduler.project()
    ends = [frame.end_ns for frame in scheduler.queue]
    found = shared(scheduler, scheduler.ledgers, ends, scheduler.prior.means)
    chances = scheduler.pool.chances
    found["pool"] = [chances[source][place] for source in SOURCES for place in ("first", "later")]
    found["unpublished snapshots"] = sorted(scheduler.unpublished_snapshots)
    for graph in scheduler.graphs():
        known = (graph.usable, graph.duration_ns, graph.observed_ns, graph.attempted_ns)
        found[f"graph {graph.position}"] = known
    for r in scheduler.residents():
        for key, tables in r.estimates.dump().items():
            found[f"slot {r.slot} {key}"] = tables
        found[f"slot {r.slot}"] = (
            ("stage", r.stage),
            ("generation", r.handle.generation),
            ("cancelled", r.cancelled),
            ("retiring", r.retiring),
            ("finished", r.stage.value == "terminal" and r.finished),
            ("consumed", r.consumed),
            ("emitted", r.emitted),
            ("output_limit", r.output_limit),
            ("in_flight", r.in_flight),
            ("pending", r.pending),
            ("source", r.source),
            ("drafts", r.drafts),
            ("feedback", r.feedback),
            ("admitted", r.admitted),
            ("arrived", r.arrived_ns),
            ("tick", r.last_served_tick),
            ("epoch", r.epoch),
            ("visible", None if r.cancelled else r.last_visible_ns),
            ("terminal_since", r.terminal_since_ns if r.stage.value == "terminal" else None),
            ("pages", r.pages_held),
            ("token", r.token_memory),
            ("delivery", None if r.cancelled else r.delivery_memory),
            ("view_token", r.view_token_memory if r.runnable else None),
            ("view_delivery", r.view_delivery_memory if r.runnable else None),
            ("view_visible", r.view_visible_ns if r.runnable else None),
            ("earned", r.decode_earned_ms),
        )
    return found


def shared(scheduler, ledgers, ends, prior):
    found = {
        "now": scheduler.now_ns,
        "frames": ends,
        "ledgers": ledgers.balances(),
        "residents": scheduler.resident_count,
    }
    for i, source in enumerate(SOURCES):
        found[f"prior {source}"] = [float(x) for x in (prior[source] if isinstance(prior, dict) else prior[i])]
    return found


def fast_dump(scheduler):
    """The same of the fast side, from its arrays."""
    state = scheduler._state
    state.refresh()
    ends = [frame.expected_end_ns for frame in state.queue]
    found = shared(scheduler, state.ledgers, ends, state.acceptance.prior)
    found["pool"] = state.acceptance.pool.reshape(-1, 2).tolist()
    found["unpublished snapshots"] = sorted(state.unpublished_snapshots)
    for position in range(len(state.graphs)):
        g = state.graphs[position]
        observed, attempted = int(g["observed_ns"]), int(g["attempted_ns"])
        found[f"graph {position}"] = (
            bool(g["usable"]),
            int(g["duration_ns"]),
            None if observed < 0 else observed,
            None if attempted < 0 else attempted,
        )
    for slot, row in enumerate(state.slots):
        if int(row["stage"]):
            found |= fast_slot(state, slot, row)
    return found


def fast_slot(state, slot, row):
    found = {}
    for i, source in enumerate(SOURCES):
        for j, name in enumerate(("acceptance", "forecast")):
            table = state.acceptance.estimates[slot, i, j]
            found[f"slot {slot} {source} {name}"] = [float(x) for x in (*table[:, 0], *table[:, 1])]
    stage = STAGES[int(row["stage"])]
    drafts, visible, view = int(row["drafts"]), int(row["last_visible_ns"]), int(row["view_visible_ns"])
    cancelled = bool(row["cancelled"])  # nothing that a cancelled request remembers of its output counts any more
    runnable = not cancelled and stage is not Stage.WAITING
    found[f"slot {slot}"] = (
        ("stage", stage),
        ("generation", int(row["generation"])),
        ("cancelled", cancelled),
        ("retiring", bool(row["retiring"])),
        ("finished", stage is Stage.TERMINAL and state.tenants[slot].finished),
        ("consumed", int(row["consumed"])),
        ("emitted", int(row["emitted"])),
        ("output_limit", int(row["output_limit"])),
        ("in_flight", int(row["in_flight"])),
        ("pending", int(row["pending"])),
        ("source", None if int(row["source"]) < 0 else SOURCES[int(row["source"])]),
        ("drafts", drafts if drafts < 1 << 39 else None),
        ("feedback", bool(row["feedback"])),
        ("admitted", int(row["admitted"])),
        ("arrived", int(row["arrived_ns"])),
        ("tick", int(row["last_served_tick"])),
        ("epoch", int(row["epoch"])),
        ("visible", None if visible < 0 or cancelled else visible),
        ("terminal_since", int(row["terminal_since_ns"]) if stage is Stage.TERMINAL else None),
        ("pages", int(row["pages_held"])),
        ("token", number(row["token_memory"])),
        ("delivery", None if cancelled else number(row["delivery_memory"])),
        ("view_token", number(row["view_token_memory"]) if runnable else None),
        ("view_delivery", number(row["view_delivery_memory"]) if runnable else None),
        ("view_visible", (None if view < 0 else view) if runnable else None),
        ("earned", float(row["decode_earned_ms"])),
    )
    return found
