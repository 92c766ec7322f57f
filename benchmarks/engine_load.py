"""How many plans a second an engine commits, and what bounds them: load on its own socket over the simulated device.

    python benchmarks/engine_load.py [--rates 200 1000 2000 4000] [--lanes 8] [--seconds 5] [--no-recorder] [--json]

For each rate of the device: plans and tokens that came, tokens a plan, gaps between a request's messages at the client,
and CPU time per plan of each process: the engine's worker thread, its other threads (the device's, ZeroMQ's, the
journal's), the recorder, this submitter. All of them share the machine's cores. The engine is bound by its worker
thread together with the device's thread, which hold the interpreter in turn: what is left of a second by these two is
what a faster device could use. The last rate asked for should be beyond what the engine reaches.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
import threading
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from service.load.server import Options, SimulatedServer, cpu_ns, simulated_server
from service.load.statistics import percentile
from service.load.submitter import Load, Submitter

WARM_TOKENS = 4000


def measure(rate: float, options: argparse.Namespace, tracing: bool) -> dict[str, Any]:
    """One server's figures at one rate of its device."""
    recorder = options.recorder and tracing
    asked = Options(plans_per_s=rate, lanes=options.lanes, recorder=recorder, tracing=tracing)
    with tempfile.TemporaryDirectory() as folder, simulated_server(pathlib.Path(folder), asked) as server:
        load = Load(lanes=options.lanes, output_tokens=options.tokens)
        with Submitter(server.endpoint, load) as submitter:
            submitter.wait_ready(seconds=240)
            submitter.begin()
            submitter.wait_tokens(WARM_TOKENS)
            before, plans = cpu_times(server), server.plans()
            submitter.window()
            threading.Event().wait(options.seconds)
            window, after = submitter.window(), cpu_times(server)
            plans = server.plans() - plans
            submitter.pause(cancel=True)
    spent = {name: round((after[name] - before[name]) / plans / 1e3, 1) for name in after}
    gaps = window.gaps_ms or [0.0]
    return {
        "rate": rate,
        "tracing": tracing,
        "plans_per_s": round(plans / window.seconds, 1),
        "tokens_per_s": round(window.tokens / window.seconds, 1),
        "tokens_per_plan": round(window.tokens / plans, 2),
        "gap_p50_ms": round(percentile(gaps, 0.5), 3),
        "gap_p99_ms": round(percentile(gaps, 0.99), 3),
        **{f"{name}_us": value for name, value in spent.items()},
    }


def cpu_times(server: SimulatedServer) -> dict[str, int]:
    """CPU ns of every part so far."""
    assert server.engine is not None
    worker, *others = cpu_ns(server.engine.pid) or [0]
    recorder = sum(cpu_ns(server.recorder.pid)) if server.recorder is not None else 0
    return {"worker": worker, "other_threads": sum(others), "recorder": recorder, "submitter": time.process_time_ns()}


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[200.0, 1000.0, 2000.0, 4000.0])
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1000, help="output tokens of a request")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--recorder", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(rate, options, tracing) for rate in options.rates for tracing in (True, False)]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"{options.lanes} lanes; µs of CPU per plan by part", box=None)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
