"""What a completed frame does to the memories of those who took part (S9)."""

from __future__ import annotations

from scheduler.policy import PolicyConfig
from scheduler.records import RequestHandle
from scheduler.reference.frames import DeliveryInterval, Participant, after_service
from scheduler.reference.rates import Rates
from scheduler.reference.residents import Resident
from scheduler.reference.service_prices import newcomer_memory


def charge_interval(
    residents: dict[RequestHandle, Resident],
    participants: tuple[Participant, ...],
    served: dict[RequestHandle, int],
    interval_ms: float,
    adaptation_ms: float,
) -> dict[RequestHandle, DeliveryInterval]:
    """Charges the interval to every surviving participant, with zero deliveries; returns what publication needs."""
    open_deliveries = {}
    for p in participants:
        resident = residents.get(p.handle)
        if resident is None or resident.cancelled:
            continue
        resident.token_memory = after_service(
            resident.token_memory, interval_ms, served.get(p.handle, 0), p.token_rate, adaptation_ms
        )
        open_deliveries[p.handle] = DeliveryInterval(interval_ms, resident.delivery_memory, p.delivery_rate)
        resident.delivery_memory = after_service(
            resident.delivery_memory, interval_ms, 0, p.delivery_rate, adaptation_ms
        )
    return open_deliveries


def start_token_memory(newcomer: Resident, others: list[Resident], rates: Rates, policy: PolicyConfig) -> None:
    """Gives a request without a token memory its first one, as soon as anything has been measured."""
    served = [r.token_memory for r in others if r.last_served_tick > 0 and r.token_memory is not None]
    newcomer.token_memory = newcomer_memory(
        policy.newcomer_memory,
        phase_rate=rates.token(newcomer),
        decode_rate=rates.lone_decoder(),
        residents=len(others),
        largest_served=max(served, default=0.0),
    )
