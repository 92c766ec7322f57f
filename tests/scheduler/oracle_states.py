"""Random small states for the exhaustive oracle, and the same states as the plain planner sees them."""

from __future__ import annotations

import dataclasses
import random

from scheduler.plans import CostState, LedgerBalances, ScheduledPlan
from scheduler.policy import PolicyConfig
from scheduler.records import ImageSpan, RequestHandle, RequestSpec
from scheduler.reference.decision import Decision, Graph
from scheduler.reference.estimates import Estimates, Prior
from scheduler.reference.oracle import OracleRequest, OracleState
from scheduler.reference.planner import plan
from scheduler.reference.prompts import Prompt
from scheduler.reference.residents import Resident, Stage
from scheduler.shapes import Allocation, GraphKind, GraphShape

NOW = 10**12
DEPTHS = 3
PROMPT = 256
MS = 1_000_000
MORE = 1 << 20


def shape(kind: GraphKind, b: int, d: int = 0, w: int = 1, p: int = 0, c: int = 0, **more: object) -> GraphShape:
    """A shape by its extents."""
    return GraphShape(kind, b, d, w, p, c, **more)


class Dice:
    """Random values of states: dyadic ones, of which sums and quotients are exact and ties frequent, or any."""

    def __init__(self, seed: int, dyadic: bool) -> None:
        self.random, self.dyadic = random.Random(seed), dyadic

    def value(self, *exact: float, most: float) -> float:
        """One of `exact`, or any value up to `most`."""
        return self.random.choice(exact) if self.dyadic else self.random.uniform(0.0, most)

    def duration_ns(self, unknown: float = 0.15) -> int:
        """A power of two of ms, or anything; sometimes unknown."""
        if self.random.random() < unknown:
            return 0
        return self.random.choice((1, 2, 4, 8)) * MS if self.dyadic else self.random.randint(MS // 2, 20 * MS)

    def policy(self, terminal: bool = True) -> PolicyConfig:
        """Coefficients; retiring a terminal request is always worth something."""
        return PolicyConfig(
            output_token_value=self.value(1.0, 64.0, most=100.0),
            token_fairness=self.value(0.0, 1.0, 16.0, most=20.0),
            delivery_fairness=self.value(0.0, 4.0, most=5.0),
            decode_age_price=self.value(0.0, 0.125, 4.0, most=5.0),
            terminal_value=self.value(16.0, 256.0, most=300.0) + 1.0 if terminal else 0.0,
            terminal_age_price=self.value(0.0, 1.0, most=2.0),
        )

    def preferences(self) -> dict[str, float | str | int]:
        """Preferences beyond the specification, each of them often off."""
        return {
            "prompt_wait_price": self.value(0.0, 0.5, 4.0, 64.0, most=200.0),
            "prompt_rank_age_ms": self.value(0.0, 4.0, 64.0, most=50.0),
            "decode_gap_weight": self.value(0.0, 0.5, 0.75, 2.0, most=2.0),
            "decode_late_price": self.value(0.0, 0.0, 0.5, 8.0, most=20.0),
            "decode_cadence": self.random.choice(("off", "on")),
            "token_budget": self.random.choice((0, 0, 0, 40, 100, 200)),
        }

    def request(self, slot: int, stage: str) -> OracleRequest:
        """A request in `stage` with random history."""
        whole = stage in ("decode", "terminal") or (stage == "snapshot" and self.random.random() < 0.7)
        visible = whole and self.random.random() < 0.8
        return OracleRequest(
            request_id=f"r{slot}",
            slot=slot,
            stage=stage,
            remaining_prompt=0 if whole else self.random.choice((1, 50, 64, 128, 200)),
            token_memory=self.value(0.0, 0.5, 1.0, 2.0, most=30.0),
            delivery_memory=self.value(0.0, 1.0, 8.0, most=50.0) if visible else 0.0,
            age_ms=self.age_ms() if visible or stage == "terminal" else None,
            last_served_tick=self.random.choice((0, 1, 2, slot)),
            waited_ms=self.age_ms(),
            limit=self.random.choice((1, 2, MORE, MORE)) if whole else MORE,
            acceptance=self.means(),
            forecast=self.means(),
        )

    def age_ms(self) -> float:
        """Age of a visible output, a whole number of ns."""
        return self.random.choice((0, 4, 16)) if self.dyadic else self.random.randint(0, 500 * MS) / 1e6

    def means(self) -> tuple[float, ...]:
        """Mean survival by depth."""
        return tuple(self.value(1.0, 0.75, 0.5, 0.25, 0.0, most=1.0) for _ in range(DEPTHS))

    def some(self, shapes: list[GraphShape], least: int, most: int) -> list[GraphShape]:
        """A random choice of the shapes, in random order."""
        return self.random.sample(shapes, self.random.randint(least, min(most, len(shapes))))


def prefills() -> list[GraphShape]:
    """Prompt capacities of two kinds."""
    kinds = (GraphKind.PREFILL, GraphKind.PREFILL, GraphKind.SCORED_PREFILL)
    return [shape(kind, 1, c=c) for kind, c in zip(kinds, (64, 128, 64), strict=True)]


def rounds(speculative: bool) -> list[GraphShape]:
    """Rectangular rounds of one generation mode, and what they join: MIXED shapes."""
    if not speculative:
        return [shape(GraphKind.DECODE, b) for b in (1, 2, 4)]
    rows = [(1, 0, 1), (2, 0, 1), (4, 0, 1), (1, 3, 4), (2, 3, 4), (4, 1, 2), (2, 1, 2), (2, 1, 4)]
    kind, more = GraphKind.SPECULATIVE, {"speculation_enabled": True}
    return [
        shape(kind, b, d, w, **more, allocation=Allocation.DEVICE if w == 4 else Allocation.NONE) for b, d, w in rows
    ]


def mixed(speculative: bool) -> list[GraphShape]:
    """Joint shapes of one generation mode."""
    widths = ((2, 1, 64), (4, 1, 64), (2, 1, 128), (4, 1, 128), (2, 2, 128), (4, 2, 64))
    of_mode = [(b, w, c) for b, w, c in widths if speculative or w == 1]
    return [shape(GraphKind.MIXED, b, w - 1, w, c=c, speculation_enabled=speculative) for b, w, c in of_mode]


def fuller(speculative: bool) -> list[GraphShape]:
    """Joint shapes that carry several prompts."""
    sizes = ((2, 2, 128), (4, 1, 128), (4, 2, 128), (4, 4, 192), (8, 3, 192), (8, 4, 64), (4, 3, 64), (2, 1, 192))
    return [shape(GraphKind.MIXED, b, c=c, speculation_enabled=speculative, prompt_rows=rows) for b, rows, c in sizes]


def ragged(width: int = 4, allocation: Allocation = Allocation.HOST) -> list[GraphShape]:
    """Rounds with fewer rows than full lanes need."""
    sizes = ((1, 2), (2, 3), (2, 4), (2, 6), (4, 4), (4, 8), (4, 6))
    kind = GraphKind.SPECULATIVE
    fitting = [(b, p) for b, p in sizes if p < b * width]
    return [shape(kind, b, width - 1, width, p, speculation_enabled=True, allocation=allocation) for b, p in fitting]


def make_state(dice: Dice, shapes: list[GraphShape], stages: tuple[str, ...], fixed_width: int = 0) -> OracleState:
    """Up to six requests in random ones of `stages` over the shapes."""
    slots = sorted(dice.random.sample(range(8), dice.random.randint(1, 6)))
    return OracleState(
        shapes=tuple(shapes),
        durations_ns=tuple(dice.duration_ns() for _ in shapes),
        requests=tuple(dice.request(slot, dice.random.choice(stages)) for slot in slots),
        policy=dice.policy(),
        fixed_width=fixed_width,
    )


def separate_state(dice: Dice) -> OracleState:
    """Prefill and rectangular rounds, each for itself; retirement."""
    speculative = dice.random.random() < 0.6
    retirement = [shape(GraphKind.TERMINAL_SNAPSHOT, b) for b in (1, 2)]
    shapes = dice.some(prefills() + retirement, 0, 3) + dice.some(rounds(speculative), 1, 3)
    dice.random.shuffle(shapes)
    return _scored_too(dice, make_state(dice, shapes, ("prefill", "decode", "decode", "terminal")))


def mixed_state(dice: Dice) -> OracleState:
    """Joint shapes beside separate ones."""
    speculative = dice.random.random() < 0.6
    shapes = dice.some(mixed(speculative), 1, 3) + dice.some(rounds(speculative), 1, 2) + dice.some(prefills(), 0, 1)
    dice.random.shuffle(shapes)
    return _scored_too(dice, make_state(dice, shapes, ("prefill", "decode", "decode")))


def several_prompts_state(dice: Dice) -> OracleState:
    """Joint shapes of several prompts beside separate ones, and more prompts than fit."""
    speculative = dice.random.random() < 0.4
    shapes = dice.some(fuller(speculative), 1, 3) + dice.some(rounds(speculative), 1, 2) + dice.some(prefills(), 0, 2)
    dice.random.shuffle(shapes)
    state = make_state(dice, shapes, ("prefill", "prefill", "prefill", "decode", "decode"))
    return preferring(dice, _scored_too(dice, state)) if dice.random.random() < 0.8 else state


def preferring(dice: Dice, state: OracleState) -> OracleState:
    """The state under preferences beyond the specification."""
    return dataclasses.replace(state, policy=state.policy.merged(dice.preferences()))


def fixed_ragged_state(dice: Dice) -> OracleState:
    """Host-allocated rounds of one fixed width, ragged ones among them."""
    width = dice.random.choice((2, 3, 4))
    full = [shape(GraphKind.SPECULATIVE, b, width - 1, width, speculation_enabled=True) for b in (1, 2)]
    shapes = dice.some(ragged(width), 1, 4) + dice.some(full, 0, 2)
    return make_state(dice, shapes, ("prefill", "decode", "decode", "decode"), fixed_width=width)


def pair_state(dice: Dice) -> OracleState:
    """Prerequisites of one kind, with everything that may follow them, and terminal rows."""
    kind = dice.random.choice((GraphKind.INIT, GraphKind.RESTORE, GraphKind.SNAPSHOT, GraphKind.SNAPSHOT))
    speculative = dice.random.random() < 0.5
    following = prefills()[:2] + rounds(speculative) + mixed(speculative) + (ragged() if speculative else [])
    first = dice.some([shape(kind, b) for b in (1, 2, 4)], 1, 2)
    shapes = first + dice.some(following, 1, 2) + dice.some(rounds(speculative), 1, 1)
    shapes = list(dict.fromkeys(shapes))
    dice.random.shuffle(shapes)
    stages = (kind.value, kind.value, "prefill", "decode", "terminal" if kind is GraphKind.SNAPSHOT else "decode")
    return make_state(dice, shapes, stages)


def chain_state(dice: Dice) -> OracleState:
    """Requests behind several images or a restore, all durations known."""
    kind = dice.random.choice((GraphKind.INIT, GraphKind.VISION, GraphKind.SNAPSHOT))
    others = [shape(GraphKind.VISION, 2), shape(GraphKind.RESTORE, 2)]
    shapes = [shape(kind, dice.random.choice((1, 2)))] + [s for s in others if s.kind is not kind]
    shapes += dice.some(prefills()[:2], 1, 2) + dice.some(mixed(False), 0, 1) + dice.some(rounds(False), 1, 2)
    state = make_state(dice, shapes, (kind.value, kind.value, "decode"))
    chains = tuple(_with_chain(dice, r, kind) if r.stage == kind.value else r for r in state.requests)
    known = tuple(duration or MS for duration in state.durations_ns)
    return dataclasses.replace(state, durations_ns=known, requests=chains)


def ragged_state(dice: Dice) -> OracleState:
    """One adaptive ragged round and its decoders."""
    allocation = dice.random.choice((Allocation.HOST, Allocation.DEVICE))
    state = make_state(dice, [dice.random.choice(ragged(4, allocation))], ("decode",))
    return dataclasses.replace(state, durations_ns=tuple(duration or MS for duration in state.durations_ns))


def _with_chain(dice: Dice, r: OracleRequest, kind: GraphKind) -> OracleRequest:
    images = (GraphKind.VISION,) * dice.random.randint(0, 2)
    if kind is not GraphKind.SNAPSHOT:
        return dataclasses.replace(r, chain=images)
    window = bool(r.remaining_prompt) and dice.random.random() < 0.7
    return dataclasses.replace(r, chain=(GraphKind.RESTORE, *images) if window else ())


def _scored_too(dice: Dice, state: OracleState) -> OracleState:
    scored = [dataclasses.replace(r, scored=dice.random.random() < 0.3) for r in state.requests]
    return dataclasses.replace(state, requests=tuple(scored))


def decision_of(state: OracleState, **changes: object) -> Decision:
    """The state as the plain planner sees it."""
    prior = Prior(DEPTHS)
    decision = Decision(
        now_ns=NOW,
        start_ns=NOW,
        queue_depth=0,
        policy=state.policy,
        fixed_width=state.fixed_width,
        graphs=tuple(_graph(state, i) for i in range(len(state.shapes))),
        residents=tuple(_resident(r, prior, state.policy.adaptive_verification_alpha) for r in state.requests),
        free_pages=None,
        page_tokens=16,
        free_snapshot_rows=1,
        timing_full=False,
        acceptance_full=False,
        timing_credit_ns=0,
        acceptance_credit_ns=0,
        ledgers=LedgerBalances(),
        tick=0,
    )
    return dataclasses.replace(decision, **changes)


def _graph(state: OracleState, position: int) -> Graph:
    duration_ns = state.durations_ns[position]
    known = duration_ns > 0
    return Graph(
        shape=state.shapes[position],
        position=position,
        usable=state.usable(position),
        duration_ns=duration_ns,
        observed_ns=NOW if known else None,
        attempted_ns=None,
        state=CostState.FRESH if known else CostState.UNKNOWN,
    )


def _resident(r: OracleRequest, prior: Prior, alpha: float) -> Resident:
    spec = RequestSpec(r.request_id, PROMPT, r.limit + 1, PROMPT + r.limit + 1, scored=r.scored)
    images = tuple(ImageSpan(i, i + 1) for i in range(r.chain.count(GraphKind.VISION)))
    windows = ((), images) if r.stage == "snapshot" else (images,)
    resident = Resident(
        handle=RequestHandle(r.slot, 1),
        spec=spec,
        prompt=Prompt(windows, (), None, (), (PROMPT,)),
        estimates=Estimates(prior, alpha),
        admitted=r.slot,
        stage=Stage(r.stage),
        arrived_ns=NOW - round(r.waited_ms * MS),
        consumed=PROMPT - r.remaining_prompt,
        images_left=len(images) + (r.stage == "vision"),
        emitted=0 if r.remaining_prompt else 1,
        window=bool(r.chain) and r.stage == "snapshot",
        last_served_tick=r.last_served_tick,
        terminal_since_ns=NOW - round((r.age_ms or 0) * MS),
        view_token_memory=r.token_memory,
        view_delivery_memory=r.delivery_memory,
        view_visible_ns=None if r.age_ms is None else NOW - round(r.age_ms * MS),
    )
    for forecast, means in ((False, r.acceptance), (True, r.forecast)):
        resident.estimates._means["learned", forecast][:] = means
    return resident


def reference_plan(state: OracleState) -> ScheduledPlan | None:
    """The plain planner's choice."""
    return plan(decision_of(state)).plan
