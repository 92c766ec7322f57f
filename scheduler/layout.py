"""The scheduler's state as arrays: what kernels read and write. Names here are the vocabulary of every kernel.

Dimensions: S request slots, G shapes in catalog order, D largest draft depth of the catalog (at least 1), C distinct
prompt capacities, N candidates. Integers are int64, times ns, values float64 in ms; NaN stands for a missing memory.
Indexed as `slots[i]["stage"]`, which compiled and plain Python read alike.
"""

from __future__ import annotations

import numpy as np

# Stages of a slot (specification "Requests").
FREE, INIT, RESTORE, VISION, PREFILL, DECODE, SNAPSHOT, TERMINAL, WAITING = range(9)

# Graph kinds, in the order of scheduler.shapes.GraphKind.
(
    KIND_INIT,
    KIND_RESTORE,
    KIND_SNAPSHOT,
    KIND_TERMINAL_SNAPSHOT,
    KIND_VISION,
    KIND_PREFILL,
    KIND_SCORED_PREFILL,
    KIND_DECODE,
    KIND_SPECULATIVE,
    KIND_MIXED,
) = range(10)

# Draft sources and estimators (S3).
NO_SOURCE, LEARNED, COPY = -1, 0, 1
ACCEPTANCE, FORECAST = 0, 1
MEAN, WEIGHT = 0, 1
FIRST, LATER = 0, 1
"""Of the pooled acceptance: the first draft, and one whose predecessor was accepted."""
YIELD_RAW, YIELD_SCORE, YIELD_OPTIMISTIC = 0, 1, 2

# Allocation of a ragged shape, in the order of scheduler.shapes.Allocation.
ALLOCATE_NONE, ALLOCATE_HOST, ALLOCATE_DEVICE = 0, 1, 2

# Why a candidate may not be chosen.
NOT_BARRED, PRUNED, UNMEASURED, PAGES, CADENCE, TOKEN_BUDGET = range(6)

UNBOUNDED = 1 << 40
"""Drafts of a learned source, pages without a pool: more than any shape can use."""

_I, _F = np.int64, np.float64

SLOT = np.dtype(
    [
        ("stage", _I),  # FREE .. WAITING
        ("generation", _I),
        ("cancelled", _I),  # 1: never selected again
        ("retiring", _I),  # 1: preempted; TERMINAL once its last frame has completed
        ("scored", _I),  # 1: its prompt runs on SCORED_PREFILL
        ("prompt_tokens", _I),
        ("consumed", _I),  # prompt tokens in the cache
        ("segment_end", _I),  # where the next prefill chunk must stop at the latest
        ("emitted", _I),  # committed output tokens
        ("output_limit", _I),
        ("in_flight", _I),  # frames that hold a lane of it, 0 to 2
        ("pending", _I),  # sum of the ceilings of those lanes
        ("source", _I),  # NO_SOURCE, LEARNED, COPY: what its drafts come from now
        ("drafts", _I),  # drafts available now; UNBOUNDED for LEARNED, 0 without a source or with grammar
        ("feedback", _I),  # 1: a lane in flight must complete first (grammar, host_stop, host_fed, copy offer)
        ("images_left", _I),  # images of the active window that VISION has not served
        ("window", _I),  # 1: the SNAPSHOT it waits for is a window boundary
        ("window_images", _I),  # images of the next window, when `window`
        ("admitted", _I),  # admission number
        ("arrived_ns", _I),  # when it began to wait: its admission less what it had waited before
        ("blocks", _I),  # 1: its prompt has atomic spans or images
        ("last_served_tick", _I),
        ("epoch", _I),
        ("last_visible_ns", _I),  # -1 before the first visible output
        ("terminal_since_ns", _I),
        ("pages_held", _I),
        ("token_memory", _F),
        ("delivery_memory", _F),
        ("view_token_memory", _F),  # projected over the queue (S10), as decisions see it
        ("view_delivery_memory", _F),
        ("view_visible_ns", _I),
        ("decode_earned_ms", _F),
    ],
    align=True,
)

GRAPH = np.dtype(
    [
        ("kind", _I),
        ("batch", _I),  # B
        ("depth", _I),  # D
        ("width", _I),  # W
        ("rows", _I),  # P
        ("prompt", _I),  # C, 0 without a prompt row
        ("prompt_rows", _I),  # R: prompts that a MIXED graph carries at most
        ("capacity_index", _I),  # of C among the distinct capacities, ascending; -1 without
        ("lane_width", _I),  # min(D+1, W): rows that one lane can use
        ("ragged", _I),  # 1: P < B * lane_width
        ("allocation", _I),
        ("estimator", _I),  # FORECAST for device allocation, else ACCEPTANCE
        ("usable", _I),  # 0: of the other generation mode, or of another fixed width
        ("below", _I),  # capacity index of the next smaller C of the same kind, -1 without (the catalog sets it)
        ("physical", _I),  # physical rows: P + C, or B for state kinds and VISION
        ("duration_ns", _I),  # 0 while unknown
        ("observed_ns", _I),  # last valid sample, -1 while unknown
        ("attempted_ns", _I),  # last committed refresh, -1 before
        ("log_ms", _F),  # natural logarithm of the duration in ms, 0.0 while unknown: decisions take none
        ("log_prompt", _F),  # of C, 0.0 without a prompt row
    ],
    align=True,
)

POLICY = np.dtype(
    [
        ("output_token_value", _F),
        ("token_fairness", _F),
        ("delivery_fairness", _F),
        ("decode_age_price", _F),
        ("terminal_value", _F),
        ("terminal_age_price", _F),
        ("adaptation_ms", _F),
        ("alpha", _F),
        ("ttl_ns", _I),
        ("deterministic", _I),  # 1: solo chunking
        ("fixed_width", _I),  # 0: adaptive verification
        ("newcomer", _I),  # index in scheduler.policy.NEWCOMER_MEMORIES
        ("prompt_wait_price", _F),
        ("prompt_rank_age_ms", _F),
        ("decode_gap_weight", _F),
        ("decode_late_price", _F),
        ("cadence", _I),  # 1: decode_cadence is on
        ("token_budget", _I),  # tokens, 0 without
        ("pooled", _I),  # 1: acceptance_model is pooled
    ],
    align=True,
)

# Inputs of one decision that are not in the other arrays; the kernel writes the lower half.
DECISION = np.dtype(
    [
        ("now_ns", _I),
        ("start_ns", _I),  # now, or the queue's expected end
        ("queue_depth", _I),  # frames in flight, 0 or 1
        ("free_pages", _I),  # UNBOUNDED when no resources were set
        ("page_tokens", _I),
        ("free_snapshot_rows", _I),
        ("timing_full", _I),  # 1: full timing_refresh credit and no open episode
        ("acceptance_full", _I),
        # written by the kernel
        ("exponent", _I),  # e of the common scale 2^-e
        ("prompt_value", _F),  # from here on: scaled
        ("output_value", _F),
        ("terminal_value", _F),
        ("token_fairness", _F),
        ("delivery_fairness", _F),
        ("decode_age_price", _F),
        ("terminal_age_price", _F),
        ("prompt_wait_price", _F),
        ("half_late_price", _F),  # decode_late_price / 2
        ("wait_price", _F),
        ("sigma_ms", _F),
        ("late", _I),  # 1: lateness has a price and a target
        ("gap_ms", _F),  # that target of a gap between outputs, G
        ("late_horizon_ms", _F),  # the horizon of the amounts SERVED and UNSERVED, -1.0 before
        ("late_all", _F),  # at that horizon the sum over all active decoders, each of them served
        ("late_none", _F),  # likewise, none of them served
        ("late_marks", _I),  # candidates whose lateness was added up lane by lane
        ("terminal_sigma_ms", _F),
        ("decoders", _I),  # active decoders, K
        ("terminals", _I),  # runnable slots in TERMINAL
        ("priced", _I),  # the plan's `candidates`
        ("found", _I),  # rows of the candidate table in use
        ("pooled", _I),  # entries of the cohort pool in use
        ("runnable", _I),  # slots that are runnable
        ("waiting", _I),  # 1: a selectable lane must complete first (feedback, in flight)
        ("solo_graph", _I),  # graph of the solo chunking rule, -1 where it does not apply
        ("winner", _I),  # index of the ordinary winner, -1 without one
        ("chosen", _I),  # index of what is submitted: the winner or a probe, -1 without or when it must wait
        ("runner_up", _I),  # best other eligible candidate of the same score kind, -1 without
        ("runner_up_score", _F),
        ("alternatives", _I),  # alternatives recorded, 0 to 4
        ("recorded_slots", _I),  # submitted slots of all that is recorded
        ("reason", _I),  # in the order of scheduler.plans.Reason
        ("overflow", _I),  # 1: the candidate table was too small; the caller enlarges it and calls again
    ],
    align=True,
)

CANDIDATE = np.dtype(
    [
        ("graph", _I),
        ("following", _I),  # graph index, -1 without
        ("known", _I),  # 0: score is undivided work
        ("barred", _I),  # NOT_BARRED .. TOKEN_BUDGET
        ("needs_empty", _I),  # 1: only in an empty window (S10)
        ("lanes", _I),  # lanes of the submitted graph
        ("following_lanes", _I),
        ("first", _I),  # of the cohort pool: the submitted graph's lanes in summing order, its prompts last
        ("following_first", _I),  # likewise of the following graph
        ("served", _I),  # distinct requests of both graphs
        ("prompts", _I),  # prompt lanes of the submitted graph, the last ones of its stretch of the pool
        ("prompt_tokens", _I),  # their sum
        ("following_prompts", _I),  # likewise of the following graph
        ("horizon_ns", _I),  # H; 0 when unknown
        ("horizon_ms", _F),
        ("score", _F),
        ("token_value", _F),
        ("delivery_value", _F),
        ("age_relief", _F),
        ("terminal_relief", _F),
        ("prompt_wait_relief", _F),
        ("decode_late_relief", _F),
        ("wait_cost", _F),
        ("logical_rows", _I),
        ("physical_rows", _I),
        ("hash", _I),  # of cohorts and rows, to find equal ones quickly; pruning sets it
        ("selected_ns", _I),  # recorded candidates only: the submitted graph's duration, its last sample's time
        ("observed_ns", _I),
        ("cost_state", _I),  # recorded candidates only, in the order of scheduler.plans.CostState
    ],
    align=True,
)

# Per slot, computed once per decision from the slot, the policy and the clock. Prices are scaled.
VIEW = np.dtype(
    [
        ("selectable", _I),  # 1: a decoding lane that may be chosen (stage DECODE, limit >= 1)
        ("limit", _I),  # rows it may use now, drafts included: min(limit, 1 + drafts)
        ("left", _I),  # output_limit - emitted - pending
        ("active", _I),  # active decoder
        ("age_ms", _F),
        ("token_price", _F),
        ("delivery_price", _F),
        ("age_price", _F),  # decode_age_price if active, else 0.0
        ("terminal", _I),  # 1: a terminal row that may be chosen (stage TERMINAL, not in flight)
        ("terminal_age_ms", _F),
        ("prompt_price", _F),  # prompt_value + token_price
        ("output_price", _F),  # output_value + token_price
        ("age_weight", _F),  # age_price * sigma of the generation family
        ("terminal_weight", _F),  # terminal_age_price * sigma of TERMINAL_SNAPSHOT
        ("waits", _I),  # 1: in flight, and its lane there must complete first
    ],
    align=True,
)

# What PlanLane shows of a lane beyond LANE, in the same order.
LANE_DETAIL = np.dtype(
    [
        ("role", _I),  # in the order of scheduler.plans.Role
        ("token_price", _F),
        ("delivery_price", _F),
        ("age_ms", _F),
        ("sigma_ms", _F),
        ("value", _F),
        ("terminal_value", _F),
    ],
    align=True,
)

RECORDED = 5
"""The submitted candidate and the four alternatives that are recorded with it."""


FRAMES = 3
"""Frame records: two in flight and the last completed one, whose output may still be published (S9, S10)."""

# One lane of a plan, in slot order. The plan owns such an array; commit copies it into the frame.
LANE = np.dtype(
    [
        ("slot", _I),
        ("generation", _I),
        ("epoch", _I),  # of the request when the plan was made
        ("rows", _I),  # query_length
        ("ceiling", _I),  # output tokens that it may commit at most
        ("prompt_tokens", _I),  # prompt tokens it consumes
        ("source", _I),  # what its drafts come from; NO_SOURCE without drafts
        ("expected_tokens", _F),
    ],
    align=True,
)

# A frame: a committed plan. Frame records are reused, their order is state.queue.
FRAME = np.dtype(
    [
        ("fence", _I),
        ("graph", _I),
        ("lanes", _I),
        ("reason", _I),  # in the order of scheduler.plans.Reason
        ("known", _I),  # 1: its cost was known at commit
        ("selected_cost_ns", _I),
        ("queued", _I),  # 1: another frame was in flight at its commit
        ("committed_ns", _I),
        ("expected_end_ns", _I),
        ("completed_ns", _I),  # of the last completed frame
        ("interval_ms", _F),  # service interval that was charged, 0.0 when none was
    ],
    align=True,
)

# A slot's part in a frame (S9), one per slot and frame.
PARTICIPANT = np.dtype(
    [
        ("generation", _I),  # of the slot at commit; 0: no participant
        ("unpublished", _I),  # completed frame: 1: it emitted output that is not visible yet; 2: visible now
        ("open", _I),  # completed frame: 1: the first publication has not been credited yet
        ("token_rate", _F),  # frozen normalizers, units per ms; NaN missing
        ("delivery_rate", _F),
        ("delivery_before", _F),  # completed frame: delivery memory before the interval
        ("served", _F),  # prompt and output tokens of its lane: expected while in flight, then what it did
        ("delivers", _I),  # 1: its lane expects output
    ],
    align=True,
)

# What a completed lane did: columns of an int8 array [lanes, 4] in lane order (no lane has over 64 tokens).
DID_EMIT, DID_ACCEPT, DID_OFFER, DID_END = range(4)
DID_COLUMNS = 4
FAILED, GOES_ON, FINISHED = range(3)
"""Values of DID_END. A failed lane teaches and commits nothing; the program of a finished one ended its answer."""

# What the kernel answers of each lane: rows of an int64 array [2, lanes].
DONE_INDEX, DONE_NEXT = range(2)
"""DONE_INDEX: output tokens that the request had before. DONE_NEXT: a sum of the following numbers."""
REACHED, RETIRING, DEAD, OFFERED = 1, 2, 4, 8
"""REACHED: its output limit. RETIRING: it was being preempted. DEAD: its request had been cancelled or had ended, so
nothing was counted. OFFERED: a copy offer stood, which ends with this completion."""


UNSEEN = -(2**63)
"""Stands for no time among times of publications."""


def zeros(dtype: np.dtype[np.void], count: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """`count` records, all 0."""
    return np.zeros(count, dtype=dtype)
