"""Learned acceptance beside every fixed draft depth, from 1 to 64 streams that never pause.

    python benchmarks/bench_depths.py --data DIR [--catalogs NAME ...] [--streams 1 2 4 ...] [--policies NAME ...]
        [--turns 6] [--workers 2] [--json]

A stream sends its next request when its answer is complete: 256 prompt tokens, 256 output tokens. Fixed depths use
vLLM's rule with every decoder always proposing as much (D = 0 proposes nothing); policies start with 0.5^d, whatever
the true acceptance is, and learn; NAME@prefix and NAME@pooled are a preset with that acceptance_model. One frame slot
and 0.25 ms of host time for each step, also with drafts. Figures are output tokens per second over the best fixed
depth's; above 1 is better. `drafts`: of the offered ones the accepted share. Deterministic.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
from typing import Any

from policy_runs import run_all, table

from scheduler.plans import Reason
from scheduler.policy import ACCEPTANCE_MODELS, PolicyConfig
from scheduler.simulation.acceptance import parse_acceptance
from scheduler.simulation.durations import HostCosts
from scheduler.simulation.experiment import Experiment, policy_by_name
from scheduler.simulation.machine import MachineSettings
from scheduler.simulation.results import Tally
from scheduler.simulation.workload import Arrival, Workload

CATALOGS = ("h100_sxm__llama-3.1-8b__bf16_tp1.allctx", "rtxpro6000__llama-3.1-8b__bf16_tp1.allctx")
ACCEPTANCE = {
    "likely": "mtp-8 gsm8k",
    "usual": "eagle3 Llama-3.1-8B-Instruct mt-bench",
    "weak": "eagle3 Qwen3-VL-30B",
}
STREAMS = (1, 2, 4, 8, 16, 32, 64)
WIDTHS = (1, 2, 3, 4, 5, 6, 8)
DRAFTS = 7
PROMPT, OUTPUT = 256, 256


@dataclasses.dataclass(frozen=True, slots=True)
class DepthRun:
    """One simulation: a catalog, an acceptance curve by its short name, streams, and a policy or `fixed:W`."""

    data: str
    catalog: str
    acceptance: str
    streams: int
    policy: str
    turns: int


def closed_loop(streams: int, turns: int) -> Workload:
    """`streams` sessions of `turns` requests, each sent when the one before has ended; they start 1 ms apart."""
    arrivals = []
    next_turn = {}
    for turn in range(turns):
        for stream in range(streams):
            index = turn * streams + stream
            start_ns = None if turn else stream * 1_000_000
            arrivals.append(Arrival(index, start_ns, PROMPT, OUTPUT, session=str(stream), prefix=""))
            if turn:
                next_turn[index - streams] = index
    return Workload(tuple(arrivals), next_turn)


def execute(run: DepthRun) -> dict[str, Any]:
    """Tokens per second between a fifth and nine tenths of all answers, and what drafting did."""
    name, _, model = run.policy.partition("@")
    policy = policy_by_name(name)
    assert policy is not None, f"{name} is no policy"
    if model:
        assert isinstance(policy, PolicyConfig), f"{name} has no acceptance_model"
        policy = policy.merged({"acceptance_model": model})
    path = pathlib.Path(run.data) / "acceptance" / "per_position_acceptance.csv"
    survival = parse_acceptance(path.read_text(), path.name, ACCEPTANCE[run.acceptance])
    experiment = Experiment(
        policy=policy,
        machine=MachineSettings(64, queue_depth=1, host=HostCosts(0.25, 0.25, 0.0), known_output_lengths=True),
        survival=survival,
        draft_tokens=DRAFTS,
    )
    result = experiment.run(closed_loop(run.streams, run.turns), table(run.data, run.catalog)).result
    ends = sorted(outcome.finished_ns for outcome in result.outcomes)
    first, last = len(ends) // 5, len(ends) * 9 // 10
    tokens = (last - first) * OUTPUT
    learning = result.reasons.get(Reason.ACCEPTANCE_LEARNING.value, Tally()).launches
    return {
        "tokens_per_s": tokens / ((ends[last] - ends[first]) / 1e9),
        "accepted_share": result.accepted_tokens / result.offered_tokens if result.offered_tokens else None,
        "plans": result.plans,
        "learning_plans": learning,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--catalogs", nargs="+", default=list(CATALOGS), metavar="NAME")
    parser.add_argument("--streams", nargs="+", type=int, default=list(STREAMS))
    parser.add_argument(
        "--policies",
        nargs="+",
        default=[f"{name}@{model}" for name in ("balanced", "interactive") for model in ACCEPTANCE_MODELS],
        metavar="NAME",
    )
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    make = functools.partial(DepthRun, str(options.data))
    names = [f"fixed:{width}" for width in WIDTHS] + options.policies
    tasks = [
        make(catalog, acceptance, streams, name, options.turns)
        for catalog in options.catalogs
        for acceptance in ACCEPTANCE
        for streams in options.streams
        for name in names
    ]
    found = dict(zip(tasks, run_all(tasks, execute, options.workers, "depths"), strict=True))
    if options.json:
        print(json.dumps([{**dataclasses.asdict(run), **figures} for run, figures in found.items()], indent=1))
        return
    for catalog in options.catalogs:
        for acceptance, words in ACCEPTANCE.items():
            print(f"\n### {catalog.split('__')[0]}, {acceptance} acceptance ({words})\n")
            print(f"| streams | best depth | its tokens/s | {' | '.join(names)} |\n" + "|---" * (3 + len(names)) + "|")
            for streams in options.streams:
                row = {name: found[make(catalog, acceptance, streams, name, options.turns)] for name in names}
                print(depth_line(streams, row))


def depth_line(streams: int, row: dict[str, dict[str, Any]]) -> str:
    """One number of streams: everybody's output over the best fixed depth's."""
    fixed = {name: found["tokens_per_s"] for name, found in row.items() if name.startswith("fixed")}
    best = max(fixed, key=lambda name: fixed[name])
    cells = []
    for name, found in row.items():
        text = f"{found['tokens_per_s'] / fixed[best]:.3f}"
        if name not in fixed and found["accepted_share"] is not None:
            text = f"**{text}** (drafts {found['accepted_share']:.0%}, learning {found['learning_plans']})"
        cells.append(text)
    return f"| {streams} | {int(best[6:]) - 1} | {fixed[best]:,.0f} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
