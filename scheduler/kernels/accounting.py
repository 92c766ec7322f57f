"""Service accounting (S9): frozen normalizers, the entropy-dual update, newcomers, publications.

Missing memories and rates are NaN. Times in ms, rates in units per ms.
"""

from __future__ import annotations

import math

from scheduler.kernels.jit import inner
from scheduler.layout import (
    FREE,
    KIND_DECODE,
    KIND_MIXED,
    KIND_PREFILL,
    KIND_SCORED_PREFILL,
    KIND_SPECULATIVE,
    LEARNED,
    TERMINAL,
    WAITING,
    YIELD_RAW,
)

MEMORY_MIN = 1e-12
MEMORY_MAX = 1e12
NS_PER_MS = 1e6

# Newcomer rules, in the order of scheduler.policy.NEWCOMER_MEMORIES.
DEPRIVED, DECODE_RULE, PHASE, FAIR_SHARE = range(4)


@inner
def clamped(memory):
    """The memory within [1e-12, 1e12]."""
    return min(max(memory, MEMORY_MIN), MEMORY_MAX)


@inner
def updated_memory(memory, interval_ms, served, normalizer, adaptation_ms):
    """scheduler.reference.service_prices.updated_memory, without its checks: the same operations in the same order."""
    if served == 0.0:
        return clamped(memory + interval_ms / normalizer / adaptation_ms)
    decay = served / normalizer / adaptation_ms
    return clamped(memory * math.exp(-decay) + (interval_ms / served) * -math.expm1(-decay))


@inner
def after_interval(memory, interval_ms, served, rate, adaptation_ms):
    """The memory after an interval; a missing memory or rate leaves it alone."""
    if math.isnan(memory) or math.isnan(rate):
        return memory
    return updated_memory(memory, interval_ms, served, rate, adaptation_ms)


@inner
def after_delivery(memory, interval_ms, rate, adaptation_ms):
    """The delivery memory after an interval with one delivery; the first one starts it with the interval."""
    if math.isnan(memory):
        return interval_ms
    return after_interval(memory, interval_ms, 1.0, rate, adaptation_ms)


@inner
def runnable(slot):
    """Whether a slot may run: occupied, not cancelled, not waiting for external restoration."""
    return slot["stage"] != FREE and slot["stage"] != WAITING and slot["cancelled"] == 0


@inner
def shorter(known_ms, duration_ns):
    """The smaller of two durations, ms; 0.0 stands for none."""
    duration_ms = duration_ns / NS_PER_MS
    if duration_ns > 0 and (known_ms == 0.0 or duration_ms < known_ms):
        return duration_ms
    return known_ms


@inner
def fastest_graphs(graphs, rounds, prompts):
    """The shortest known duration in ms (0.0: none) of usable graphs by what they can do for one request alone.

    rounds[estimator, rows]: generation and MIXED shapes by min(D + 1, W, P). prompts[scored, capacity index]: PREFILL
    and MIXED for unscored prompts, SCORED_PREFILL for scored ones. For one numerator the shortest duration gives the
    highest rate also after rounding, so nothing else need be kept.
    """
    rounds[:, :] = 0.0
    prompts[:, :] = 0.0
    for g in range(graphs.shape[0]):
        kind, duration = graphs[g]["kind"], graphs[g]["duration_ns"]
        if graphs[g]["usable"] == 0:
            continue
        if kind in (KIND_DECODE, KIND_SPECULATIVE, KIND_MIXED):
            estimator, rows = graphs[g]["estimator"], min(graphs[g]["lane_width"], graphs[g]["rows"])
            rounds[estimator, rows] = shorter(rounds[estimator, rows], duration)
        if kind in (KIND_PREFILL, KIND_SCORED_PREFILL, KIND_MIXED):
            scored = 1 if kind == KIND_SCORED_PREFILL else 0
            at = graphs[g]["capacity_index"]
            prompts[scored, at] = shorter(prompts[scored, at], duration)


@inner
def higher(rate, amount, duration_ms):
    """The larger of `rate` (NaN: none) and amount / duration_ms (0.0: none)."""
    if duration_ms == 0.0:
        return rate
    found = amount / duration_ms
    return found if math.isnan(rate) or found > rate else rate


@inner
def token_rate(s, slot, yields, work, rounds, prompts):
    """The token normalizer of slot number `s` in its current phase, tokens per ms; NaN unmeasured."""
    rate = math.nan
    if slot["consumed"] < slot["prompt_tokens"]:
        for c in range(prompts.shape[1]):
            if work[s, c] > 0:
                rate = higher(rate, float(work[s, c]), prompts[slot["scored"], c])
        return rate
    limit = min(max(1, slot["output_limit"] - slot["emitted"]), 1 + slot["drafts"])
    for estimator in range(rounds.shape[0]):
        for rows in range(1, rounds.shape[1]):
            rate = higher(rate, yields[s, estimator, YIELD_RAW, min(rows, limit)], rounds[estimator, rows])
    return rate


@inner
def delivery_rate(rounds):
    """The delivery normalizer: the highest 1/T over generation and MIXED shapes; NaN unmeasured."""
    rate = math.nan
    for estimator in range(rounds.shape[0]):
        for rows in range(1, rounds.shape[1]):
            rate = higher(rate, 1.0, rounds[estimator, rows])
    return rate


@inner
def lone_decoder_rate(prior, rounds):
    """n_decode: the highest prior yield per ms, 1 + sum of the learned prior below the rows; NaN unmeasured."""
    rate = math.nan
    total = 0.0
    for rows in range(1, rounds.shape[1]):
        for estimator in range(rounds.shape[0]):
            rate = higher(rate, 1.0 + total, rounds[estimator, rows])
        if rows - 1 < prior.shape[1]:
            total += prior[LEARNED, rows - 1]
    return rate


@inner
def newcomer_memory(rule, phase_rate, decode_rate, residents, largest_served):
    """scheduler.reference.service_prices.newcomer_memory with NaN for a missing rate or memory."""
    if math.isnan(decode_rate) or rule == PHASE:
        return phase_rate if math.isnan(phase_rate) else clamped(1.0 / phase_rate)
    if rule == DEPRIVED:
        return clamped(min(max(1.0 / decode_rate, largest_served), (residents + 1) / decode_rate))
    if rule == DECODE_RULE:
        return clamped(1.0 / decode_rate)
    return phase_rate if math.isnan(phase_rate) else clamped((residents + 1) / phase_rate)


@inner
def start_memory(s, slots, rule, yields, prior, work, rounds, prompts):
    """Gives slot `s` its first token memory, if anything has been measured (S9)."""
    others, largest = 0, 0.0
    for i in range(slots.shape[0]):
        if i != s and runnable(slots[i]):
            others += 1
            if slots[i]["last_served_tick"] > 0 and slots[i]["token_memory"] > largest:
                largest = slots[i]["token_memory"]
    phase_rate = token_rate(s, slots[s], yields, work, rounds, prompts)
    decode_rate = lone_decoder_rate(prior, rounds)
    slots[s]["token_memory"] = newcomer_memory(rule, phase_rate, decode_rate, others, largest)


@inner
def freeze_rates(slots, participants, yields, work, rounds, prompts):
    """Records who takes part in a frame, with its normalizers: runnable and not in TERMINAL (S9)."""
    deliveries = delivery_rate(rounds)
    for s in range(slots.shape[0]):
        participants[s]["generation"] = 0
        participants[s]["unpublished"] = 0
        participants[s]["open"] = 0
        participants[s]["served"] = 0.0
        participants[s]["delivers"] = 0
        if not runnable(slots[s]) or slots[s]["stage"] == TERMINAL:
            continue
        participants[s]["generation"] = slots[s]["generation"]
        participants[s]["token_rate"] = token_rate(s, slots[s], yields, work, rounds, prompts)
        whole = slots[s]["consumed"] >= slots[s]["prompt_tokens"]
        participants[s]["delivery_rate"] = deliveries if whole else math.nan


@inner
def survives(participant, slot):
    """Whether a participant is still the resident that it was at commit."""
    return (
        participant["generation"] != 0
        and slot["generation"] == participant["generation"]
        and slot["stage"] != FREE
        and slot["cancelled"] == 0
    )


@inner
def charge_interval(slots, participants, interval_ms, adaptation_ms):
    """Charges every surviving participant for one interval with its served tokens and no delivery."""
    for s in range(slots.shape[0]):
        if not survives(participants[s], slots[s]):
            continue
        memory, rate = slots[s]["token_memory"], participants[s]["token_rate"]
        slots[s]["token_memory"] = after_interval(memory, interval_ms, participants[s]["served"], rate, adaptation_ms)
        memory, rate = slots[s]["delivery_memory"], participants[s]["delivery_rate"]
        participants[s]["open"] = 1
        participants[s]["delivery_before"] = memory
        slots[s]["delivery_memory"] = after_interval(memory, interval_ms, 0.0, rate, adaptation_ms)


@inner
def delivered_memory(participant, interval_ms, adaptation_ms):
    """The delivery memory after the completed frame's interval with one delivery in place of none."""
    return after_delivery(participant["delivery_before"], interval_ms, participant["delivery_rate"], adaptation_ms)


@inner
def publish_lane(slot, participant, now_ns, interval_ms, adaptation_ms):
    """One publication: visible now; the first of its fence replaces no delivery by one (S9)."""
    if participant["unpublished"] == 0 or not survives(participant, slot):
        return
    slot["last_visible_ns"] = now_ns
    participant["unpublished"] = 2
    if participant["open"] == 1:
        participant["open"] = 0
        slot["delivery_memory"] = delivered_memory(participant, interval_ms, adaptation_ms)
