"""What every part of one decision shares: the arrays, the common scale, prices, ages and sigma (S4)."""

from __future__ import annotations

import math
from collections import namedtuple

from scheduler import layout
from scheduler.kernels.jit import inlined, inner

# The arrays of one decision; a named tuple, because compiled code takes one as cheaply as its fields. Shapes: slots,
# views [S]; graphs [G]; policy, decision [1]; candidates [N]; pool [2, M]: slots and allocated rows of cohorts;
# estimates [S, 2 sources, 2 estimators, D, 2]; survival [S, 2 estimators, D]; yields [S, 2 estimators, 3, D + 2], by
# rows; work [S, C]: prompt tokens that a graph of each distinct capacity would consume of each slot; scratch
# [SCRATCH_ROWS, scratch_width()] and amounts [AMOUNT_ROWS, the same]: see the names below.
World = namedtuple(
    "World", "slots graphs policy decision views candidates pool estimates survival yields work scratch amounts"
)

MOST_PROMPTS = 4
"""Of one mixed graph."""

# Rows of scratch, so that a decision allocates it once. MARKS, SERVED_*: of whoever needs them for a moment. ACTIVE:
# the active decoders, ascending; LATE_MARKS, by slot: the last candidate of `late_marks` that serves it; the others:
# see kernels.waiting, kernels.family, kernels.filling and kernels.decoders, whose rows begin there.
SERVED_A, SERVED_B, MARKS, ACTIVE, LATE_MARKS, WAITING, WAITING_LEFT, FAMILY_CAPACITIES, CAPACITIES, FILLED = range(10)
FILL_SLOTS, FILL_TOKENS, DECODER_STATE, DECODER_COUNTS = 10, 10 + MOST_PROMPTS, 10 + 2 * MOST_PROMPTS, 19
FAMILY_BATCHES = DECODER_COUNTS + 13
SCRATCH_ROWS = FAMILY_BATCHES + 1

# Rows of amounts. By position in ACTIVE: age in ms; what the decoder adds to a total of lateness at late_horizon_ms,
# served or not; the others as above. RANK, by slot.
LATE_AGE, SERVED, UNSERVED, RANK, FAMILY_MS, FAMILY_LOG_MS, FAMILY_LOG_PROMPT, FILL_RELIEF = range(8)
DECODER_AMOUNTS = FILL_RELIEF + MOST_PROMPTS + 1
AMOUNT_ROWS = DECODER_AMOUNTS + 8


@inlined
def scratch_width(slots, capacities):
    """Columns of scratch and amounts for so many request slots and distinct prompt capacities."""
    return max(2 * slots, capacities, 8)


FREE_EXPONENT = 64
"""Products up to 2**64 are left alone: ordinary decisions then have scale 1 and stay comparable."""
NO_EXPONENT = -(10**6)


@inner
def exponent_of(value):
    """floor(log2(value)); NO_EXPONENT for 0."""
    if value == 0.0:
        return NO_EXPONENT
    return math.frexp(value)[1] - 1


@inlined
def is_runnable(slot):
    """Resident, not cancelled, not waiting for external restoration."""
    return slot["stage"] != layout.FREE and slot["stage"] != layout.WAITING and slot["cancelled"] == 0


@inner
def set_context(world):
    """Fills the shared part of the decision and every slot's view; nothing is found yet."""
    decision = world.decision
    _clear(decision)
    _set_scale(world.policy, decision, _survey(world.slots, decision))
    decision[0]["sigma_ms"] = _sigma_ms(world.graphs, decision[0]["decoders"], False)
    decision[0]["terminal_sigma_ms"] = _sigma_ms(world.graphs, decision[0]["terminals"], True)
    wait_price = 0.0
    active = 0
    for i in range(len(world.slots)):
        view = world.views[i]
        if not is_runnable(world.slots[i]):
            view["selectable"] = 0
            view["terminal"] = 0
            view["active"] = 0
            view["waits"] = 0
            continue
        _set_view(world.slots[i], view, decision[0])
        if view["waits"] == 1:
            decision[0]["waiting"] = 1
        if view["active"] == 1:
            world.scratch[ACTIVE, active] = i
            world.scratch[LATE_MARKS, i] = 0
            world.amounts[LATE_AGE, active] = view["age_ms"]
            active += 1
            wait_price += decision[0]["decode_age_price"]
        elif world.slots[i]["stage"] == layout.TERMINAL:
            wait_price += decision[0]["terminal_age_price"]
    decision[0]["wait_price"] = wait_price


@inner
def _clear(decision):
    decision[0]["decoders"] = 0
    decision[0]["terminals"] = 0
    decision[0]["priced"] = 0
    decision[0]["found"] = 0
    decision[0]["pooled"] = 0
    decision[0]["runnable"] = 0
    decision[0]["waiting"] = 0
    decision[0]["overflow"] = 0
    decision[0]["late"] = 0
    decision[0]["late_horizon_ms"] = -1.0
    decision[0]["late_marks"] = 0
    decision[0]["reason"] = 0
    decision[0]["alternatives"] = 0
    decision[0]["recorded_slots"] = 0
    decision[0]["winner"] = -1
    decision[0]["chosen"] = -1
    decision[0]["runner_up"] = -1
    decision[0]["solo_graph"] = -1


@inner
def is_active(slot):
    """An active decoder: runnable, prompt whole, not TERMINAL, with projected visible output (S4)."""
    return (
        is_runnable(slot)
        and slot["consumed"] >= slot["prompt_tokens"]
        and slot["stage"] != layout.TERMINAL
        and slot["view_visible_ns"] >= 0
    )


@inner
def elapsed_ms(start_ns, since_ns):
    """Age of an output, of a terminal row or of a prompt; 0.0 where a projection lies ahead."""
    return (start_ns - since_ns) / 1e6 if start_ns > since_ns else 0.0


@inner
def _survey(slots, decision):
    """Counts runnable slots by what they are; the largest memories and ages, as (token, delivery, decode, terminal)."""
    token, delivery, decode_age, terminal_age = 1.0, 1.0, 0.0, 0.0
    start_ns = decision[0]["start_ns"]
    for i in range(len(slots)):
        slot = slots[i]
        if not is_runnable(slot):
            continue
        decision[0]["runnable"] += 1
        if slot["view_token_memory"] > token:  # False for a missing one, NaN
            token = slot["view_token_memory"]
        if slot["view_delivery_memory"] > delivery:
            delivery = slot["view_delivery_memory"]
        if slot["stage"] == layout.TERMINAL:
            decision[0]["terminals"] += 1
            terminal_age = max(terminal_age, elapsed_ms(start_ns, slot["terminal_since_ns"]))
        elif is_active(slot):
            decision[0]["decoders"] += 1
            decode_age = max(decode_age, elapsed_ms(start_ns, slot["view_visible_ns"]))
    return token, delivery, decode_age, terminal_age


@inner
def _set_scale(policy, decision, largest):
    """The common scale 2^-e, from exponents before any product is formed, and the values that carry it."""
    token, delivery, decode_age, terminal_age = largest
    highest = max(
        exponent_of(policy[0]["output_token_value"]),
        exponent_of(policy[0]["terminal_value"]),
        exponent_of(policy[0]["token_fairness"]) + exponent_of(token),
        exponent_of(policy[0]["delivery_fairness"]) + exponent_of(delivery),
        exponent_of(policy[0]["decode_age_price"]) + exponent_of(decode_age if decode_age != 0.0 else 1.0),
        exponent_of(policy[0]["terminal_age_price"]) + exponent_of(terminal_age if terminal_age != 0.0 else 1.0),
        exponent_of(policy[0]["prompt_wait_price"]),
        exponent_of(policy[0]["decode_late_price"]) + 2 * exponent_of(decode_age if decode_age != 0.0 else 1.0),
    )
    exponent = max(0, highest - FREE_EXPONENT)
    decision[0]["exponent"] = exponent
    decision[0]["prompt_value"] = math.ldexp(1.0, -exponent)
    decision[0]["output_value"] = math.ldexp(policy[0]["output_token_value"], -exponent)
    decision[0]["terminal_value"] = math.ldexp(policy[0]["terminal_value"], -exponent)
    decision[0]["token_fairness"] = math.ldexp(policy[0]["token_fairness"], -exponent)
    decision[0]["delivery_fairness"] = math.ldexp(policy[0]["delivery_fairness"], -exponent)
    decision[0]["decode_age_price"] = math.ldexp(policy[0]["decode_age_price"], -exponent)
    decision[0]["terminal_age_price"] = math.ldexp(policy[0]["terminal_age_price"], -exponent)
    decision[0]["prompt_wait_price"] = math.ldexp(policy[0]["prompt_wait_price"], -exponent)
    decision[0]["half_late_price"] = math.ldexp(policy[0]["decode_late_price"], -exponent) / 2.0


@inner
def _sigma_ms(graphs, streams, terminal):
    """Reference interval K*T/min(B, K) of the measured graph that minimises T/min(B, K), the first on a tie (S4)."""
    if streams == 0:
        return 0.0
    least, sigma = math.inf, 0.0
    for g in range(len(graphs)):
        kind = graphs[g]["kind"]
        if terminal:
            member = kind == layout.KIND_TERMINAL_SNAPSHOT
        else:
            member = kind == layout.KIND_DECODE or kind == layout.KIND_SPECULATIVE or kind == layout.KIND_MIXED
        if member and graphs[g]["usable"] == 1 and graphs[g]["duration_ns"] > 0:
            duration_ms = graphs[g]["duration_ns"] / 1e6
            rows = min(graphs[g]["batch"], streams)
            if duration_ms / rows < least:
                least = duration_ms / rows
                sigma = streams * duration_ms / rows
    return sigma


@inner
def _set_view(slot, view, decision):
    """Limits, age and prices of one runnable slot."""
    terminal = slot["stage"] == layout.TERMINAL
    active = is_active(slot)
    view["left"] = slot["output_limit"] - slot["emitted"] - slot["pending"]
    view["limit"] = min(view["left"], 1 + slot["drafts"])
    view["waits"] = 1 if slot["in_flight"] > 0 and slot["feedback"] == 1 else 0
    view["selectable"] = 1 if slot["stage"] == layout.DECODE and slot["retiring"] == 0 and view["left"] >= 1 else 0
    view["terminal"] = 1 if terminal and slot["in_flight"] == 0 else 0
    view["active"] = 1 if active else 0
    view["age_ms"] = elapsed_ms(decision["start_ns"], slot["view_visible_ns"]) if active else 0.0
    view["terminal_age_ms"] = elapsed_ms(decision["start_ns"], slot["terminal_since_ns"]) if terminal else 0.0
    view["token_price"] = decision["token_fairness"] * _or_zero(slot["view_token_memory"])
    view["delivery_price"] = decision["delivery_fairness"] * _or_zero(slot["view_delivery_memory"])
    view["age_price"] = decision["decode_age_price"] if active else 0.0
    view["prompt_price"] = decision["prompt_value"] + view["token_price"]
    view["output_price"] = decision["output_value"] + view["token_price"]
    view["age_weight"] = view["age_price"] * decision["sigma_ms"]
    view["terminal_weight"] = decision["terminal_age_price"] * decision["terminal_sigma_ms"]


@inner
def _or_zero(memory):
    """A missing memory (NaN) has no price."""
    return 0.0 if math.isnan(memory) else memory


# --- lane values (S4): v = (((token + delivery) + relief) + terminal) + late ---


@inlined
def rows_of(world, slot, graph):
    """Rows that a decoding lane uses on a graph: min(D + 1, W, limit, 1 + drafts); always 1 or more if selectable."""
    return min(world.graphs[graph]["lane_width"], world.views[slot]["limit"])


@inlined
def decode_token(world, slot, graph, rows):
    """Token value of a decode lane with `rows` rows on `graph`, by that graph's estimator."""
    expected = world.yields[slot, world.graphs[graph]["estimator"], layout.YIELD_SCORE, rows]
    return world.views[slot]["output_price"] * expected


@inlined
def decode_relief(world, slot, horizon_ms):
    """Age relief of a decode lane; 0.0 without visible output."""
    return world.views[slot]["age_weight"] * (world.views[slot]["age_ms"] + horizon_ms)


@inlined
def decode_value(world, slot, graph, rows, horizon_ms):
    """v of a decode lane."""
    token = decode_token(world, slot, graph, rows)
    value = token + world.views[slot]["delivery_price"] + decode_relief(world, slot, horizon_ms)
    return value + decode_late(world, slot, horizon_ms)


@inlined
def decode_late(world, slot, horizon_ms):
    """What serving an active decoder saves of its lateness, had it gone unserved; 0.0 without a price."""
    decision = world.decision[0]
    if decision["late"] == 0 or world.views[slot]["active"] == 0:
        return 0.0
    unserved = late_step(world.views[slot]["age_ms"] + horizon_ms, decision)
    return decision["half_late_price"] * (unserved - late_step(0.0, decision))


@inlined
def late_square(excess_ms):
    """The square of what exceeds the target, 0.0 below it."""
    return excess_ms * excess_ms if excess_ms > 0.0 else 0.0


@inlined
def late_step(age_ms, decision):
    """By how much a stream of this age grows later within one reference interval: q in S4."""
    gap_ms = decision["gap_ms"]
    return late_square(age_ms + decision["sigma_ms"] - gap_ms) - late_square(age_ms - gap_ms)


@inlined
def finishes(world, slot, tokens):
    """Whether `tokens` more prompt tokens complete the prompt; the lane then also yields one output token."""
    return world.slots[slot]["consumed"] + tokens == world.slots[slot]["prompt_tokens"]


@inlined
def prompt_token(world, slot, tokens):
    """Token value of a prompt lane that consumes `tokens`."""
    value = world.views[slot]["prompt_price"] * tokens
    return value + world.views[slot]["output_price"] if finishes(world, slot, tokens) else value


@inlined
def prompt_delivery(world, slot, tokens):
    """Delivery value of a prompt lane: its first output, if it finishes."""
    return world.views[slot]["delivery_price"] if finishes(world, slot, tokens) else 0.0


@inlined
def prompt_lane_value(world, slot, tokens):
    """v of a prompt lane."""
    return prompt_token(world, slot, tokens) + prompt_delivery(world, slot, tokens)


@inlined
def terminal_row_value(world, slot, horizon_ms):
    """v of a terminal row, which is its terminal part alone."""
    view = world.views[slot]
    return world.decision[0]["terminal_value"] + view["terminal_weight"] * (view["terminal_age_ms"] + horizon_ms)
