"""Entries around a frame: admission, completion, publication; its commit is in scheduler.kernels.commitment.

Common arguments: slots[S], graphs[G], policy[1], frames[3], and by frame lanes[3, S] and participants[3, S], the latter
indexed by slot; `first` and `second` are the frames in flight, oldest first, `completed` the last completed one, -1
where there is none. The acceptance arrays are described in scheduler.kernels.acceptance. work[S, C] are the prompt
tokens that each slot could consume on each distinct prompt capacity now.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler.kernels.acceptance import observe_lane, rebuild_observed, rebuild_slot, start_estimates
from scheduler.kernels.accounting import (
    NS_PER_MS,
    charge_interval,
    fastest_graphs,
    publish_lane,
    runnable,
    start_memory,
)
from scheduler.kernels.jit import (
    allocating,
    entry,
    float32s_2d,
    float32s_3d,
    float64,
    floats,
    floats_2d,
    floats_3d,
    floats_4d,
    floats_5d,
    frames_type,
    graphs_type,
    inner,
    int8s_2d,
    int64,
    ints,
    ints_2d,
    lane_rows_type,
    lanes_type,
    participants_type,
    policy_type,
    slots_type,
    void,
)
from scheduler.kernels.projection import project, view_as_is
from scheduler.layout import (
    COPY,
    DEAD,
    DID_EMIT,
    DID_END,
    DONE_INDEX,
    DONE_NEXT,
    FAILED,
    FREE,
    GOES_ON,
    OFFERED,
    REACHED,
    RETIRING,
    TERMINAL,
    UNSEEN,
)


@allocating
def fastest_tables(graphs, yields, work):
    """The tables of fastest_graphs for this catalog, filled."""
    rounds = np.zeros((2, yields.shape[3]))
    prompts = np.zeros((2, work.shape[1]))
    fastest_graphs(graphs, rounds, prompts)
    return rounds, prompts


@entry(
    void(
        int64, slots_type, graphs_type, policy_type, *(floats_5d, floats_2d, floats_3d, floats_3d, floats_4d, ints_2d)
    ),
)
def admit_slot(slot, slots, graphs, policy, estimates, prior, pool, survival, yields, work):
    """A new request in `slot`: acceptance from the prior or the pool, its first token memory, its view.

    The caller has filled the slot (memories NaN, last_visible_ns -1) and work[slot] before.
    """
    start_estimates(slot, policy[0]["pooled"], estimates, prior, pool)
    rebuild_slot(slot, slots[slot]["source"], estimates, survival, yields, policy[0]["alpha"])
    rounds, prompts = fastest_tables(graphs, yields, work)
    start_memory(slot, slots, policy[0]["newcomer"], yields, prior, work, rounds, prompts)
    view_as_is(slots[slot])


@entry(void(int64, int64, slots_type, policy_type, floats_5d, floats_3d, floats_4d))
def rebuild_acceptance(first_slot, end_slot, slots, policy, estimates, survival, yields):
    """Derived tables of the occupied slots in [first_slot, end_slot): alpha or a slot's source has changed."""
    for s in range(first_slot, end_slot):
        if slots[s]["stage"] != FREE:
            rebuild_slot(s, slots[s]["source"], estimates, survival, yields, policy[0]["alpha"])


@entry(int64(int64, float32s_3d, int8s_2d, lane_rows_type))
def confidence_fits(depth, confidence, did, cohort):
    """1 when every probability of confidence[2, S, D] that a lane of the cohort evaluated is from 0 to 1, else 0."""
    for i in range(cohort.shape[0]):
        if did[i, DID_END] == FAILED:
            continue
        for d in range(min(depth, cohort[i]["ceiling"] - 1)):
            for which in range(2):
                value = confidence[which, cohort[i]["slot"], d]
                if not (value >= 0.0 and value <= 1.0):
                    return 0
    return 1


@inner
def found_state(lane, slot):
    """DONE_NEXT as the completion finds the lane's slot."""
    state = 0
    if slot["retiring"] == 1:
        state += RETIRING
    if slot["cancelled"] == 1 or (slot["stage"] == TERMINAL and lane["ceiling"] > 0):
        state += DEAD
    if slot["source"] == COPY:
        state += OFFERED
    return state


@inner
def count_tokens(lane, did, slot, earned_ms):
    """Prompt and output tokens of a lane that neither failed nor is dead."""
    slot["consumed"] += lane["prompt_tokens"]
    slot["emitted"] += did[DID_EMIT]
    if did[DID_EMIT] > 0:
        slot["decode_earned_ms"] += earned_ms


@allocating
def start_missing(slots, graphs, policy, prior, yields, work):
    """First token memories of runnable slots without one, in slot order."""
    missing = False
    for s in range(slots.shape[0]):
        missing = missing or (runnable(slots[s]) and math.isnan(slots[s]["token_memory"]))
    if not missing:
        return
    rounds, prompts = fastest_tables(graphs, yields, work)
    for s in range(slots.shape[0]):
        if runnable(slots[s]) and math.isnan(slots[s]["token_memory"]):
            start_memory(s, slots, policy[0]["newcomer"], yields, prior, work, rounds, prompts)


@entry(
    int64(
        *(int64, int64, int64, float64, int64, int64, int64, int8s_2d, ints_2d),
        *(slots_type, graphs_type, policy_type, frames_type, lanes_type, participants_type),
        *(floats_5d, floats_2d, floats_3d, floats_3d, floats_4d, floats, ints_2d),
        *(floats_2d, float32s_2d),
    )
)
def complete_frame(
    frame, now_ns, interval_ns, earned_ms, optimistic, following, following_end_ns, did, done, slots, graphs, policy,
    frames, lanes, participants, estimates, prior, pool, survival, yields, decay, work, survival_rows, confidence,
):  # fmt: skip
    """Completes frames[frame]; did[lanes, 4] says what each lane did, validated. Fills done[2, lanes or more].

    Answers for how many lanes there is more to do than to publish tokens: a failed or finished one, a prompt or state
    lane, and where DONE_NEXT is not 0.

    interval_ns: the service interval, 0 to charge nothing. earned_ms: added to decode_earned_ms of every lane that
    emitted. optimistic: 1 keeps the lanes' optimistic yields up to date; only acceptance learning reads them, so pass
    whether its credit is full after this completion, and call rebuild_acceptance for all when it has just become so.
    following: the other frame in flight, -1 without, which is now expected to end at following_end_ns.
    survival_rows[S, D] (NaN: not evaluated) and the joint confidence[S, D] may be empty, (0, 0).

    Charges the participants, then by lane: acceptance, then counters (consumed, emitted, in_flight, pending, epoch);
    opens the frame's publications. Where there is more to do the caller then handles stages and ends, and calls
    start_memories; otherwise that has been done.
    """
    count = frames[frame]["lanes"]
    graph = graphs[frames[frame]["graph"]]
    for i in range(count):
        lane, slot = lanes[frame, i], slots[lanes[frame, i]["slot"]]
        done[DONE_INDEX, i] = slot["emitted"]
        done[DONE_NEXT, i] = found_state(lane, slot)
        participant = participants[frame, lane["slot"]]
        participant["served"] = 0.0
        participant["unpublished"] = 0
        if did[i, DID_END] != FAILED and done[DONE_NEXT, i] & DEAD == 0:
            participant["served"] = float(lane["prompt_tokens"] + did[i, DID_EMIT])
            participant["unpublished"] = 1 if did[i, DID_EMIT] > 0 else 0
    frames[frame]["completed_ns"] = now_ns
    frames[frame]["interval_ms"] = interval_ns / NS_PER_MS
    if following >= 0:
        frames[following]["expected_end_ns"] = following_end_ns
    if interval_ns > 0:
        charge_interval(slots, participants[frame], frames[frame]["interval_ms"], policy[0]["adaptation_ms"])
    more = 0
    for i in range(count):
        lane, slot = lanes[frame, i], slots[lanes[frame, i]["slot"]]
        slot["in_flight"] -= 1
        slot["pending"] -= lane["ceiling"]
        slot["epoch"] += 1
        if did[i, DID_END] != FAILED and done[DONE_NEXT, i] & DEAD == 0:
            if did[i, DID_EMIT] > 0:
                observe_lane(lane, did[i], graph, survival_rows, confidence, estimates, prior, pool, decay)
                alpha = policy[0]["alpha"]
                rebuild_observed(lane, slot["source"], optimistic, confidence, estimates, survival, yields, alpha)
            count_tokens(lane, did[i], slot, earned_ms)
        if slot["emitted"] >= slot["output_limit"]:
            done[DONE_NEXT, i] += REACHED
        if done[DONE_NEXT, i] != 0 or did[i, DID_END] != GOES_ON or lane["prompt_tokens"] > 0 or lane["ceiling"] == 0:
            more += 1
    if more == 0:
        start_missing(slots, graphs, policy, prior, yields, work)
    return more


@entry(void(*(slots_type, graphs_type, policy_type), *(floats_2d, floats_4d, ints_2d)))
def start_memories(slots, graphs, policy, prior, yields, work):
    """First token memories are tried again after each completion, once its lanes are closed."""
    start_missing(slots, graphs, policy, prior, yields, work)


@entry(void(ints, *(int64, int64, int64), *(slots_type, policy_type, frames_type, participants_type)))
def publish_lanes(visible_ns, first, second, completed, slots, policy, frames, participants):
    """Output of the completed frame became visible at visible_ns[S], UNSEEN where none did; then every slot's views.

    The caller may gather publications and call once, before anything reads the slots or their views, another
    completion, or a change of policy. A slot that was reused or cancelled meanwhile, or whose lane emitted nothing, is
    left alone. visible_ns is all UNSEEN afterwards.
    """
    adaptation_ms = policy[0]["adaptation_ms"]
    for s in range(slots.shape[0]):
        if visible_ns[s] == UNSEEN:
            continue
        interval_ms = frames[completed]["interval_ms"]
        publish_lane(slots[s], participants[completed, s], visible_ns[s], interval_ms, adaptation_ms)
        visible_ns[s] = UNSEEN
    project(first, second, completed, slots, frames, participants, adaptation_ms)
