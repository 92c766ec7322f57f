"""Policies beside the token budget that is best in hindsight, over forty scenarios and two halves of each trace.

    python benchmarks/bench_hindsight.py --data DIR [--half 1] [--out DIR] [--workers 2] [--policies NAME ...]

Scenarios: three GPUs, four traces, loads of 50, 80 and 95 % of what the best budget could finish, and the conversation
trace on an H100 at 1 to 4 times its rate. 64 request slots, 0.25 ms of host time a step that nothing hides, durations
that follow the mean context, no memory limit, one frame slot. Rivals are the budgets 256 to 4,096 of vLLM's rule on
graphs of exactly their steps' sizes: they never pad. Helios runs padded on its prepared graphs: `GRIDS`.

The score of a policy in a scenario is the geometric mean of four ratios to the rival that has the smallest such mean
there: TTFT p50, TTFT p99, inter-token p99 and 1/throughput; 1 is equal, below 1 is better. `dominated`: a rival is at
least as good in all four and better in one, each by more than 0.1 %. Half 0 holds the first requests of each trace,
half 1 the next as many: coefficients were chosen on half 1 and are judged on half 0. Deterministic; with --out every
run is kept as it ends.
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
    MEASURED_GRID,
    MEASURES,
    SATURATING_BUDGETS,
    Run,
    best_in_hindsight,
    figures_at,
    measures,
    ratios,
    run_all,
    saturated_rate_at,
    workload,
)

CATALOGS = {
    "h100": "h100_sxm__llama-3.1-8b__bf16_tp1.allctx",
    "b200": "b200_sxm__llama-3.1-8b__bf16_tp1.allctx",
    "rtxpro": "rtxpro6000__llama-3.1-8b__bf16_tp1.allctx",
}
TRACES = {
    "conv": ("azure2023_conv_first40min", 700),
    "code": ("azure2023_code", 1200),
    "mooncake": ("mooncake_conversation_first40min", 300),
    "reasoning": ("servegen_deepseek_r1_resampled", 200),
}
LOADS = (0.5, 0.8, 0.95)
OVERLOADS = (1.0, 2.0, 3.0, 4.0)
GRIDS = {
    "measured": MEASURED_GRID,
    "rows4": (4, 0, 0, False, False),
    "step8": (4, 8, 0, True, True),
    "step4": (4, 4, 0, True, True),
}
"""Mixed graphs of 63 to 221 sizes; step4: batches 2 and every fourth, 12 prompt capacities, any batch to decode."""
RIVALS = tuple(f"budget:{budget}" for budget in BUDGETS if budget <= 4096)
"""Beyond the largest measured steps catalogs are extrapolated, so a budget of 8,192 is no rival here."""
SAME = 1e-3

Scenario = tuple[str, str, str]
"""(GPU, trace, load) by short names; an overload's name is x1 to x4."""
Figures = dict[str, float]


def base_run(data: str, gpu: str, trace: str, half: int, share: float) -> Run:
    """The run of one GPU and trace but for its rate and its policy."""
    arrivals, requests = TRACES[trace]
    requests = max(50, int(requests * share))
    return Run(data, CATALOGS[gpu], arrivals, requests, 1.0, "balanced", skip=half * requests)


def scenarios(
    data: str, half: int, share: float, workers: int, out: pathlib.Path | None = None, **disturbed: Any
) -> dict[Scenario, Run]:
    """Every scenario's run at its rate, for any policy. `disturbed`: fields that the saturated runs do not have."""
    pairs = [(gpu, trace) for gpu in CATALOGS for trace in TRACES]
    tasks = [
        dataclasses.replace(base_run(data, *pair, half, share), policy=f"budget:{budget}", unpadded=True)
        for pair in pairs
        for budget in SATURATING_BUDGETS
    ]
    rates = run_all(tasks, functools.partial(saturated_rate_at, out), workers, "saturation")
    found: dict[Scenario, Run] = {}
    for i, (gpu, trace) in enumerate(pairs):
        run = dataclasses.replace(base_run(data, gpu, trace, half, share), **disturbed)
        most = max(rates[i * len(SATURATING_BUDGETS) : (i + 1) * len(SATURATING_BUDGETS)])
        arrivals = workload(run).arrivals
        span_s = ((arrivals[-1].time_ns or 0) - (arrivals[0].time_ns or 0)) / 1e9
        for load in LOADS:
            scale = load * most / (len(arrivals) / span_s)
            found[gpu, trace, f"{load:.0%}"] = dataclasses.replace(run, rate_scale=scale)
        for scale in OVERLOADS if (gpu, trace) == ("h100", "conv") else ():
            found[gpu, trace, f"x{scale:.0f}"] = dataclasses.replace(run, rate_scale=scale)
    return found


def columns(run: Run, policies: list[str]) -> dict[str, Run]:
    """Name -> run of one scenario. A policy's name: preset@grid[@coefficient=value,...]."""
    runs = {name: dataclasses.replace(run, policy=name, unpadded=True) for name in RIVALS}
    for name in policies:
        preset, grid, *changes = name.split("@")
        coefficients = tuple(_coefficient(part) for text in changes for part in text.split(","))
        runs[name] = dataclasses.replace(run, policy=preset, grid=GRIDS[grid], coefficients=coefficients)
    return runs


def _coefficient(text: str) -> tuple[str, float | str]:
    name, value = text.split("=")
    try:
        return name, float(value)
    except ValueError:
        return name, value


def is_dominated(found: Figures, rivals: dict[str, Figures]) -> bool:
    """Whether a rival is nowhere worse and somewhere better."""
    for rival in rivals.values():
        each = ratios(found, rival)
        logs = [math.log(each[name]) for name in MEASURES]
        if min(logs) > -SAME and max(logs) > SAME:
            return True
    return False


def score_line(name: str, cells: list[dict[str, Figures]]) -> str:
    """One policy over all scenarios."""
    each, dominated = [], 0
    for found in cells:
        rivals = {rival: found[rival] for rival in RIVALS}
        each.append(ratios(found[name], rivals[best_in_hindsight(rivals)]))
        dominated += name not in RIVALS and is_dominated(found[name], rivals)
    scores = [ratio["score"] for ratio in each]
    parts = " · ".join(f"{_mean([ratio[measure] for ratio in each]):.2f}" for measure in MEASURES)
    better = sum(score < 1 for score in scores)
    return f"| {name} | {_mean(scores):.3f} | {max(scores):.2f} | {better}/{len(scores)} | {parts} | {dominated} |"


def scenario_line(scenario: Scenario, found: dict[str, Figures], policies: list[str]) -> str:
    """One scenario: the best rival's figures and every policy's ratios to it."""
    rivals = {rival: found[rival] for rival in RIVALS}
    best = best_in_hindsight(rivals)
    at = rivals[best]
    texts = []
    for name in policies:
        each = ratios(found[name], at)
        texts.append(f"**{each['score']:.2f}** ({' · '.join(f'{each[measure]:.2f}' for measure in MEASURES)})")
    figures = f"{at['ttft_p50']:,.0f} / {at['ttft_p99']:,.0f} / {at['gap_p99']:,.1f} / {at['output_tokens_per_s']:,.0f}"
    return f"| {' · '.join(scenario)} | {best.removeprefix('budget:')} | {figures} | {' | '.join(texts)} |"


def _mean(values: list[float]) -> float:
    return math.prod(values) ** (1 / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--half", type=int, choices=(0, 1), default=1)
    parser.add_argument("--policies", nargs="*", default=["interactive@step4", "balanced@measured"], metavar="NAME")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="scenarios whose name has one of these words")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="keep one JSON file per run here, and go on")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--share", type=float, default=1.0, help="of the requests; for trying the script out")
    parser.add_argument("--noise", type=float, default=0.0, help="of every step: standard deviation of its logarithm")
    parser.add_argument("--drift", type=float, default=0.0, help="slow change of every graph, as a share")
    parser.add_argument(
        "--leaving", type=float, default=0.0, help="share of the requests whose clients leave in 0 to 5 s"
    )
    parser.add_argument("--slots", type=int, default=64, help="request slots; rates stay those of 64")
    parser.add_argument(
        "--wrong", default="", metavar="SHAPE", help="a graph whose first nine measurements are 1.6 times too long"
    )
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    disturbed = {name: getattr(options, name) for name in ("noise", "drift", "slots", "wrong", "leaving")}
    found = scenarios(str(options.data), options.half, options.share, options.workers, options.out, **disturbed)
    if options.only:
        found = {s: run for s, run in found.items() if any(word in " ".join(s) for word in options.only)}
    runs = {scenario: columns(run, options.policies) for scenario, run in found.items()}
    tasks = [run for by_name in runs.values() for run in by_name.values()]
    documents = dict(
        zip(tasks, run_all(tasks, functools.partial(figures_at, options.out), options.workers, "policies"), strict=True)
    )
    cells = {s: {name: measures(documents[run]) for name, run in by_name.items()} for s, by_name in runs.items()}
    print(f"\n| scenario (half {options.half}) | best budget | its figures | {' | '.join(options.policies)} |")
    print("|---" * (3 + len(options.policies)) + "|")
    for scenario, by_name in cells.items():
        print(scenario_line(scenario, by_name, options.policies))
    print(f"\n| policy | score | worst | better | {' · '.join(MEASURES)} | dominated |\n|---|---|---|---|---|---|")
    for name in (*options.policies, *RIVALS):
        print(score_line(name, list(cells.values())))


if __name__ == "__main__":
    main()
