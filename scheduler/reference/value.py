"""The value of one candidate (S4): scaled prices, lane values and the score with its parts."""

from __future__ import annotations

import dataclasses
import math

from scheduler.plans import PlanParts
from scheduler.policy import PolicyConfig
from scheduler.reference.rates import MeasuredGraphs
from scheduler.reference.residents import ProjectedResident, Resident

LN2 = math.log(2.0)
# Products up to 2**64 are left alone: ordinary decisions then have factor 1 and stay comparable.
FREE_EXPONENT = 64


@dataclasses.dataclass(frozen=True, slots=True)
class LaneView:
    """One runnable resident as a decision sees it. Prices are scaled; age and sigma are ms.

    `active`: a decoding request with visible output. `age_price` is the scaled decode_age_price for an active
    decoder and 0 for everyone else.
    """

    resident: Resident
    active: bool
    token_price: float
    delivery_price: float
    age_ms: float
    sigma_ms: float
    age_price: float

    def decode_value(self, horizon_ms: float, context: DecisionContext) -> float:
        """The lane value of one output token that arrives `horizon_ms` from now."""
        token = context.output_value + self.token_price
        return token + self.delivery_price + self.age_relief(horizon_ms)

    def age_relief(self, horizon_ms: float) -> float:
        """decode_age_price * sigma * (A + H), scaled."""
        return self.age_price * self.sigma_ms * (self.age_ms + horizon_ms)


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionContext:
    """What all candidates of one decision share: the common scale, intrinsic values and the lanes.

    `prompt_value`, `output_value`: scaled worth of a prompt and an output token. `wait_price`: scaled sum of the
    age coefficients of every active decoder, served or not. `lanes` are in slot order.
    """

    now_ns: int
    log_scale: float
    prompt_value: float
    output_value: float
    wait_price: float
    lanes: tuple[LaneView, ...]

    @classmethod
    def of(
        cls, residents: list[ProjectedResident], policy: PolicyConfig, measured: MeasuredGraphs, now_ns: int
    ) -> DecisionContext:
        """Freezes prices and ages of the runnable residents (in slot order) at `now_ns`."""
        ages = [_age_ms(r, now_ns) for r in residents]
        exponent = _common_exponent(residents, ages, policy)
        token_fairness = math.ldexp(policy.token_fairness, -exponent)
        delivery_fairness = math.ldexp(policy.delivery_fairness, -exponent)
        age_price = math.ldexp(policy.decode_age_price, -exponent)
        decoders = sum(r.active_decoder for r in residents)
        sigma_ms = measured.decode_sigma_ms(decoders)
        lanes = tuple(
            LaneView(
                resident=r.resident,
                active=r.active_decoder,
                token_price=token_fairness * (r.resident.token_memory or 0.0),
                delivery_price=delivery_fairness * (r.delivery_memory or 0.0),
                age_ms=age,
                sigma_ms=sigma_ms if r.active_decoder else 0.0,
                age_price=age_price if r.active_decoder else 0.0,
            )
            for r, age in zip(residents, ages, strict=True)
        )
        return cls(
            now_ns=now_ns,
            log_scale=-exponent * LN2,
            prompt_value=math.ldexp(1.0, -exponent),
            output_value=math.ldexp(policy.output_token_value, -exponent),
            wait_price=math.fsum(lane.age_price for lane in lanes),
            lanes=lanes,
        )

    @property
    def active_decoders(self) -> int:
        """Decoding requests with at least one visible output."""
        return sum(lane.active for lane in self.lanes)


def known_parts(values: LaneSums, horizon_ms: float, context: DecisionContext) -> tuple[float, PlanParts]:
    """(value rate, parts) of a candidate whose graph takes `horizon_ms`.

    value_rate = (token + delivery + age relief) / H - H/2 * sum of all active decoders' age coefficients.
    """
    wait_cost = horizon_ms / 2.0 * context.wait_price
    parts = PlanParts(values.token, values.delivery, values.age_relief, 0.0, wait_cost, horizon_ms)
    return parts.work / horizon_ms - wait_cost, parts


def unknown_parts(values: LaneSums) -> tuple[float, PlanParts]:
    """(work, parts) of a candidate whose duration is unknown: the undivided sum, ages as they stand."""
    parts = PlanParts(values.token, values.delivery, values.age_relief, 0.0, 0.0, None)
    return parts.work, parts


@dataclasses.dataclass(frozen=True, slots=True)
class LaneSums:
    """A cohort's summed values, in slot order."""

    token: float
    delivery: float
    age_relief: float

    @classmethod
    def of_decoders(cls, lanes: list[LaneView], horizon_ms: float, context: DecisionContext) -> LaneSums:
        """One expected output token and one delivery for each lane."""
        return cls(
            token=math.fsum(context.output_value + lane.token_price for lane in lanes),
            delivery=math.fsum(lane.delivery_price for lane in lanes),
            age_relief=math.fsum(lane.age_relief(horizon_ms) for lane in lanes),
        )

    @classmethod
    def of_prefill(cls, lane: LaneView, consumed_tokens: int, finishes: bool, context: DecisionContext) -> LaneSums:
        """The prompt tokens, and at most one output token."""
        token = (context.prompt_value + lane.token_price) * consumed_tokens
        if finishes:
            token += context.output_value + lane.token_price
        return cls(token=token, delivery=lane.delivery_price if finishes else 0.0, age_relief=0.0)


def _age_ms(resident: ProjectedResident, now_ns: int) -> float:
    if not resident.active_decoder or resident.last_visible_ns is None:
        return 0.0
    return (now_ns - resident.last_visible_ns) / 1e6


def _common_exponent(residents: list[ProjectedResident], ages: list[float], policy: PolicyConfig) -> int:
    """max(0, largest binary exponent of coefficient * (memory or age) - 64), without forming the products."""
    memories = [1.0]
    deliveries = [1.0]
    for r in residents:
        memories.append(r.resident.token_memory or 0.0)
        deliveries.append(r.delivery_memory or 0.0)
    largest = max(
        _exponent(policy.output_token_value),
        _exponent(policy.token_fairness) + _exponent(max(memories)),
        _exponent(policy.delivery_fairness) + _exponent(max(deliveries)),
        _exponent(policy.decode_age_price) + _exponent(max(ages, default=0.0) or 1.0),
    )
    return max(0, largest - FREE_EXPONENT)


def _exponent(value: float) -> int:
    """floor(log2(value)), and a very small number for 0."""
    return math.frexp(value)[1] - 1 if value else -(10**6)
