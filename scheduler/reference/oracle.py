"""The exhaustive oracle: every legal cohort of every shape and pair of shapes, priced from the formula alone (S4, S5).

Nothing of the fast path nor of the plain planner is imported: only the vocabulary. Sums are exact (fsum, rounded once),
so the order of additions cannot matter. For up to about six requests: cohorts are enumerated as subsets.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from fractions import Fraction

from scheduler.policy import PolicyConfig
from scheduler.shapes import Allocation, GraphKind, GraphShape

PREFILLS = (GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
ROUNDS = (GraphKind.DECODE, GraphKind.SPECULATIVE)
INFERENCE = (*PREFILLS, *ROUNDS, GraphKind.MIXED)


@dataclasses.dataclass(frozen=True, slots=True)
class OracleRequest:
    """One runnable request in `stage` ("prefill", "decode", "init", ..., "terminal").

    Memories in ms per unit, 0 when missing. `age_ms`: of its visible output, None without; of a terminal request since
    it became one. `waited_ms`: since its arrival; requests of an age were admitted in slot order. `limit`: rows it may
    use at most, drafts included. `acceptance`, `forecast`: mean survival of drafts at depth 1, 2, ... `chain`:
    prerequisites after the current one and before inference.
    """

    request_id: str
    slot: int
    stage: str
    remaining_prompt: int
    token_memory: float
    delivery_memory: float
    age_ms: float | None
    last_served_tick: int
    waited_ms: float = 0.0
    limit: int = 1
    scored: bool = False
    acceptance: tuple[float, ...] = ()
    forecast: tuple[float, ...] = ()
    chain: tuple[GraphKind, ...] = ()

    def expected(self, rows: int, shape: GraphShape, alpha: float) -> float:
        """Expected output of `rows` rows under the shape's estimator."""
        means = self.forecast if shape.allocation is Allocation.DEVICE else self.acceptance
        return 1.0 + math.fsum(s**alpha for s in itertools.accumulate(means[: rows - 1], min))


@dataclasses.dataclass(frozen=True, slots=True)
class OracleState:
    """One decision: shapes in catalog order, durations (0 unknown), requests in slot order, and the policy."""

    shapes: tuple[GraphShape, ...]
    durations_ns: tuple[int, ...]
    requests: tuple[OracleRequest, ...]
    policy: PolicyConfig
    fixed_width: int = 0

    def usable(self, position: int) -> bool:
        """The shape is of the loaded generation mode and fixed width, or generates nothing."""
        shape = self.shapes[position]
        speculative = any(s.kind is GraphKind.SPECULATIVE for s in self.shapes)
        if shape.kind is GraphKind.DECODE:
            return not speculative
        if shape.kind is GraphKind.MIXED and shape.speculation_enabled is not speculative:
            return False
        wide = shape.kind in (GraphKind.SPECULATIVE, GraphKind.MIXED)
        return not (wide and self.fixed_width) or shape.target_width == self.fixed_width

    def in_stage(self, stage: str) -> list[OracleRequest]:
        """Requests in `stage`, in slot order."""
        return [r for r in self.requests if r.stage == stage]

    @property
    def measured(self) -> list[tuple[GraphShape, float]]:
        """Usable shapes of known duration, in ms."""
        known = [i for i, duration_ns in enumerate(self.durations_ns) if duration_ns and self.usable(i)]
        return [(self.shapes[i], self.durations_ns[i] / 1e6) for i in known]

    @property
    def reads_apart(self) -> bool:
        """No mixed graph holds all active decoders beside a prompt; or nobody decodes, and there are prefill graphs."""
        streams = len(self.active)
        beside = any(s.kind is GraphKind.MIXED and s.batch_capacity > streams for s, _ in self.measured)
        alone = any(s.kind is GraphKind.PREFILL for s, _ in self.measured)
        return alone if streams == 0 else not beside

    @property
    def reading_steps(self) -> list[tuple[int, float]]:
        """(capacity, ms of the fastest that holds as many tokens) of the smallest reading graphs, ascending."""
        kind, streams = GraphKind.PREFILL if self.reads_apart else GraphKind.MIXED, len(self.active)
        holding = [
            (s.prefill_capacity, s.batch_capacity, ms)
            for s, ms in self.measured
            if s.kind is kind and (kind is GraphKind.PREFILL or not streams or s.batch_capacity > streams)
        ]
        graphs = [(c, ms) for c, rows, ms in holding if rows == min(b for other, b, _ in holding if other == c)]
        return [(c, min(ms for other, ms in graphs if other >= c)) for c in sorted({c for c, _ in graphs})]

    @property
    def order(self) -> list[OracleRequest]:
        """Requests with prompt tokens left: by arrival under a token budget, else by age over tokens left."""
        waiting = [r for r in self.requests if r.remaining_prompt]

        def rank(r: OracleRequest) -> Fraction:
            return (Fraction(r.waited_ms) + Fraction(self.policy.prompt_rank_age_ms)) / r.remaining_prompt

        if self.policy.token_budget:
            return sorted(waiting, key=lambda r: (-r.waited_ms, r.slot))
        return sorted(waiting, key=lambda r: (-rank(r), -r.waited_ms, r.slot))

    @property
    def ordered(self) -> bool:
        """The policy reads prompts in that order."""
        return self.policy.token_budget > 0 or self.policy.prompt_wait_price > 0

    @property
    def prompt_limit(self) -> int:
        """Prompt tokens that the token budget leaves beside the decoding requests, at least a smallest chunk."""
        smallest = min((s.prefill_capacity for s in self.shapes if s.prefill_capacity), default=0)
        return max(smallest, self.policy.token_budget - len(self.in_stage("decode")))

    @property
    def active(self) -> list[OracleRequest]:
        """Active decoders: the prompt is whole and output is visible."""
        return [r for r in self.requests if r.stage != "terminal" and not r.remaining_prompt and r.age_ms is not None]

    def sigma_ms(self, terminal: bool) -> float:
        """The reference interval of the generation family, or of terminal retirement."""
        streams = len(self.in_stage("terminal")) if terminal else len(self.active)
        kinds = (GraphKind.TERMINAL_SNAPSHOT,) if terminal else (*ROUNDS, GraphKind.MIXED)
        best: tuple[float, float] | None = None
        for i, (shape, duration_ns) in enumerate(zip(self.shapes, self.durations_ns, strict=True)):
            if streams and duration_ns and shape.kind in kinds and self.usable(i):
                rows, duration_ms = min(shape.batch_capacity, streams), duration_ns / 1e6
                if best is None or duration_ms / rows < best[0]:
                    best = duration_ms / rows, streams * duration_ms / rows
        return best[1] if best else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """One request's part in a graph: rows or prompt tokens, and what it is worth there."""

    request: OracleRequest
    rows: int
    prompt: int
    token: float = 0.0
    delivery: float = 0.0
    relief: float = 0.0
    terminal: float = 0.0

    @property
    def value(self) -> float:
        """Its lane value."""
        return self.token + self.delivery + self.relief + self.terminal


@dataclasses.dataclass(frozen=True, slots=True)
class OracleChoice:
    """A legal choice. `case` names the comparison that it belongs to.

    `parts`: token, delivery, relief, terminal, wait cost, and the reliefs of waiting prompts and late streams. `key`:
    the total order, the smallest wins.
    """

    position: int
    following: int
    case: str
    lanes: tuple[Share, ...]
    following_lanes: tuple[Share, ...]
    known: bool
    score: float
    parts: tuple[float, ...]
    key: tuple[object, ...]

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots of the submitted graph."""
        return tuple(sorted(share.request.slot for share in self.lanes))

    @property
    def case_key(self) -> tuple[object, ...]:
        """The order within one comparison: the total order, but of equal pairs the one that does more comes first."""
        *before, slots = self.key
        return *before, -sum(share.rows + share.prompt for share in self.following_lanes), slots


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """Prompts in the order of reading: (slot, tokens left). `steps`: see OracleState.reading_steps."""

    price: float
    left: tuple[tuple[int, int], ...]
    steps: list[tuple[int, float]]

    @classmethod
    def of(cls, state: OracleState) -> Waiting:
        """Nothing waits at a price of 0."""
        left = tuple((r.slot, r.remaining_prompt) for r in state.order)
        return cls(state.policy.prompt_wait_price, left, state.reading_steps)

    def relief(self, read: dict[int, int]) -> float:
        """The price of the time that all prompts together wait less."""
        return self.price * math.fsum((self._all_ms({}), -self._all_ms(read))) if self.price and self.steps else 0.0

    def _all_ms(self, read: dict[int, int]) -> float:
        rest = [left - read.get(slot, 0) for slot, left in self.left]
        return math.fsum(self._ms(until) for own, until in zip(rest, itertools.accumulate(rest), strict=True) if own)

    def _ms(self, tokens: int) -> float:
        largest, largest_ms = self.steps[-1]
        whole = (tokens - 1) // largest
        last = tokens - whole * largest
        below = max((step for step in self.steps if step[0] < last), default=None)
        capacity, ms = min(step for step in self.steps if step[0] >= last)
        if below is not None:
            share = (last - below[0]) / (capacity - below[0])
            ms = math.fsum((below[1], share * (ms - below[1])))
        return math.fsum((whole * largest_ms, ms))


@dataclasses.dataclass(frozen=True, slots=True)
class Lateness:
    """The squares of what gaps exceed their target by. `ages_ms`: of active decoders by slot."""

    price: float
    sigma_ms: float
    target_ms: float
    ages_ms: dict[int, float]

    @classmethod
    def of(cls, state: OracleState, sigma_ms: float) -> Lateness:
        """The target is the step that reads the most prompt tokens per ms^(1 + decode_gap_weight)."""
        steps = state.reading_steps
        power = 1.0 + state.policy.decode_gap_weight
        target_ms = (
            max(steps, key=lambda step: (math.log(step[0]) - power * math.log(step[1]), -step[0]))[1] if steps else 0.0
        )
        if state.reads_apart:
            target_ms += sigma_ms
        ages_ms = {r.slot: r.age_ms for r in state.active if r.age_ms is not None}
        return cls(state.policy.decode_late_price, sigma_ms, target_ms, ages_ms if steps else {})

    def relief(self, answered: set[int], horizon_ms: float) -> float:
        """Half the price of every square that rises, less those that fall."""
        terms = []
        for slot, age in self.ages_ms.items():
            at_end = age + horizon_ms
            after = 0.0 if slot in answered else at_end
            terms += [self._square(at_end), -self._square(age)]
            terms += [self._square(after + self.sigma_ms), -self._square(after)]
            terms += [-self._square(age + self.sigma_ms), self._square(age)]
        return 0.0 - self.price / 2.0 * math.fsum(terms) if self.price else 0.0

    def _square(self, gap_ms: float) -> float:
        return max(0.0, gap_ms - self.target_ms) ** 2


class Pricing:
    """The formula of S4 over one state."""

    def __init__(self, state: OracleState) -> None:
        self.state, self.policy = state, state.policy
        self.sigma_ms, self.terminal_sigma_ms = state.sigma_ms(False), state.sigma_ms(True)
        terminals = len(state.in_stage("terminal"))
        prices = [self.policy.decode_age_price] * len(state.active) + [self.policy.terminal_age_price] * terminals
        self.wait_price = math.fsum(prices)
        self.active = {r.slot for r in state.active}
        self.waiting = Waiting.of(state)
        self.lateness = Lateness.of(state, self.sigma_ms)

    def decode(self, r: OracleRequest, shape: GraphShape, rows: int, horizon_ms: float) -> Share:
        """A decode lane with `rows` rows."""
        token = self.policy.output_token_value + self.policy.token_fairness * r.token_memory
        expected = r.expected(rows, shape, self.policy.adaptive_verification_alpha)
        age = r.age_ms if r.slot in self.active else None
        relief = 0.0 if age is None else self.policy.decode_age_price * self.sigma_ms * (age + horizon_ms)
        return Share(r, rows, 0, token * expected, self.policy.delivery_fairness * r.delivery_memory, relief)

    def prompt(self, r: OracleRequest, room: int) -> Share:
        """A prompt lane that fills `room` tokens if it can; one that becomes whole yields one output token."""
        price = self.policy.token_fairness * r.token_memory
        work = min(room, r.remaining_prompt)
        token = (1.0 + price) * work
        if work < r.remaining_prompt:
            return Share(r, 0, work, token)
        delivery = self.policy.delivery_fairness * r.delivery_memory
        return Share(r, 0, work, token + (self.policy.output_token_value + price), delivery)

    def terminal(self, r: OracleRequest, duration_ms: float) -> Share:
        """A terminal row."""
        assert r.age_ms is not None
        relief = self.policy.terminal_age_price * self.terminal_sigma_ms * (r.age_ms + duration_ms)
        return Share(r, 1, 0, terminal=self.policy.terminal_value + relief)

    def choice(
        self,
        position: int,
        case: str,
        lanes: Iterable[Share],
        following: int = -1,
        following_lanes: Iterable[Share] = (),
        horizon_ns: int | None = None,
        retired: int = 0,
    ) -> OracleChoice:
        """Prices a choice. `horizon_ns` is 0 for undivided work; the submitted graph's duration unless given."""
        lanes, following_lanes = tuple(lanes), tuple(following_lanes)
        duration_ns = self.state.durations_ns[position]
        horizon_ns = duration_ns if horizon_ns is None else horizon_ns
        earning = (*lanes, *following_lanes)
        token, delivery = math.fsum(s.token for s in earning), math.fsum(s.delivery for s in earning)
        relief, terminal = math.fsum(s.relief for s in earning), math.fsum(s.terminal for s in earning)
        reliefs = self._reliefs(position, lanes, following_lanes, horizon_ns / 1e6)
        score = math.fsum((token, delivery, relief, terminal, *reliefs))
        wait_cost = 0.0
        if horizon_ns:
            horizon, first = horizon_ns / 1e6, duration_ns / 1e6
            saved = retired * self.policy.terminal_age_price * (horizon * horizon - first * first)
            wait_cost = horizon / 2.0 * self.wait_price - saved / (2.0 * horizon)
            score = score / horizon - wait_cost
        key = self._key(position, following, lanes, following_lanes, horizon_ns, score)
        parts = token, delivery, relief, terminal, wait_cost, *reliefs
        return OracleChoice(position, following, case, lanes, following_lanes, horizon_ns > 0, score, parts, key)

    def _reliefs(
        self, position: int, lanes: tuple[Share, ...], following_lanes: tuple[Share, ...], horizon_ms: float
    ) -> tuple[float, float]:
        """(prompt_wait_relief, decode_late_relief) of the lanes of inference graphs."""
        inference = self.state.shapes[position].kind in INFERENCE
        shares = (*lanes, *following_lanes) if inference else following_lanes
        read = {share.request.slot: share.prompt for share in shares}
        answered = {share.request.slot for share in shares if not share.prompt}
        return self.waiting.relief(read), self.lateness.relief(answered, horizon_ms)

    def _key(
        self,
        position: int,
        following: int,
        lanes: tuple[Share, ...],
        following_lanes: tuple[Share, ...],
        horizon_ns: int,
        score: float,
    ) -> tuple[object, ...]:
        """The total order; the smallest wins."""
        shape = self.state.shapes[position]
        served = {share.request.slot: share.request.last_served_tick for share in (*lanes, *following_lanes)}
        physical = shape.physical_rows or shape.batch_capacity
        padding = physical - sum(share.rows + share.prompt for share in lanes)
        ticks, slots = sorted(served.values()), sorted(served)
        order = horizon_ns, -len(served), ticks, padding, physical, position, following, slots
        return horizon_ns > 0, -score, *order


def width_of(shape: GraphShape) -> int:
    """Rows that one lane can use."""
    return min(shape.draft_depth + 1, shape.target_width)


def is_ragged(shape: GraphShape) -> bool:
    """Full lanes do not fit P."""
    return shape.kind is GraphKind.SPECULATIVE and shape.target_rows < shape.batch_capacity * width_of(shape)


def subsets(shares: list[Share], most: int, least: int = 1) -> Iterator[tuple[Share, ...]]:
    """Every subset of `least` to `most` shares."""
    for size in range(least, min(most, len(shares)) + 1):
        yield from itertools.combinations(shares, size)


def unmeasured_duplicate(state: OracleState, position: int, share: Share) -> bool:
    """S6: an unmeasured prefill graph is barred where a smaller one of its kind consumes the same tokens."""
    shape = state.shapes[position]
    smaller = [s for s in state.shapes if s.kind is shape.kind and s.prefill_capacity < shape.prefill_capacity]
    same = any(min(s.prefill_capacity, share.request.remaining_prompt) == share.prompt for s in smaller)
    return state.durations_ns[position] == 0 and same
