"""Policies beside the token budget that would have been best in hindsight, over arrival traces, catalogs and loads.

    python benchmarks/bench_policies.py --data DIR [--out DIR] [--workers 2] [--quick]

DIR holds `arrivals/`, `catalogs/` and `acceptance/` as described in the data's README. Every policy meets the same
arrivals on the same machine: 64 request slots, 0.25 ms of host time a step that nothing hides (one frame slot for all),
durations that follow the mean context, no memory limit. Baselines fill steps by their own rule and run the smallest
prepared graphs that hold a step; "unpadded" gives a baseline graphs of exactly its step's size.

A load is a share of saturation: the most requests per second that any budget finished when all arrived at once. The
score is the geometric mean of TTFT p50, TTFT p99, inter-token p99 and 1/throughput, each over that of the cell's best
budget in hindsight: 1 is equal, below 1 is better. Deterministic; prints Markdown, and with --out writes one JSON file
per run as it ends, from which a benchmark that was interrupted goes on (delete the directory when code that decides has
changed). A run that cannot be simulated is named at the end and left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import pathlib
from typing import Any

from policy_runs import (
    BUDGETS,
    MEASURES,
    SATURATING_BUDGETS,
    Run,
    best_in_hindsight,
    figures_at,
    measures,
    ratios,
    run_all,
    saturated_rate,
    workload,
)

from scheduler.policy import NEWCOMER_MEMORIES

CATALOGS = ("h100_sxm__llama-3.1-8b__bf16_tp1.allctx", "rtxpro6000__llama-3.1-8b__bf16_tp1.allctx")
ARRIVALS = {
    "azure2023_conv_first40min": 700,
    "azure2023_code": 1200,
    "mooncake_conversation_first40min": 300,
    "servegen_deepseek_r1_resampled": 200,
}
LOADS = (0.6, 0.9)
HELIOS = ("balanced", "throughput")
BUDGET_NAMES = tuple(f"budget:{budget}" for budget in BUDGETS)
BASELINES = (*BUDGET_NAMES, "prefill_first")
WIDTHS = (1, 2, 4, 6, 8)
ACCEPTANCE = "eagle3 Llama-3.1-8B-Instruct mt-bench"
DRAFTS = 7
SPECULATIVE_LOADS = (0.3, 0.9)
NEWCOMER_CELL = (CATALOGS[0], "azure2023_conv_first40min", 0.9)

Cell = tuple[str, str, float]
"""(catalog, arrivals, load)."""


def base_run(data: str, catalog: str, arrivals: str, share: float) -> Run:
    """The cell's run but for its rate and its policy."""
    return Run(data, catalog, arrivals, max(50, int(ARRIVALS[arrivals] * share)), 1.0, "balanced")


def rate_scales(data: str, share: float, workers: int) -> dict[tuple[str, str], float]:
    """(catalog, arrivals) -> the rate scale at which the slice arrives at its saturated rate."""
    pairs = [(catalog, arrivals) for catalog in CATALOGS for arrivals in ARRIVALS]
    tasks = [
        dataclasses.replace(base_run(data, *pair, share), policy=f"budget:{budget}")
        for pair in pairs
        for budget in SATURATING_BUDGETS
    ]
    rates = run_all(tasks, saturated_rate, workers, "saturation")
    scales = {}
    for i, pair in enumerate(pairs):
        most = max(rates[i * len(SATURATING_BUDGETS) : (i + 1) * len(SATURATING_BUDGETS)])
        arrivals = workload(base_run(data, *pair, share)).arrivals
        span_s = ((arrivals[-1].time_ns or 0) - (arrivals[0].time_ns or 0)) / 1e9
        scales[pair] = most / (len(arrivals) / span_s)
    return scales


def cell_runs(run: Run) -> dict[str, Run]:
    """Column name -> run, for one cell."""
    runs = {name: dataclasses.replace(run, policy=name) for name in (*HELIOS, *BASELINES)}
    for name in BASELINES:
        runs[f"{name} unpadded"] = dataclasses.replace(run, policy=name, unpadded=True)
    return runs


def speculative_runs(run: Run) -> dict[str, Run]:
    """Fixed widths and adaptive verification on one cell, with one acceptance curve."""
    with_luck = dataclasses.replace(run, acceptance=ACCEPTANCE)
    runs = {f"fixed:{width}": dataclasses.replace(with_luck, policy=f"fixed:{width}") for width in WIDTHS}
    adaptive = dataclasses.replace(with_luck, policy="balanced", draft_tokens=DRAFTS)
    runs["balanced, adaptive, host rows"] = adaptive
    runs["balanced, adaptive, device rows"] = dataclasses.replace(adaptive, device_allocation=True)
    runs["balanced, no drafts"] = dataclasses.replace(run, policy="balanced")
    return runs


def newcomer_runs(run: Run) -> dict[str, Run]:
    """The four newcomer rules on one cell."""
    return {
        f"balanced, {rule}": dataclasses.replace(run, policy="balanced", coefficients=(("newcomer_memory", rule),))
        for rule in NEWCOMER_MEMORIES
    }


def all_runs(data: str, share: float, workers: int) -> dict[tuple[str, Cell], dict[str, Run]]:
    """(section, cell) -> column name -> run."""
    scales = rate_scales(data, share, workers)
    found: dict[tuple[str, Cell], dict[str, Run]] = {}

    def at(catalog: str, arrivals: str, load: float) -> Run:
        run = base_run(data, catalog, arrivals, share)
        return dataclasses.replace(run, rate_scale=load * scales[catalog, arrivals])

    for catalog, arrivals in scales:
        for load in LOADS:
            found["main", (catalog, arrivals, load)] = cell_runs(at(catalog, arrivals, load))
    found["newcomers", NEWCOMER_CELL] = newcomer_runs(at(*NEWCOMER_CELL))
    for load in SPECULATIVE_LOADS:
        cell = (CATALOGS[0], "azure2023_conv_first40min", load)
        found["speculation", cell] = speculative_runs(at(*cell))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument(
        "--out", type=pathlib.Path, metavar="DIR", help="keep one JSON file per run here, and go on from it"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests; for trying the script out")
    options = parser.parse_args()
    sections = all_runs(str(options.data), 0.1 if options.quick else 1.0, options.workers)
    tasks = [run for columns in sections.values() for run in columns.values()]
    tasks.sort(key=lambda run: run.policy not in HELIOS)  # the longest first
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    measure = functools.partial(figures_at, options.out)
    documents = dict(zip(tasks, run_all(tasks, measure, options.workers, "policies"), strict=True))
    found = {
        key: {name: measures(documents[run]) for name, run in columns.items() if "figures" in documents[run]}
        for key, columns in sections.items()
    }
    busy = functools.partial(_busy, sections, documents)
    main_cells = {cell: columns for (section, cell), columns in found.items() if section == "main"}
    print(cells_table(main_cells, sections, busy))
    print(scores_table(main_cells))
    rivals = {name: main_cells[NEWCOMER_CELL][name] for name in BUDGET_NAMES}
    print(newcomers_table(found["newcomers", NEWCOMER_CELL], rivals))
    for (section, cell), columns in sections.items():
        if section == "speculation":
            print(speculation_table(cell, {name: documents[run].get("figures") for name, run in columns.items()}))
    for run, document in documents.items():
        if "error" in document:
            print(f"\nNot simulated: {run.name}: {document['error']}")


def _busy(sections: Any, documents: Any, cell: Cell, name: str) -> float:
    return float(documents[sections["main", cell][name]]["figures"]["busy_share"] or 0.0)


def label(cell: Cell) -> str:
    """catalog, arrivals, load as people read them."""
    catalog, arrivals, load = cell
    return f"{catalog.split('__')[0]} {catalog.split('__')[1]} · {'_'.join(arrivals.split('_')[:2])} · {load:.0%}"


def _numbers(found: dict[str, float]) -> str:
    return (
        f"{found['ttft_p50']:,.0f} / {found['ttft_p99']:,.0f} / {found['gap_p99']:,.1f} / "
        f"{found['output_tokens_per_s']:,.0f}"
    )


def _ratio_text(found: dict[str, float]) -> str:
    return f"**{found['score']:.2f}** ({' · '.join(f'{found[name]:.2f}' for name in MEASURES)})"


def cells_table(cells: dict[Cell, dict[str, dict[str, float]]], sections: Any, busy: Any) -> str:
    """One line per cell: the best budget's figures, and each Helios policy's ratios against it."""
    lines = [
        "\n### Cells\n",
        "Figures: TTFT p50 ms / TTFT p99 ms / inter-token p99 ms / output tokens per s. Ratios: **score** (TTFT p50 · "
        "TTFT p99 · inter-token p99 · 1/throughput), below 1 better than the best padded budget.\n",
        "| cell | rate × | best budget | its figures | busy | "
        + " | ".join(HELIOS)
        + " | best budget unpadded | prefill first |",
        "|---" * (7 + len(HELIOS)) + "|",
    ]
    for cell, columns in cells.items():
        best = best_in_hindsight({name: columns[name] for name in BUDGET_NAMES})
        exact = {name: columns[f"{name} unpadded"] for name in BUDGET_NAMES}
        others = [columns[name] for name in HELIOS] + [exact[best_in_hindsight(exact)], columns["prefill_first"]]
        texts = [_ratio_text(ratios(other, columns[best])) for other in others]
        scale = sections["main", cell][best].rate_scale
        lines.append(
            f"| {label(cell)} | {scale:.2f} | {best.removeprefix('budget:')} | {_numbers(columns[best])} | "
            f"{busy(cell, best):.0%} | {' | '.join(texts)} |"
        )
    return "\n".join(lines)


def scores_table(cells: dict[Cell, dict[str, dict[str, float]]]) -> str:
    """One line per policy: its score over all cells against the best padded and the best unpadded budget."""
    names = list(next(iter(cells.values())))
    lines = [
        "\n### Scores over all cells\n",
        "| policy | score (padded rivals) | worst cell | better than the hindsight budget | score (unpadded rivals) |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        padded, exact = [], []
        for columns in cells.values():
            rivals = {n: columns[n] for n in BUDGET_NAMES}
            padded.append(ratios(columns[name], rivals[best_in_hindsight(rivals)])["score"])
            rivals = {n: columns[f"{n} unpadded"] for n in BUDGET_NAMES}
            exact.append(ratios(columns[name], rivals[best_in_hindsight(rivals)])["score"])
        better = sum(score < 1 for score in padded) / len(padded)
        lines.append(f"| {name} | {_mean(padded):.3f} | {max(padded):.2f} | {better:.0%} | {_mean(exact):.3f} |")
    return "\n".join(lines)


def newcomers_table(columns: dict[str, dict[str, float]], rivals: dict[str, dict[str, float]]) -> str:
    """One line per newcomer rule, against the cell's best budget."""
    best = best_in_hindsight(rivals)
    lines = [f"\n### Newcomer rules: {label(NEWCOMER_CELL)}\n", "| run | figures | ratios |", "|---|---|---|"]
    lines.append(f"| {best} | {_numbers(rivals[best])} | |")
    for name, found in columns.items():
        lines.append(f"| {name} | {_numbers(found)} | {_ratio_text(ratios(found, rivals[best]))} |")
    return "\n".join(lines)


def speculation_table(cell: Cell, columns: dict[str, dict[str, Any] | None]) -> str:
    """One line per run. Gaps are between bursts, so speculation is judged by the time per output token."""
    lines = [
        f"\n### Speculation: {label(cell)}, acceptance of {ACCEPTANCE}\n",
        "| run | ms per output token p50 / p99 | TTFT p50 / p99, ms | output tokens/s | drafts accepted | busy |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in columns.items():
        if found is None:
            continue
        per_token, ttft = found["time_per_output_token_ms"], found["ttft_ms"]
        accepted = found["speculation"]["accepted_share"]
        lines.append(
            f"| {name} | {per_token['p50']:.2f} / {per_token['p99']:.2f} | {ttft['p50']:,.0f} / {ttft['p99']:,.0f} | "
            f"{found['throughput']['output_tokens_per_s']:,.0f} | {'' if accepted is None else f'{accepted:.0%}'} | "
            f"{found['busy_share']:.0%} |"
        )
    return "\n".join(lines)


def _mean(scores: list[float]) -> float:
    return math.prod(scores) ** (1 / len(scores))


if __name__ == "__main__":
    main()
