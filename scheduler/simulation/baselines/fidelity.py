"""How far a simulated run is from a real one of the same requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from scheduler.simulation.errors import SimulationError
from scheduler.simulation.metrics import time_per_output_token_ms, ttft_ms
from scheduler.simulation.results import Outcome
from scheduler.simulation.tables import read_rows

RUN_COLUMNS = ("time_s", "prompt_tokens", "output_tokens", "queue_ms", "ttft_ms", "tpot_ms", "e2e_ms")


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """One request of a real run, in ms: its wait for a slot, arrival to first and last token, and the time per output
    token after the first.
    """

    queue_ms: float
    ttft_ms: float
    tpot_ms: float
    e2e_ms: float


def parse_measured_run(text: str, name: str) -> list[MeasuredAnswer]:
    """The answers of a real run's CSV, in the order in which workload.parse_arrivals numbers its requests.

    Raises InvalidTable.
    """
    rows = list(read_rows(text, name, RUN_COLUMNS))
    rows.sort(key=lambda row: row.number("time_s"))
    return [MeasuredAnswer(*(row.number(column) for column in RUN_COLUMNS[3:])) for row in rows]


@dataclasses.dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors |simulated - real| / real over the requests of a run: their median and 90th percentile.

    `bias`: the median of the signed ones, above 0 where the simulation is too slow.
    `real_p50`, `simulated_p50`: medians of the quantity itself, ms.
    """

    median: float
    p90: float
    bias: float
    real_p50: float
    simulated_p50: float


def relative_errors(real: Sequence[float], simulated: Sequence[float]) -> Errors:
    """Errors of paired values. Raises SimulationError without pairs, or when a real value is not above 0."""
    if len(real) != len(simulated) or len(real) == 0:
        raise SimulationError(f"{len(real)} real values and {len(simulated)} simulated ones make no pairs")
    truth, found = np.asarray(real, dtype=np.float64), np.asarray(simulated, dtype=np.float64)
    if not bool((truth > 0).all()):
        raise SimulationError("a relative error needs real values above 0")
    signed = (found - truth) / truth
    sizes = np.abs(signed)
    return Errors(
        median=float(np.median(sizes)),
        p90=float(np.percentile(sizes, 90)),
        bias=float(np.median(signed)),
        real_p50=float(np.median(truth)),
        simulated_p50=float(np.median(found)),
    )


def compare_run(answers: Sequence[MeasuredAnswer], outcomes: Iterable[Outcome]) -> dict[str, Errors]:
    """Errors of `ttft_ms`, `tpot_ms` (answers of two tokens and more) and `e2e_ms`.

    Raises SimulationError unless every answer was simulated once.
    """
    by_index = {outcome.index: outcome for outcome in outcomes}
    if sorted(by_index) != list(range(len(answers))):
        raise SimulationError(f"{len(by_index)} of {len(answers)} requests of the real run were simulated to their end")
    pairs: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in RUN_COLUMNS[4:]}
    for index, answer in enumerate(answers):
        outcome = by_index[index]
        found = {
            "ttft_ms": ttft_ms(outcome),
            "tpot_ms": time_per_output_token_ms(outcome),
            "e2e_ms": (outcome.finished_ns - outcome.arrived_ns) / 1e6,
        }
        for name, value in found.items():
            if value is not None:
                pairs[name][0].append(getattr(answer, name))
                pairs[name][1].append(value)
    return {name: relative_errors(*pair) for name, pair in pairs.items()}
