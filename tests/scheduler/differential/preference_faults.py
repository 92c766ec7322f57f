"""Faults of several prompt rows and of the preferences beyond the specification, to be planted into the reference."""

from __future__ import annotations

from tests.scheduler.differential.planting import Fault
from tests.scheduler.differential.scenario import pooled_scenario, preferring_scenario

PREFERENCE_FAULTS = (
    Fault(
        "prompts of the lowest rank first",
        "waiting",
        "(-_rank(r, decision), _arrival(r))",
        "(_rank(r, decision), _arrival(r))",
        preferring_scenario,
    ),
    Fault(
        "reading times one capacity off",
        "reading",
        "below = above - 1",
        "below = max(0, above - 2)",
        preferring_scenario,
        shows=1,
    ),
    Fault("prompts that are whole still wait", "waiting", "if rest:", "if rest >= 0:", preferring_scenario),
    Fault(
        "a gap target without the reference interval",
        "lateness",
        "(sigma_ms if graphs[0]",
        "(0.0 if graphs[0]",
        preferring_scenario,
        shows=12,
    ),
    Fault(
        "a gap target without its weight",
        "lateness",
        "(1.0 + decision.policy.decode_gap_weight)",
        "1.0",
        preferring_scenario,
        shows=6,
    ),
    Fault(
        "served streams as late as before",
        "lateness",
        "0.0 if slot in served else age_ms + horizon_ms",
        "age_ms + horizon_ms",
        preferring_scenario,
    ),
    Fault(
        "lanes chosen without their lateness",
        "value",
        "return self.work + self.late",
        "return self.work + 0.0",
        preferring_scenario,
    ),
    Fault(
        "no cadence",
        "bars",
        'elif policy.decode_cadence == "on":',
        'elif policy.decode_cadence == "never":',
        preferring_scenario,
        shows=5,
    ),
    Fault(
        "bars that leave nothing stay",
        "bars",
        "return found if any(candidate.eligible for candidate in found) else candidates",
        "return found",
        preferring_scenario,
        shows=2,
    ),
    Fault(
        "answers outside the token budget",
        "value",
        "budget - len(self.decoding)",
        "budget",
        preferring_scenario,
        shows=3,
    ),
    Fault(
        "a second prompt that ignores how much room is left",
        "mixed",
        "_fill(context, lane.resident, room, capacity)",
        "_fill(context, lane.resident, capacity, capacity)",
        preferring_scenario,
    ),
    Fault(
        "answers that give way to prompts under cadence",
        "mixed",
        "most = fewest if context.serves_all else len(taken)",
        "most = len(taken)",
        preferring_scenario,
        shows=1,
    ),
    Fault(
        "pairs with the most valuable ready prompt",
        "prerequisites",
        "next(iter(ready), None) if context.ordered else",
        "next(iter(ready), None) if context is None else",
        preferring_scenario,
        shows=15,
    ),
    Fault(
        "a pool with a shorter memory",
        "estimates",
        "LARGEST_POOL_WEIGHT = 256.0",
        "LARGEST_POOL_WEIGHT = 6.0",
        pooled_scenario,
    ),
    Fault(
        "every pooled draft counted as the first",
        "estimates",
        '"later" if i else "first"',
        '"first"',
        pooled_scenario,
    ),
    Fault(
        "pooled drafts rejected where the answer ended",
        "lanes",
        "accepted < result.offered and len(result.record.emitted_tokens) == accepted + 1",
        "accepted < result.offered",
        pooled_scenario,
    ),
    Fault(
        "a pool that learns from rows that the device divided",
        "lanes",
        "completion.plan.shape.allocation is not Allocation.DEVICE",
        "completion.plan.shape is not None",
        pooled_scenario,
    ),
    Fault(
        "a flat pooled curve", "estimates", "found.append(found[-1] * q)", "found.append(found[-1])", pooled_scenario
    ),
    Fault(
        "new requests that pass the pool by",
        "state",
        'self.policy.acceptance_model == "pooled"',
        'self.policy.acceptance_model == "never"',
        pooled_scenario,
    ),
)
