"""The measured graphs that prompts are read with, by capacity: what waiting costs and where lateness begins (S4)."""

from __future__ import annotations

from collections import namedtuple

from scheduler import layout
from scheduler.kernels.context import FAMILY_BATCHES, FAMILY_CAPACITIES, FAMILY_LOG_MS, FAMILY_LOG_PROMPT, FAMILY_MS
from scheduler.kernels.jit import allocating, inlined, inner

# The distinct prompt capacities of the family, ascending. capacities [n]: prompt tokens; ms, log_ms [n]: the shortest
# duration, and the smallest logarithm of one, of the capacities' graphs that hold so much or more; log_prompt [n]: of
# the capacity. Empty where the policy asks for neither, or nothing is measured.
Family = namedtuple("Family", "capacities ms log_ms log_prompt")


@allocating
def reading_family(world):
    """Mixed graphs that hold every active decoder and a prompt; without decoders prefill graphs.

    Where none of these is measured the others. Sets the decision's target of a gap, where lateness has a price.
    """
    family = Family(
        world.scratch[FAMILY_CAPACITIES],
        world.amounts[FAMILY_MS],
        world.amounts[FAMILY_LOG_MS],
        world.amounts[FAMILY_LOG_PROMPT],
    )
    mixed, count = world.decision[0]["decoders"] > 0, 0
    if world.policy[0]["prompt_wait_price"] > 0.0 or world.policy[0]["decode_late_price"] > 0.0:
        distinct = world.work.shape[1]
        if not _collect(world, mixed, family, distinct):
            mixed = not mixed
            _collect(world, mixed, family, distinct)
        count = _gather(family, distinct)
    found = Family(family.capacities[:count], family.ms[:count], family.log_ms[:count], family.log_prompt[:count])
    if world.policy[0]["decode_late_price"] > 0.0 and world.decision[0]["decoders"] > 0 and count > 0:
        world.decision[0]["late"] = 1
        world.decision[0]["gap_ms"] = (0.0 if mixed else world.decision[0]["sigma_ms"]) + _knee_ms(world, found)
    return found


@inner
def _collect(world, mixed, family, distinct):
    """The measured duration of each capacity, by capacity index, in `family`; whether there is any.

    Of several graphs the one with the fewest rows counts, the shortest of these: larger ones run seldom, so that what
    is known of them is old, and a family that mixed both would promise what no graph does.
    """
    found = False
    batches = world.scratch[FAMILY_BATCHES]
    for c in range(distinct):
        family.capacities[c] = 0
    least_rows = world.decision[0]["decoders"] + 1
    for g in range(len(world.graphs)):
        graph = world.graphs[g]
        if graph["duration_ns"] == 0 or graph["usable"] == 0:
            continue
        member = graph["kind"] == layout.KIND_PREFILL
        if mixed:
            member = graph["kind"] == layout.KIND_MIXED and graph["batch"] >= least_rows
        if not member:
            continue
        found = True
        c, duration_ms = graph["capacity_index"], graph["duration_ns"] / 1e6
        if family.capacities[c] == 0 or graph["batch"] < batches[c]:
            family.capacities[c] = graph["prompt"]
            batches[c] = graph["batch"]
            family.ms[c] = duration_ms
            family.log_ms[c] = graph["log_ms"]
            family.log_prompt[c] = graph["log_prompt"]
        elif graph["batch"] == batches[c]:
            family.ms[c] = min(family.ms[c], duration_ms)
            family.log_ms[c] = min(family.log_ms[c], graph["log_ms"])
    return found


@inner
def _gather(family, distinct):
    """Moves the capacities that were found to the front, each with the least of those above it; how many."""
    count = 0
    for c in range(distinct):
        if family.capacities[c] > 0:
            family.capacities[count] = family.capacities[c]
            family.ms[count] = family.ms[c]
            family.log_ms[count] = family.log_ms[c]
            family.log_prompt[count] = family.log_prompt[c]
            count += 1
    for i in range(count - 2, -1, -1):
        family.ms[i] = min(family.ms[i], family.ms[i + 1])
        family.log_ms[i] = min(family.log_ms[i], family.log_ms[i + 1])
    return count


@inner
def _knee_ms(world, family):
    """The duration at the knee: where tokens / ms^(1 + decode_gap_weight) is highest, the smallest such capacity."""
    exponent = 1.0 + world.policy[0]["decode_gap_weight"]
    best, knee = 0.0, 0
    for i in range(len(family.ms)):
        efficiency = family.log_prompt[i] - exponent * family.log_ms[i]
        if i == 0 or efficiency > best:
            best, knee = efficiency, i
    return family.ms[knee]


@inlined
def reading_ms(family, tokens):
    """ms to read so many tokens, 1 at least: whole largest graphs, then linear between the capacities of the rest."""
    last = len(family.ms) - 1
    whole = (tokens - 1) // family.capacities[last]
    rest_ms = _interpolated(family, last, tokens - whole * family.capacities[last])
    return whole * family.ms[last] + rest_ms if whole > 0 else rest_ms


@inlined
def _interpolated(family, last, tokens):
    """ms to read tokens that one graph of the family holds."""
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        if family.capacities[middle] < tokens:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return family.ms[0]
    below = family.capacities[low - 1]
    share = (tokens - below) / (family.capacities[low] - below)
    return family.ms[low - 1] + share * (family.ms[low] - family.ms[low - 1])
