"""Simulated runs for the policy benchmarks: inputs by name, loads as shares of saturation, many runs in processes."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import math
import pathlib
import random
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scheduler.errors import SchedulerError
from scheduler.policy import PolicyConfig
from scheduler.shapes import Allocation
from scheduler.simulation.acceptance import Survival, parse_acceptance
from scheduler.simulation.baselines.naming import Baseline
from scheduler.simulation.durations import Disturbance
from scheduler.simulation.experiment import Experiment, policy_by_name
from scheduler.simulation.grid import GraphGrid
from scheduler.simulation.machine import MachineSettings
from scheduler.simulation.measured import MeasuredTable, parse_catalog
from scheduler.simulation.metrics import summary
from scheduler.simulation.results import SimulationResult
from scheduler.simulation.workload import Workload, parse_arrivals

BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
SATURATING_BUDGETS = (512, 1024, 2048, 4096, 8192)
MEASURED_GRID = (1, 0, 0, False, False)
AT_ONCE = 1e12
"""The rate scale that puts every arrival at time 0."""
SATURATED_SHARE = 0.8
LONGEST_PATIENCE_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One simulation. `policy`: a preset's or a baseline's name; `coefficients` change a preset.

    `acceptance`: words that choose a row of per_position_acceptance.csv; "" for no speculation. `slots`: request slots.
    `skip`: requests of the trace that are left out before the first. `grid`: the fields of
    scheduler.simulation.grid. `noise`, `drift`, `wrong` (capture): see Disturbance.
    `leaving`: the share of requests whose clients leave up to LONGEST_PATIENCE_S after their arrival.
    """

    data: str
    catalog: str
    arrivals: str
    requests: int
    rate_scale: float
    policy: str
    coefficients: tuple[tuple[str, float | str], ...] = ()
    unpadded: bool = False
    acceptance: str = ""
    draft_tokens: int = 0
    device_allocation: bool = False
    queue_depth: int = 1
    slots: int = 64
    skip: int = 0
    grid: tuple[int, int, int, bool, bool] = MEASURED_GRID
    noise: float = 0.0
    drift: float = 0.0
    wrong: str = ""
    leaving: float = 0.0
    seed: int = 0

    @property
    def name(self) -> str:
        """A file name for its results."""
        parts = [
            self.catalog,
            self.arrivals,
            f"x{self.rate_scale:.4g}",
            self.policy,
            *(f"{key}={value}" for key, value in self.coefficients),
            "unpadded" * self.unpadded,
            f"drafts{self.draft_tokens}" * bool(self.draft_tokens),
            "device" * self.device_allocation,
            f"skip{self.skip}" * bool(self.skip),
            f"slots{self.slots}" * (self.slots != 64),
            f"grid{'-'.join(str(int(part)) for part in self.grid)}" * (self.grid != MEASURED_GRID),
            f"noise{self.noise:g}" * bool(self.noise),
            f"drift{self.drift:g}" * bool(self.drift),
            f"wrong-{self.wrong}" * bool(self.wrong),
            f"leaving{self.leaving:g}" * bool(self.leaving),
            f"seed{self.seed}" * bool(self.seed),
        ]
        return re.sub(r"[^A-Za-z0-9_.=-]+", "-", "__".join(filter(None, parts)))


@functools.lru_cache(maxsize=8)
def table(data: str, catalog: str) -> MeasuredTable:
    """A catalog by its file name without .csv."""
    return parse_catalog((pathlib.Path(data) / "catalogs" / f"{catalog}.csv").read_text(), catalog)


@functools.lru_cache(maxsize=4)
def _arrivals_text(data: str, arrivals: str) -> str:
    return (pathlib.Path(data) / "arrivals" / f"{arrivals}.csv").read_text()


def workload(run: Run) -> Workload:
    """The run's arrivals at its rate, the first of them at time 0 when others were skipped; some clients leave."""
    found = _all_stay(run)
    if not run.leaving:
        return found
    luck = random.Random(run.seed)
    leaves = [(luck.random() < run.leaving, luck.uniform(0, LONGEST_PATIENCE_S)) for _ in found.arrivals]
    arrivals = tuple(
        dataclasses.replace(arrival, patience_ns=round(patience_s * 1e9)) if does else arrival
        for arrival, (does, patience_s) in zip(found.arrivals, leaves, strict=True)
    )
    return dataclasses.replace(found, arrivals=arrivals)


def _all_stay(run: Run) -> Workload:
    text = _arrivals_text(run.data, run.arrivals)
    found = parse_arrivals(text, run.arrivals, run.rate_scale, run.skip + run.requests)
    if not run.skip:
        return found
    assert not found.next_turn, "later turns of skipped sessions would be left without a start"
    kept = found.arrivals[run.skip :]
    first_ns = kept[0].time_ns or 0
    return Workload(
        tuple(
            dataclasses.replace(arrival, index=index, time_ns=(arrival.time_ns or 0) - first_ns)
            for index, arrival in enumerate(kept)
        ),
        {},
    )


def survival(run: Run) -> Survival | None:
    """The run's acceptance curve."""
    if not run.acceptance:
        return None
    path = pathlib.Path(run.data) / "acceptance" / "per_position_acceptance.csv"
    return parse_acceptance(path.read_text(), path.name, run.acceptance)


def execute(run: Run) -> SimulationResult:
    """Simulates it. Raises a SchedulerError for inputs that do not go together."""
    return experiment(run).run(workload(run), table(run.data, run.catalog)).result


def experiment(run: Run) -> Experiment:
    """The run's settings, everything but its arrivals and its catalog."""
    policy: PolicyConfig | Baseline | None = policy_by_name(run.policy)
    if policy is None:
        raise SystemExit(f"{run.policy} is no policy")
    if run.coefficients:
        assert isinstance(policy, PolicyConfig), "only coefficients of a preset can be changed"
        policy = policy.merged(dict(run.coefficients))
    return Experiment(
        policy=policy,
        machine=MachineSettings(request_slots=run.slots, queue_depth=run.queue_depth),
        survival=survival(run),
        draft_tokens=run.draft_tokens,
        allocation=Allocation.DEVICE if run.device_allocation else Allocation.HOST,
        grid=GraphGrid(*run.grid),
        unpadded=run.unpadded,
        disturbance=Disturbance(run.noise, run.drift, wrong_capture=run.wrong),
        seed=run.seed,
    )


def figures(run: Run) -> dict[str, Any]:
    """The run's settings and its metrics, as JSON values; `error` in place of `figures` where that is impossible."""
    try:
        return {"run": dataclasses.asdict(run), "figures": summary(execute(run))}
    except SchedulerError as error:
        return {"run": dataclasses.asdict(run), "error": str(error)}


def saturated_rate(run: Run) -> float:
    """Requests per second while the first four fifths of them finish, all having arrived at once.

    The last fifth is left out because a draining server is not a saturated one.
    """
    outcomes = execute(dataclasses.replace(run, rate_scale=AT_ONCE)).outcomes
    count = max(1, int(len(outcomes) * SATURATED_SHARE))
    return count / (outcomes[count - 1].finished_ns / 1e9)


def saturated_rate_at(out: pathlib.Path | None, run: Run) -> float:
    """saturated_rate(run), kept in a file under `out`."""
    if out is None:
        return saturated_rate(run)
    path = out / f"saturated-{run.name}.json"
    if not path.exists():
        _keep(path, {"requests_per_s": saturated_rate(run)})
    return float(json.loads(path.read_text())["requests_per_s"])


def _keep(path: pathlib.Path, document: Any) -> None:
    """Whole or not at all: a benchmark may be interrupted."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(document, indent=1) + "\n")
    unfinished.rename(path)


def run_all(tasks: Sequence[Any], function: Any, workers: int, what: str) -> list[Any]:
    """function(task) for every task, in their order, in `workers` processes, with a progress bar on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: list[Any] = [None] * len(tasks)
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        places = {pool.submit(function, task): place for place, task in enumerate(tasks)}
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task(what, total=len(tasks))
            for future in concurrent.futures.as_completed(places):
                found[places[future]] = future.result()
                progress.advance(bar)
    return found


def figures_at(out: pathlib.Path | None, run: Run) -> dict[str, Any]:
    """figures(run), kept in one JSON file under `out`; the file of an earlier, interrupted benchmark is read back."""
    if out is None:
        return figures(run)
    path = out / f"{run.name}.json"
    if path.exists():
        document: dict[str, Any] = json.loads(path.read_text())
        if document["run"] == json.loads(json.dumps(dataclasses.asdict(run))):
            return document
    document = figures(run)
    _keep(path, document)
    return document


MEASURES = ("ttft_p50", "ttft_p99", "gap_p99", "output_tokens_per_s")


def measures(document: dict[str, Any]) -> dict[str, float]:
    """The four figures that are compared: ms, ms, ms and tokens per second."""
    found = document["figures"]
    return {
        "ttft_p50": found["ttft_ms"]["p50"],
        "ttft_p99": found["ttft_ms"]["p99"],
        "gap_p99": found["gap_ms"]["p99"] or 0.0,
        "output_tokens_per_s": found["throughput"]["output_tokens_per_s"],
    }


def ratios(found: dict[str, float], reference: dict[str, float]) -> dict[str, float]:
    """Each figure over the reference's, turned so that below 1 is better; `score` is their geometric mean."""
    each = {
        name: (reference[name] / found[name] if name == "output_tokens_per_s" else found[name] / reference[name])
        for name in MEASURES
    }
    return {**each, "score": math.prod(each.values()) ** (1 / len(each))}


def best_in_hindsight(by_policy: dict[str, dict[str, float]]) -> str:
    """The policy whose four figures have the smallest geometric mean (throughput counting inversely)."""
    unit = dict.fromkeys(MEASURES, 1.0)
    return min(by_policy, key=lambda name: ratios(by_policy[name], unit)["score"])
