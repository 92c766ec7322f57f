"""Journal records: what the engine writes down and the recorder turns into rows, spans and counters.

One frame of the journal holds the msgpack encoding of `list[Record]`: everything that one worker iteration
decided. Times named `_ns` are CLOCK_MONOTONIC; a run's RunStarted gives the wall time that belongs to one of
them, so a wall clock that steps during a run changes nothing. Fields are only ever added, at the end and with a
default: structs are encoded as arrays.
"""

from __future__ import annotations

import msgspec


class ShapeRecord(msgspec.Struct, array_like=True, frozen=True):
    """A GraphShape by value; kind and allocation by name."""

    kind: str
    batch_capacity: int
    draft_depth: int
    target_width: int
    target_rows: int
    prefill_capacity: int
    speculation_enabled: bool
    allocation: str
    prompt_rows: int = 1


class RunStarted(msgspec.Struct, tag="run", array_like=True, frozen=True):
    """An engine run begins. `wall_ns` (UTC, since the epoch) and `monotonic_ns` were read together."""

    run_id: str
    wall_ns: int
    monotonic_ns: int
    host: str
    version: str
    model: str
    device: str
    catalog_digest: str
    settings: dict[str, str | int | float | bool | None]
    shapes: list[ShapeRecord]
    policy_version: int


class RunEnded(msgspec.Struct, tag="end", array_like=True, frozen=True):
    """The run ended in order. reason: "stopped" or "failed: …"."""

    ended_ns: int
    reason: str


class PolicyApplied(msgspec.Struct, tag="policy", array_like=True, frozen=True):
    """The policy version took effect after `fence`. The first record of a run's version has fence 0."""

    version: int
    fence: int
    applied_ns: int
    coefficients: dict[str, float | int | str]


class RequestOptions(msgspec.Struct, array_like=True, frozen=True):
    """How a request wants to be answered; `choices` of the same prompt are requests of their own."""

    temperature: float
    top_p: float
    top_k: int
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    stream: bool
    choices: int


class RequestArrived(msgspec.Struct, tag="arrive", array_like=True, frozen=True):
    """A request reached the engine. `arrived_ns` is its HTTP arrival, before `tokenize_ns` of tokenizing.

    `trace_id`: the caller's, where it sent one, which `parent_span_id` tells, or the request's own. `trace_flags` and
    `trace_state`: what the caller said with it. `operation`: chat or text_completion.
    """

    request_id: str
    model: str
    arrived_ns: int
    tokenize_ns: int
    prompt_tokens: int
    max_tokens: int
    prefix_key: str | None
    trace_id: str | None
    parent_span_id: str | None
    operation: str = "text_completion"
    trace_flags: int = 1
    trace_state: str | None = None
    options: RequestOptions | None = None


class RequestAdmitted(msgspec.Struct, tag="admit", array_like=True, frozen=True):
    """The scheduler holds the request from now on."""

    request_id: str
    slot: int
    generation: int
    admitted_ns: int
    cached_tokens: int


class RequestFinished(msgspec.Struct, tag="finish", array_like=True, frozen=True):
    """The request's one terminal state. finish_reason: stop, length, abort or error.

    Phases in ns: queue (engine arrival to the commit of its first graph), prefill (to its first output),
    decode (to its last output), publish (to the hand-over of the last message). With tokenize_ns and the hop
    from the service, which counts as queue, they add up to finished_ns - arrived_ns.
    """

    request_id: str
    finish_reason: str
    error: str | None
    first_output_ns: int | None
    finished_ns: int
    output_tokens: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    publish_ns: int
    preemptions: int = 0


class LaneRecord(msgspec.Struct, array_like=True, frozen=True):
    """One lane at commit. Prices and values carry the plan's common scale; ages and sigma are ms."""

    request_id: str
    slot: int
    generation: int
    role: str
    prompt_tokens: int
    query_length: int
    ceiling: int
    proposal_source: str | None
    token_price: float
    delivery_price: float
    age_ms: float
    sigma_ms: float
    expected_tokens: float
    terminal_value: float
    lane_value: float
    offered_tokens: int = 0


class PartsRecord(msgspec.Struct, array_like=True, frozen=True):
    """PlanParts by value."""

    token_value: float
    delivery_value: float
    age_relief: float
    terminal_relief: float
    wait_cost: float
    horizon_ms: float | None
    prompt_wait_relief: float = 0.0
    decode_late_relief: float = 0.0


class AlternativeRecord(msgspec.Struct, array_like=True, frozen=True):
    """A runner-up; `score` is its value rate, or its work where score_kind is "work"."""

    rank: int
    shape: ShapeRecord
    score_kind: str
    score: float
    parts: PartsRecord
    log_scale: float
    following_shape: str | None
    following_kind: str | None
    active_rows: int
    request_ids: list[str]
    selected_cost_ns: int
    cost_state: str
    barred_by: str


class PlanCommitted(msgspec.Struct, tag="plan", array_like=True, frozen=True):
    """A plan was committed at `fence`. Ledgers in ms, before this plan's own charge."""

    fence: int
    committed_ns: int
    shape: ShapeRecord
    reason: str
    score_kind: str
    score: float
    log_scale: float
    parts: PartsRecord
    selected_cost_ns: int
    observation_age_ns: int | None
    cost_state: str
    active_decoders: int
    logical_rows: int
    margin: float | None
    candidates: int
    exploration_credit_ms: float
    timing_credit_ms: float
    timing_spent_ms: float
    timing_ordinary_ms: float
    acceptance_credit_ms: float
    acceptance_spent_ms: float
    acceptance_ordinary_ms: float
    discovery_ms: float
    queue_depth: int
    frame_slot: int
    policy_version: int
    plan_us: float
    following_kind: str | None
    following_shape: str | None
    lanes: list[LaneRecord]
    alternatives: list[AlternativeRecord]


class LaneOutcome(msgspec.Struct, array_like=True, frozen=True):
    """What lane number `lane` of a completed plan did. `committed_tokens` are output tokens.

    Of `draft_tokens` produced for it `offered_tokens` were verified, and `accepted_tokens` of these were right.
    """

    lane: int
    consumed_prompt_tokens: int
    committed_tokens: int
    accepted_tokens: int
    offered_tokens: int = 0
    draft_tokens: int = 0


class PlanCompleted(msgspec.Struct, tag="done", array_like=True, frozen=True):
    """The plan's end. outcome: completed, failed or abandoned. `estimate_ns`: the graph's estimate afterwards."""

    fence: int
    started_ns: int
    completed_ns: int
    outcome: str
    device_ns: int
    wall_ns: int
    exposed_delivery_ns: int
    estimate_ns: int
    lanes: list[LaneOutcome]


class OutputPublished(msgspec.Struct, tag="publish", array_like=True, frozen=True):
    """Visible output of `fence` was handed to the service for these lane numbers."""

    fence: int
    published_ns: int
    lanes: list[int]


class SchedulerCalls(msgspec.Struct, tag="calls", array_like=True, frozen=True):
    """Calls that changed the scheduler, in order (see service.journal.calls); the next ones follow without a hole.

    `first_call`: how many entries of the run's decision log come before these `calls`. The frames that they commit
    are `first_fence` to `last_fence`, none where that is the smaller. `logged_ns`: when they were gathered.
    """

    first_call: int
    calls: int
    first_fence: int
    last_fence: int
    logged_ns: int
    data: bytes


class SchedulerCheckpoint(msgspec.Struct, tag="state", array_like=True, frozen=True):
    """The scheduler's whole state behind `last_fence`, RequestScheduler.checkpoint() compressed by zlib.

    It takes one entry of the decision log, number `call`.
    """

    call: int
    last_fence: int
    logged_ns: int
    data: bytes


class PackedPlan(msgspec.Struct, tag="pack", array_like=True, frozen=True):
    """PlanCommitted as the engine writes it (see service.journal.packed).

    `layout` says what the rows in `lanes`, `details` and `candidates` hold; `candidates` begins with the submitted one.
    `slots`: int64, the submitted slots of each candidate, one after another; `request_ids`: whose each of them is, in
    the order in which slots first appear. `shapes`: encoded, list[packed.GraphEntry] of every graph that is named.
    `ledgers`: LedgerBalances in the order of its fields. `priced`: the plan's `candidates`.
    """

    layout: int
    fence: int
    committed_ns: int
    planned_ns: int
    plan_ns: int
    reason: int
    frame_slot: int
    queue_depth: int
    policy_version: int
    log_scale: float
    margin: float | None
    priced: int
    active_decoders: int
    exploration_credit_ns: int
    ledgers: tuple[float, float, float, float, float, float, float]
    shapes: msgspec.Raw
    request_ids: list[str]
    slots: bytes
    lanes: bytes
    details: bytes
    candidates: bytes


Record = (
    RunStarted
    | RunEnded
    | PolicyApplied
    | RequestArrived
    | RequestAdmitted
    | RequestFinished
    | PlanCommitted
    | PlanCompleted
    | OutputPublished
    | SchedulerCalls
    | SchedulerCheckpoint
    | PackedPlan
)
"""What frames hold. Readers see PlanCommitted in place of PackedPlan, unless they ask for packed plans."""

encoder = msgspec.msgpack.Encoder()
decoder = msgspec.msgpack.Decoder(list[Record])
