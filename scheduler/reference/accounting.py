"""Service accounting: who took part in an interval, and what it did to their memories (S9)."""

from __future__ import annotations

import dataclasses

from scheduler.policy import PolicyConfig
from scheduler.records import RequestHandle
from scheduler.reference.rates import MeasuredGraphs
from scheduler.reference.residents import Resident, Slots
from scheduler.reference.service_prices import newcomer_memory, updated_memory


@dataclasses.dataclass(frozen=True, slots=True)
class Participant:
    """A resident at commit with its frozen normalizers (units per ms; None where nothing was measured)."""

    handle: RequestHandle
    token_rate: float | None
    delivery_rate: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class DeliveryInterval:
    """What is needed to replace an interval's zero deliveries by one when the fence's burst is published.

    `memory_before` is None when the request had no delivery history yet; `rate` when nothing was measured.
    """

    interval_ms: float
    memory_before: float | None
    rate: float | None


def freeze_participants(residents: list[Resident], measured: MeasuredGraphs) -> tuple[Participant, ...]:
    """The interval's participants: residents at commit, each with its own phase's normalizers."""
    return tuple(
        Participant(
            handle=r.handle,
            token_rate=measured.token_rate(r),
            delivery_rate=None if r.prefilling else measured.delivery_rate(),
        )
        for r in residents
    )


def charge_interval(
    slots: Slots,
    participants: tuple[Participant, ...],
    served_tokens: dict[RequestHandle, int],
    interval_ms: float,
    policy: PolicyConfig,
) -> dict[RequestHandle, DeliveryInterval]:
    """Updates every surviving participant's memories for one interval, with zero deliveries.

    Returns what publication needs, by handle: a request admitted meanwhile, or a cancelled one whose slot was
    reused, has another handle and is left alone.
    """
    open_deliveries = {}
    for participant in participants:
        resident = slots.get(participant.handle)
        if resident is None or resident.cancelled:
            continue
        if resident.token_memory is not None and participant.token_rate is not None:
            resident.token_memory = updated_memory(
                resident.token_memory,
                interval_ms,
                served_tokens.get(participant.handle, 0),
                participant.token_rate,
                policy.adaptation_ms,
            )
        open_deliveries[participant.handle] = DeliveryInterval(
            interval_ms, resident.delivery_memory, participant.delivery_rate
        )
        if resident.delivery_memory is not None and participant.delivery_rate is not None:
            resident.delivery_memory = updated_memory(
                resident.delivery_memory, interval_ms, 0, participant.delivery_rate, policy.adaptation_ms
            )
    return open_deliveries


def delivered_memory(interval: DeliveryInterval, policy: PolicyConfig) -> float:
    """The delivery memory after the interval with one delivery in place of zero (S9).

    The first burst starts the history with one delivery over its frame's duration; without a measured rate the
    interval leaves the memory alone.
    """
    if interval.memory_before is None:
        return interval.interval_ms
    if interval.rate is None:
        return interval.memory_before
    return updated_memory(interval.memory_before, interval.interval_ms, 1, interval.rate, policy.adaptation_ms)


def start_token_memory(
    newcomer: Resident, others: list[Resident], measured: MeasuredGraphs, policy: PolicyConfig
) -> None:
    """Gives a request without a token memory its first one, as soon as anything has been measured."""
    if newcomer.token_memory is not None:
        return
    served = (r.token_memory for r in others if r.served and r.token_memory is not None)
    newcomer.token_memory = newcomer_memory(
        policy.newcomer_memory,
        phase_rate=measured.token_rate(newcomer),
        decode_rate=measured.decode_rate(),
        residents=len(others),
        largest_served=max(served, default=0.0),
    )
