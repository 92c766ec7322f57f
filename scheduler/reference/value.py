"""Lane values and scores of one decision (specification S4): scaled prices, ages, parts and their sums."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

from scheduler.plans import PlanParts
from scheduler.reference.decision import Decision, Graph
from scheduler.reference.extents import lane_width, uses_forecast
from scheduler.reference.lateness import Lateness
from scheduler.reference.residents import Resident, Stage
from scheduler.reference.waiting import WaitingCost, waiting_prompts
from scheduler.shapes import GraphKind

LN2 = math.log(2.0)
FREE_EXPONENT = 64
"""Products up to 2**64 are left alone: ordinary decisions then have factor 1 and stay comparable."""
NO_EXPONENT = -(10**6)


class Parts(NamedTuple):
    """The parts of a lane's value, or sums of them, scaled. `late`: what serving a stream spares it of lateness."""

    token: float
    delivery: float
    relief: float
    terminal: float
    late: float = 0.0

    @property
    def work(self) -> float:
        """The four parts that a candidate sums over its lanes. Its share of lateness is not the sum of theirs."""
        return ((self.token + self.delivery) + self.relief) + self.terminal

    @property
    def value(self) -> float:
        """The lane value v."""
        return self.work + self.late

    def times(self, factor: float) -> Parts:
        """Every part multiplied by `factor`."""
        return Parts(*(part * factor for part in self))


NOTHING = Parts(0.0, 0.0, 0.0, 0.0)


def total_of(lanes: Iterable[Parts]) -> Parts:
    """The sums of the parts, left to right from 0.0."""
    token = delivery = relief = terminal = late = 0.0
    for parts in lanes:
        token += parts.token
        delivery += parts.delivery
        relief += parts.relief
        terminal += parts.terminal
        late += parts.late
    return Parts(token, delivery, relief, terminal, late)


class Reliefs(NamedTuple):
    """What a candidate as a whole spares waiting prompts and late streams, scaled."""

    prompt_wait: float
    decode_late: float


@dataclasses.dataclass(frozen=True, slots=True)
class Lane:
    """One runnable resident as a decision sees it. Prices are scaled; age and sigma are ms, 0.0 where none counts.

    `yields[forecast]`, `survival[forecast]`: of its active source, by rows and by depth - 1.
    """

    resident: Resident
    slot: int
    tick: int
    token_price: float
    delivery_price: float
    age_price: float
    age_ms: float
    sigma_ms: float
    yields: tuple[list[float], list[float]]
    survival: tuple[list[float], list[float]]


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What all candidates of one decision share. Coefficients are scaled by 2**-exponent.

    `stages`: the lanes that a plan may use, by stage, in slot order. `frontiers[forecast]`: see `_frontier`.
    `places`: of waiting prompts in the order of reading, by slot, None where the policy orders none.
    """

    decision: Decision
    exponent: int
    prompt_value: float
    output_value: float
    terminal_value: float
    terminal_age_price: float
    terminal_sigma_ms: float
    wait_price: float
    active_decoders: int
    stages: dict[Stage, list[Lane]]
    frontiers: tuple[list[tuple[int, int]], list[tuple[int, int]]]
    places: dict[int, int] | None
    waiting: WaitingCost
    lateness: Lateness

    @classmethod
    def of(cls, decision: Decision) -> Context:
        """Freezes prices, ages and reference intervals of the runnable residents at the decision's start."""
        policy = decision.policy
        exponent = _common_exponent(decision)
        active = sum(r.active_decoder for r in decision.residents)
        terminals = [r for r in decision.residents if r.stage is Stage.TERMINAL]
        terminal_graphs = [g for g in decision.graphs if g.shape.kind is GraphKind.TERMINAL_SNAPSHOT]
        sigma_ms = _sigma_ms(generation_graphs(decision), active)
        terminal_sigma_ms = _sigma_ms(terminal_graphs, len(terminals))
        lanes = [_lane(r, decision, exponent, sigma_ms, terminal_sigma_ms) for r in decision.residents]
        terminal_age_price = math.ldexp(policy.terminal_age_price, -exponent)
        wait_price = 0.0
        for lane in lanes:
            wait_price += terminal_age_price if lane.resident.stage is Stage.TERMINAL else lane.age_price
        order = waiting_prompts(decision)
        ages_ms = {lane.slot: lane.age_ms for lane in lanes if lane.resident.active_decoder}
        return cls(
            decision=decision,
            exponent=exponent,
            prompt_value=math.ldexp(1.0, -exponent),
            output_value=math.ldexp(policy.output_token_value, -exponent),
            terminal_value=math.ldexp(policy.terminal_value, -exponent),
            terminal_age_price=terminal_age_price,
            terminal_sigma_ms=terminal_sigma_ms,
            wait_price=wait_price,
            active_decoders=active,
            stages=_selectable(lanes, decision),
            frontiers=(_frontier(lanes, False), _frontier(lanes, True)),
            places=None if order is None else {r.slot: place for place, r in enumerate(order)},
            waiting=WaitingCost.of(decision, exponent, order, active),
            lateness=Lateness.of(decision, exponent, sigma_ms, ages_ms),
        )

    @property
    def decoding(self) -> list[Lane]:
        """Selectable lanes in stage DECODE, in slot order."""
        return self.stages[Stage.DECODE]

    @property
    def ordered(self) -> bool:
        """The policy says in which order prompts are read."""
        return self.places is not None

    def by_order(self, lanes: list[Lane]) -> list[Lane]:
        """Lanes of waiting prompts in the order of reading; as they are where the policy orders none."""
        places = self.places
        return lanes if places is None else sorted(lanes, key=lambda lane: places[lane.slot])

    @property
    def serves_all(self) -> bool:
        """The policy asks that no decoding lane give way to a prompt."""
        policy = self.decision.policy
        return policy.decode_cadence == "on" or policy.token_budget > 0

    @property
    def prompt_capacities(self) -> set[int]:
        """The prompt capacities of the catalog."""
        return {g.shape.prefill_capacity for g in self.decision.graphs if g.shape.prefill_capacity}

    @property
    def prompt_limit(self) -> int | None:
        """Prompt tokens that a token budget leaves to one graph, at least a smallest chunk; None without a budget."""
        budget = self.decision.policy.token_budget
        return max(min(self.prompt_capacities, default=0), budget - len(self.decoding)) if budget else None

    def rows(self, lane: Lane, graph: Graph) -> int:
        """Rows that a decoding lane uses: min(D + 1, W, limit, 1 + drafts)."""
        return lane.resident.rows(lane_width(graph.shape))

    def decode_parts(self, lane: Lane, graph: Graph, rows: int, horizon_ms: float) -> Parts:
        """A decoding lane with `rows` rows whose output arrives `horizon_ms` after the decision's start."""
        return self.decode_parts_with(lane, lane.yields[uses_forecast(graph.shape)][rows], horizon_ms)

    def decode_parts_with(self, lane: Lane, expected: float, horizon_ms: float) -> Parts:
        """The same for a given number of expected tokens."""
        token = (self.output_value + lane.token_price) * expected
        relief = lane.age_price * lane.sigma_ms * (lane.age_ms + horizon_ms)
        return Parts(token, lane.delivery_price, relief, 0.0, self.lateness.lane_value(lane.slot, horizon_ms))

    def prompt_parts(self, lane: Lane, work: int) -> Parts:
        """A prompt lane that consumes `work` tokens, and yields one output token if that makes its prompt whole."""
        token = (self.prompt_value + lane.token_price) * work
        if not lane.resident.finishes(work):
            return Parts(token, 0.0, 0.0, 0.0)
        return Parts(token + (self.output_value + lane.token_price), lane.delivery_price, 0.0, 0.0)

    def terminal_parts(self, lane: Lane, duration_ms: float) -> Parts:
        """A terminal row that the first graph retires."""
        relief = self.terminal_age_price * self.terminal_sigma_ms * (lane.age_ms + duration_ms)
        return Parts(0.0, 0.0, 0.0, self.terminal_value + relief)

    def score(
        self, sums: Parts, horizon_ms: float | None, reliefs: Reliefs, retired: int = 0, first_ms: float = 0.0
    ) -> Scored:
        """The value rate over a known horizon, else (None) the undivided work.

        `retired`: terminal rows that the first graph of a pair, of `first_ms`, relieves of waiting for the second.
        """
        four = sums.token, sums.delivery, sums.relief, sums.terminal
        work = (sums.work + reliefs.prompt_wait) + reliefs.decode_late
        if horizon_ms is None:
            return Scored(work, PlanParts(*four, 0.0, None, *reliefs))
        wait_cost = horizon_ms / 2.0 * self.wait_price
        if retired:
            squares = horizon_ms * horizon_ms - first_ms * first_ms
            wait_cost -= float(retired) * self.terminal_age_price * squares / (2.0 * horizon_ms)
        return Scored(work / horizon_ms - wait_cost, PlanParts(*four, wait_cost, horizon_ms, *reliefs))

    def comparison(self, sums: Parts, horizon_ms: float | None) -> float:
        """What the cohorts of one decode graph are compared by: lateness as the sum of what each lane spares."""
        return sums.value if horizon_ms is None else sums.value / horizon_ms - horizon_ms / 2.0 * self.wait_price


class Scored(NamedTuple):
    """A score and the parts that it was made of."""

    score: float
    parts: PlanParts


def generation_graphs(decision: Decision) -> list[Graph]:
    """Usable generation and MIXED shapes, in catalog order."""
    kinds = (GraphKind.DECODE, GraphKind.SPECULATIVE, GraphKind.MIXED)
    return [graph for graph in decision.graphs if graph.usable and graph.shape.kind in kinds]


def _lane(r: Resident, decision: Decision, exponent: int, sigma_ms: float, terminal_sigma_ms: float) -> Lane:
    policy = decision.policy
    active, terminal = r.active_decoder, r.stage is Stage.TERMINAL
    return Lane(
        resident=r,
        slot=r.slot,
        tick=r.last_served_tick,
        token_price=math.ldexp(policy.token_fairness, -exponent) * (r.view_token_memory or 0.0),
        delivery_price=math.ldexp(policy.delivery_fairness, -exponent) * (r.view_delivery_memory or 0.0),
        age_price=math.ldexp(policy.decode_age_price, -exponent) if active else 0.0,
        age_ms=_age_ms(r, decision.start_ns),
        sigma_ms=sigma_ms if active else terminal_sigma_ms if terminal else 0.0,
        yields=(_table(r, False), _table(r, True)),
        survival=(r.survival(False), r.survival(True)),
    )


def _selectable(lanes: list[Lane], decision: Decision) -> dict[Stage, list[Lane]]:
    """Lanes that a plan may use in their stage. A window's snapshot needs a free snapshot row (S4)."""
    found: dict[Stage, list[Lane]] = {stage: [] for stage in Stage}
    for lane in lanes:
        stage = lane.resident.stage
        rowless = stage is Stage.SNAPSHOT and lane.resident.window and decision.free_snapshot_rows < 1
        if lane.resident.selectable and not rowless:
            found[stage].append(lane)
    return found


def _table(resident: Resident, forecast: bool) -> list[float]:
    return resident.estimates.derived(resident.source, forecast).score


def _frontier(lanes: list[Lane], forecast: bool) -> list[tuple[int, int]]:
    """(slot, depth) of every draft position: survival descending, depth ascending, slot ascending (S4)."""
    decoding = [lane for lane in lanes if lane.resident.stage is Stage.DECODE]
    entries = [(-s, d, lane.slot) for lane in decoding for d, s in enumerate(lane.survival[forecast], start=1)]
    return [(slot, depth) for _, depth, slot in sorted(entries)]


def _age_ms(resident: Resident, start_ns: int) -> float:
    """Age of the visible output of an active decoder, or of a terminal row; never negative, 0.0 for others."""
    if resident.stage is Stage.TERMINAL:
        return max(0.0, (start_ns - resident.terminal_since_ns) / 1e6)
    if not resident.active_decoder or resident.view_visible_ns is None:
        return 0.0
    return max(0.0, (start_ns - resident.view_visible_ns) / 1e6)


def _sigma_ms(graphs: list[Graph], streams: int) -> float:
    """K*T/min(B, K) of the measured graph that minimises T/min(B, K), the first on a tie; 0.0 without any (S4)."""
    measured = [graph for graph in graphs if graph.known]
    if streams == 0 or not measured:
        return 0.0
    best = min(measured, key=lambda g: g.duration_ms / min(g.shape.batch_capacity, streams))
    return streams * best.duration_ms / min(best.shape.batch_capacity, streams)


def _common_exponent(decision: Decision) -> int:
    """max(0, largest binary exponent of coefficient * (memory or age) - 64), without forming the products."""
    policy, residents, start = decision.policy, decision.residents, decision.start_ns
    tokens = max([1.0, *(r.view_token_memory or 0.0 for r in residents)])
    deliveries = max([1.0, *(r.view_delivery_memory or 0.0 for r in residents)])
    decoder = max([0.0, *(_age_ms(r, start) for r in residents if r.active_decoder)])
    terminal = max([0.0, *(_age_ms(r, start) for r in residents if r.stage is Stage.TERMINAL)])
    largest = max(
        _exponent(policy.output_token_value),
        _exponent(policy.terminal_value),
        _exponent(policy.token_fairness) + _exponent(tokens),
        _exponent(policy.delivery_fairness) + _exponent(deliveries),
        _exponent(policy.decode_age_price) + _exponent(decoder or 1.0),
        _exponent(policy.terminal_age_price) + _exponent(terminal or 1.0),
        _exponent(policy.prompt_wait_price),
        _exponent(policy.decode_late_price) + 2 * _exponent(decoder or 1.0),
    )
    return max(0, largest - FREE_EXPONENT)


def _exponent(value: float) -> int:
    """floor(log2(value)); a very small number for 0."""
    return math.frexp(value)[1] - 1 if value else NO_EXPONENT
