"""The simulator under vLLM's rule, beside real vLLM runs of the same requests: relative errors of TTFT, TPOT and E2E.

    python benchmarks/bench_fidelity.py --data DIR [--json]

DIR holds `catalogs/` and `baselines/` as described in the data's README. Each run is replayed with chunked prefill at
its published settings (at most 128 sequences and 2,048 token rows a step), interpolated to exact sizes, with durations
that follow the mean context, and 0.25 ms of host time a step; then with one of these changed at a time. Deterministic.

Cells are median / 90th percentile of the relative error, and in parentheses the median of the signed one (above 0: the
simulation is too slow). What cannot be compared: the Qwen3-32B run used two GPUs and the catalog is of one; its errors
say how far apart those are, not how good the simulator is; there is no catalog of the RTX 4090.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import Any

from rich.console import Console
from rich.progress import Progress

from scheduler.simulation.baselines.fidelity import Errors, compare_run, parse_measured_run, relative_errors
from scheduler.simulation.baselines.naming import named_baseline, step_costs
from scheduler.simulation.durations import HostCosts, TrueDurations
from scheduler.simulation.machine import MachineSettings, simulate
from scheduler.simulation.measured import parse_catalog
from scheduler.simulation.metrics import ttft_ms
from scheduler.simulation.workload import parse_arrivals

RUNS = (
    ("vllm_run_rtxpro6000_llama-3.1-8b_tp1", "rtxpro6000__llama-3.1-8b__bf16_tp1", ""),
    ("vllm_run_rtxpro6000_qwen3-32b_tp2", "rtxpro6000__qwen3-32b__bf16_tp1", "two GPUs against a catalog of one"),
)
SEQUENCES = 128
SHORT_QUEUE_MS = 100.0


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """One way to replay a run."""

    name: str
    budget: int = 2048
    unpadded: bool = True
    by_context: bool = True
    host_ms: float = 0.25


SETUPS = (
    Setup("as published"),
    Setup("padded to prepared graphs", unpadded=False),
    Setup("durations at 1,024 context tokens", by_context=False),
    Setup("host 0 ms", host_ms=0.0),
    Setup("host 1 ms", host_ms=1.0),
    Setup("budget 8,192", budget=8192),
)


def replay(data: pathlib.Path, run: str, catalog: str, setup: Setup) -> dict[str, Errors]:
    """The errors of one replayed run; `unqueued_ttft_ms` is TTFT where the real request waited less than 0.1 s."""
    text = (data / "baselines" / f"{run}.csv").read_text()
    suffix = ".allctx.csv" if setup.by_context else ".csv"
    table = parse_catalog((data / "catalogs" / f"{catalog}{suffix}").read_text(), catalog)
    baseline = named_baseline(f"budget:{setup.budget}")
    assert baseline is not None
    graphs = baseline.graphs(table)
    result = simulate(
        baseline.batcher(graphs, SEQUENCES),
        parse_arrivals(text, run),
        TrueDurations(step_costs(graphs, setup.unpadded, setup.by_context)),
        MachineSettings(request_slots=SEQUENCES, queue_depth=1, host=HostCosts(step_ms=setup.host_ms)),
    )
    answers = parse_measured_run(text, run)
    errors = compare_run(answers, result.outcomes)
    short = {i for i, answer in enumerate(answers) if answer.queue_ms < SHORT_QUEUE_MS}
    pairs = [(answers[o.index].ttft_ms, ttft_ms(o)) for o in result.outcomes if o.index in short]
    errors["unqueued_ttft_ms"] = relative_errors([real for real, _ in pairs], [found for _, found in pairs])
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of Markdown tables")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replaying", total=len(RUNS) * len(SETUPS))
        for run, catalog, note in RUNS:
            for setup in SETUPS:
                for quantity, errors in replay(options.data, run, catalog, setup).items():
                    row = {"run": run, "note": note, "setup": setup.name, "quantity": quantity}
                    rows.append(row | dataclasses.asdict(errors))
                progress.advance(task)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for run, _, note in RUNS:
        print(f"\n{run}{f' ({note})' if note else ''}\n")
        print(markdown([row for row in rows if row["run"] == run]))


QUANTITIES = {"ttft_ms": "TTFT", "unqueued_ttft_ms": "TTFT, not queued", "tpot_ms": "TPOT", "e2e_ms": "end to end"}


def markdown(rows: list[dict[str, Any]]) -> str:
    """One line per setup, one column per quantity; the first line says what the real run's medians are, in ms."""
    found = {(row["setup"], row["quantity"]): row for row in rows}
    first = rows[0]["setup"]
    lines = [f"| | {' | '.join(QUANTITIES.values())} |", "|---" * (len(QUANTITIES) + 1) + "|"]
    lines.append("| real p50, ms | " + " | ".join(f"{found[first, q]['real_p50']:,.0f}" for q in QUANTITIES) + " |")
    for setup in dict.fromkeys(row["setup"] for row in rows):
        cells = (found[setup, quantity] for quantity in QUANTITIES)
        texts = (f"{c['median']:.1%} / {c['p90']:.1%} ({c['bias']:+.1%})" for c in cells)
        lines.append(f"| {setup} | {' | '.join(texts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
