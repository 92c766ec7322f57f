"""Faults of the specification's own rules, to be planted into the reference."""

from __future__ import annotations

from tests.scheduler.differential.planting import Fault
from tests.scheduler.differential.scenario import learning_scenario, level_scenario

FAULTS = (
    # What was learned of graphs (S6).
    Fault(
        "the upper of the middle pair as median",
        "catalog",
        "(ordered[middle - 1] + ordered[middle]) // 2",
        "ordered[middle]",
    ),
    Fault("a window of eight samples", "catalog", "WINDOW_SAMPLES = 9", "WINDOW_SAMPLES = 3", shows=1),
    Fault("stale samples kept", "catalog", "if fresh else []", "if True else []", shows=1),
    Fault(
        "exposed delivery learned",
        "completion",
        "cost_ns = device_ns - timing.exposed_delivery_ns",
        "cost_ns = min(device_ns, device_ns + timing.exposed_delivery_ns)",
    ),
    # Acceptance (S3).
    Fault("a shorter half-life", "estimates", "HALF_LIFE_TOKENS = 128", "HALF_LIFE_TOKENS = 127"),
    Fault("a low weight cap", "estimates", "LARGEST_WEIGHT = 128.0", "LARGEST_WEIGHT = 6.0"),
    Fault("survival that rises with depth", "estimates", "min(found[-1], value) if found else value", "value", shows=2),
    Fault("a prior that moves too fast", "estimates", "PRIOR_SHARE = 64.0", "PRIOR_SHARE = 32.0"),
    Fault(
        "termination not censored",
        "lanes",
        "rejected = len(result.record.emitted_tokens) == accepted + 1",
        "rejected = True",
        shows=3,
    ),
    Fault(
        "survival ignored behind a termination",
        "lanes",
        "if result.survival and not",
        "if depth in found and result.survival and not",
        shows=40,
    ),
    Fault("forecasts of copied drafts", "lanes", 'if source == "learned":', "if source is not None:", shows=10),
    Fault("a copy offer that outlives its round", "lanes", "resident.offered = 0", "resident.offered += 0"),
    # Service (S9).
    Fault(
        "waiting time of queued frames charged",
        "completion",
        "device_ns if queued else max(device_ns, timing.wall_ns)",
        "max(device_ns, timing.wall_ns)",
    ),
    Fault(
        "unserved participants not charged",
        "service_prices",
        "return _clamped(memory + interval_ms / normalizer / adaptation_ms)",
        "return _clamped(memory)",
    ),
    Fault(
        "the delivery normalizer of another load",
        "rates",
        "max((1.0 / graph.duration_ms",
        "max((2.0 / graph.duration_ms",
    ),
    Fault(
        "token normalizers that ignore how much is left",
        "rates",
        "room = max(1, resident.output_limit - resident.emitted)",
        "room = max(1, resident.output_limit)",
    ),
    Fault(
        "a newcomer's cap one resident short",
        "service_prices",
        "largest_served), (residents + 1) / decode_rate",
        "largest_served), max(1, residents) / decode_rate",
        shows=3,
    ),
    Fault(
        "publication without what came before",
        "accounting",
        "DeliveryInterval(interval_ms, resident.delivery_memory,",
        "DeliveryInterval(interval_ms, None,",
    ),
    Fault(
        "terminal rows take part in intervals",
        "scheduler",
        "if r.stage is not Stage.TERMINAL\n        ]",
        "if r.stage is not Stage.WAITING\n        ]",
        shows=3,
    ),
    Fault(
        "publication forgets to move the visible time",
        "scheduler",
        "resident.last_visible_ns = self.now_ns",
        "resident.last_visible_ns = resident.last_visible_ns or self.now_ns",
    ),
    # Queue and projection (S10).
    Fault(
        "projected output at the old time",
        "frames",
        "r.view_visible_ns = frame.end_ns",
        "r.view_visible_ns = r.view_visible_ns or frame.end_ns",
    ),
    Fault(
        "ceilings projected instead of expectations",
        "frames",
        "lane.prompt_tokens + lane.expected_tokens if",
        "float(lane.prompt_tokens + lane.ceiling) if",
    ),
    Fault(
        "an overrun ignored",
        "scheduler",
        "known and self.now_ns <= frame.end_ns",
        "known and self.now_ns >= 0",
        shows=7,
    ),
    Fault(
        "a stale expected end after a completion",
        "scheduler",
        "remaining.end_ns = self.now_ns + remaining.plan.selected_cost_ns",
        "remaining.end_ns += 0",
    ),
    Fault(
        "commit trusts old freshness",
        "commitment",
        "is not plan.cost_state:",
        "is CostState.UNKNOWN and plan.cost_state is CostState.FRESH:",
        shows=3,
    ),
    Fault("draft storage left out of pages", "commitment", "+ lane.ceiling + plan.shape.draft_depth", "+ lane.ceiling"),
    Fault("epochs that stand still at completion", "lanes", "resident.epoch += 1", "resident.epoch += 0"),
    Fault("waiting for feedback forgotten", "candidates", "resident.in_flight > 0 and", "resident.in_flight > 1 and"),
    # Ledgers (S7, S8).
    Fault("a generous timing ledger", "ledgers", "Ledger(499)", "Ledger(400)"),
    Fault(
        "credit kept while idle",
        "ledgers",
        "ledger.units = min(ledger.units, 0)",
        "ledger.units = min(ledger.units, 1 << 60)",
        shows=1,
    ),
    Fault(
        "attempts not noted",
        "scheduler",
        "self.catalog.attempt(plan.shape, self.now_ns)",
        "self.catalog.attempt(plan.shape, -1)",
        shows=15,
    ),
    Fault(
        "probes at the end of the output",
        "probes",
        "resident.left - use.rows >= 1",
        "resident.left - use.rows >= 0",
        learning_scenario,
        shows=7,
    ),
    Fault(
        "optimism without the exponent",
        "estimates",
        "yields(self._powers(optimistic))",
        "yields(optimistic)",
        learning_scenario,
        shows=34,
    ),
    Fault("modest optimism", "estimates", "LN20 = math.log(20.0)", "LN20 = math.log(2.0)", shows=15),
    # Values and cohorts (S4, S5).
    Fault(
        "waiting priced for the whole horizon",
        "value",
        "wait_cost = horizon_ms / 2.0 * self.wait_price",
        "wait_cost = horizon_ms * self.wait_price",
    ),
    Fault(
        "the reference interval of the fastest graph",
        "value",
        "key=lambda g: g.duration_ms / min(g.shape.batch_capacity, streams)",
        "key=lambda g: g.duration_ms",
        shows=10,
    ),
    Fault(
        "ages in whole milliseconds",
        "value",
        "(start_ns - resident.view_visible_ns) / 1e6",
        "(start_ns - resident.view_visible_ns) // 1000000",
    ),
    Fault("saved waiting of terminal rows left out", "value", "if retired:", "if retired > 64:", shows=39),
    Fault(
        "ties of decoders to the most recently served",
        "candidates",
        "(-use.parts.value, use.lane.tick, -use.rows, use.lane.slot)",
        "(-use.parts.value, -use.lane.tick, -use.rows, use.lane.slot)",
        shows=3,
    ),
    Fault("fewer served requests preferred on a tie", "candidates", "-len(served),", "len(served),", shows=2),
    Fault("pages rounded down", "candidates", "-(-extent // decision.page_tokens)", "extent // decision.page_tokens"),
    Fault(
        "unmeasured duplicates explored",
        "candidates",
        "any(use.lane.resident.work(c) == use.prompt_tokens for c in smaller)",
        "any(use.lane.resident.work(c) > use.prompt_tokens for c in smaller)",
    ),
    Fault(
        "ragged ties to the higher slot",
        "value",
        "for _, depth, slot in sorted(entries)]",
        "for _, depth, slot in sorted(entries, key=lambda e: (e[0], e[1], -e[2]))]",
        shows=39,
    ),
    Fault(
        "ragged ties to the lower slot before the lower depth",
        "value",
        "for _, depth, slot in sorted(entries)]",
        "for _, depth, slot in sorted(entries, key=lambda e: (e[0], e[2], e[1]))]",
        level_scenario,
        shows=5,
    ),
    Fault(
        "two orderings only",
        "ragged",
        "for by in (total, pending, per_row)]",
        "for by in (total, total, pending)]",
        shows=3,
    ),
    Fault("no padding pruning", "pruning", "return any(o != extents and", "return any(o == () and"),
    Fault(
        "pairs that never share",
        "prerequisites",
        "_Case(new[:k], ready[: room - k]) for k",
        "_Case(new[:k], []) for k",
        shows=14,
    ),
    Fault("a chain's own stages left out", "continuations", "total += min(known)", "total += 0", shows=2),
    Fault(
        "solo chunks of the largest graph",
        "solo",
        "min((c for c in capacities if c >= remaining), default=max(capacities))",
        "max(capacities)",
        shows=1,
    ),
    # Prompts and captures (S10).
    Fault(
        "guards of later anchors ignored",
        "checkpoints",
        "free_rows - guards > 0 and fresh",
        "free_rows > 0 and fresh",
        shows=15,
    ),
    Fault(
        "captures whatever they cost", "checkpoints", "if spent + cost > allowance:", "if spent > allowance:", shows=7
    ),
    Fault("chunks that end inside a block", "prompts", "first < end < last]", "first < end < first]"),
    Fault(
        "windows that are never quite full",
        "prompts",
        "used + image.feature_rows > feature_rows",
        "used + image.feature_rows >= feature_rows",
        shows=2,
    ),
    Fault(
        "earnings without the fraction",
        "lanes",
        "completion.fraction * (completion.device_ns / 1e6)",
        "completion.device_ns / 1e6",
    ),
    # Ends that the host finds.
    Fault(
        "an answer that the host ends leaves nothing behind",
        "lanes",
        "end(resident, FinishReason.STOP, graphs, now_ns)",
        "end(resident, FinishReason.ABORT, graphs, now_ns)",
        shows=3,
    ),
    Fault(
        "a preempted answer that the host ends counts as going on",
        "lanes",
        "resident.finished = True",
        "resident.finished = False",
        shows=3,
    ),
)
