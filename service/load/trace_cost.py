"""What the trace costs the tokens: the same load beside servers that trace more or less, in turn, many times.

Every way has an engine (and a recorder) of its own, which all run from the start to the end; only one of them has load
at a time. A round measures each way once, in an order that changes from round to round, and every way is compared
with the round's first-named one, so that what the machine does meanwhile meets both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from service.load.errors import LoadStalled
from service.load.faults import Fault, no_fault
from service.load.server import START_S, Options, SimulatedServer, cpu_ns, simulated_server
from service.load.statistics import Median, median_interval, percentile
from service.load.submitter import Load, Submitter

SETTLE_S = 10.0
"""How long the recorder's backlog is waited for after a window; what is down never catches up."""
SETTLE_POLL_S = 0.1
LOOK_S = 2.0
"""How often a start looks whether its process still lives."""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """One of the things compared. `fault` is there while a window of it is measured; `catches_up`: see SETTLE_S."""

    name: str
    options: Options
    fault: Fault = no_fault
    catches_up: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. `warm_s` and `window_s` are of one way in one round."""

    rounds: int = 24
    warm_s: float = 0.5
    window_s: float = 3.0
    lanes: int = 8
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One way in one round. Times in ms; `engine_us`: CPU of the engine per plan."""

    tokens_per_s: float
    plans_per_s: float
    gap_p50_ms: float
    gap_p99_ms: float
    engine_us: float


Progress = Callable[[int], None]


def traced_ways(plans_per_s: float, lanes: int, otlp: str) -> tuple[Way, ...]:
    """Tracing off, SQL only, everything on, and everything on with database and collector down."""
    base = Options(plans_per_s=plans_per_s, lanes=lanes)
    nowhere = _closed_port()
    down = dataclasses.replace(
        base,
        database=f"postgresql://helios@127.0.0.1:{nowhere}/helios",
        upgrades=False,
        otlp_endpoint=f"http://127.0.0.1:{nowhere}",
    )
    return (
        Way("tracing off", dataclasses.replace(base, tracing=False, recorder=False)),
        Way("SQL only", base),
        Way("everything on", dataclasses.replace(base, otlp_endpoint=otlp)),
        Way("database and collector down", down, catches_up=False),
    )


def _closed_port() -> int:
    """A port at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(ways: Sequence[Way], plan: Plan, folder: pathlib.Path, progress: Progress) -> list[list[Sample]]:
    """Samples by way, one of each round. Raises LoadError."""
    samples: list[list[Sample]] = [[] for _ in ways]
    order = list(range(len(ways)))
    shuffled = random.Random(plan.seed)
    done = 0
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(_loaded(way, plan, folder / str(n))) for n, way in enumerate(ways)]
        for server, submitter in servers:
            wait_started(server, submitter)
        for _ in range(plan.rounds):
            shuffled.shuffle(order)
            for number in order:
                samples[number].append(_window(ways[number], *servers[number], plan))
                done += 1
                progress(done)
    return samples


def wait_started(server: SimulatedServer, submitter: Submitter) -> None:
    """Until the engine is ready. Raises LoadStalled, or EngineDidNotStart as soon as its process has ended."""
    limit = time.monotonic() + START_S
    while True:
        try:
            submitter.wait_ready(seconds=LOOK_S)
            return
        except LoadStalled:
            server.check_alive()
            if time.monotonic() > limit:
                raise


@contextlib.contextmanager
def _loaded(way: Way, plan: Plan, folder: pathlib.Path) -> Iterator[tuple[SimulatedServer, Submitter]]:
    with (
        simulated_server(folder, way.options) as server,
        Submitter(server.endpoint, Load(lanes=plan.lanes)) as submitter,
    ):
        yield server, submitter


def _window(way: Way, server: SimulatedServer, submitter: Submitter, plan: Plan) -> Sample:
    """Load, a moment of warmth, the measurement, and rest."""
    assert server.engine is not None
    server.check_alive()
    pause = threading.Event()
    submitter.begin()
    submitter.wait_tokens(plan.lanes)
    with way.fault(server):
        pause.wait(plan.warm_s)
        submitter.window()
        plans, cpu = server.plans(), sum(cpu_ns(server.engine.pid))
        pause.wait(plan.window_s)
        plans, cpu = server.plans() - plans, sum(cpu_ns(server.engine.pid)) - cpu
        window = submitter.window()
    submitter.pause(cancel=True)
    if way.catches_up:
        _settle(server)
    gaps = window.gaps_ms or [0.0]
    return Sample(
        tokens_per_s=window.tokens / window.seconds,
        plans_per_s=plans / window.seconds,
        gap_p50_ms=percentile(gaps, 0.5),
        gap_p99_ms=percentile(gaps, 0.99),
        engine_us=cpu / max(1, plans) / 1e3,
    )


def _settle(server: SimulatedServer) -> None:
    """Let every recorder's backlog go, so that it does not burden the next window."""
    limit = time.monotonic() + SETTLE_S
    pause = threading.Event()
    while time.monotonic() < limit:
        pause.wait(SETTLE_POLL_S)  # also so that the window's last records are seen to wait
        if server.caught_up():
            return


def rows(ways: Sequence[Way], samples: Sequence[Sequence[Sample]]) -> list[dict[str, Any]]:
    """One row per way: medians over the rounds, and ratios to the first way in the same round with 95 % intervals."""
    return [_row(way.name, own, samples[0]) for way, own in zip(ways, samples, strict=True)]


def _row(name: str, own: Sequence[Sample], base: Sequence[Sample]) -> dict[str, Any]:
    def middle(of: Callable[[Sample], float]) -> float:
        return median_interval([of(sample) for sample in own]).value

    return {
        "way": name,
        "pairs": len(own),
        "tokens_per_s": round(middle(lambda s: s.tokens_per_s), 1),
        "plans_per_s": round(middle(lambda s: s.plans_per_s), 1),
        "gap_p50_ms": round(middle(lambda s: s.gap_p50_ms), 3),
        "gap_p99_ms": round(middle(lambda s: s.gap_p99_ms), 3),
        "engine_us_per_plan": round(middle(lambda s: s.engine_us), 1),
        "throughput_ratio": _ratio(own, base, lambda s: s.tokens_per_s),
        "gap_p99_ratio": _ratio(own, base, lambda s: s.gap_p99_ms),
        "engine_ratio": _ratio(own, base, lambda s: s.engine_us),
    }


def _ratio(own: Sequence[Sample], base: Sequence[Sample], of: Callable[[Sample], float]) -> dict[str, float | None]:
    """The median over rounds of one way's figure by the first way's."""
    ratios = [of(a) / of(b) for a, b in zip(own, base, strict=True) if of(b)]
    found = median_interval(ratios) if ratios else Median(float("nan"), None, None, None, 0)
    return {"median": _four(found.value), "low": _four(found.low), "high": _four(found.high)}


def _four(value: float | None) -> float | None:
    return None if value is None or value != value else round(value, 4)  # noqa: PLR0124 - NaN differs from itself
