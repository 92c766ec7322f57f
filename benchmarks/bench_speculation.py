"""What drafts are worth over HTTP: tokens per second with them over tokens per second without, by number of streams.

    python benchmarks/bench_speculation.py [--model gpu/assets/byte-model --text FILE] [--streams 1 4 8]
        [--drafts 3 7] [--allocations none host device] [--fixed] [--copies] [--rounds 5] [--tokens 96]
        [--temperature 0] [--threads 1] [--json]

One server per way of execution, all with one set of prompts: without drafts, and for each draft depth and allocation
with the model's draft head; --fixed adds rounds that always verify every draft, --copies a server without the head.
Each round runs every server at each number of streams, one after the other while the rest are idle, so that a drift of
the machine hits all alike; ratios are taken within a round. With --text prompts are excerpts of its last twentieth,
otherwise chats. Answers that differ from the server's without drafts are counted: greedily there must be none. Wall
time is measured; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from served_streams import TOPICS, Round, essay_prompts, helios_server, run_round

from service.model_source import resolve_model

EXCERPT_BYTES = (64, 256)
PLAIN = "no drafts"


def read_prompts(text: pathlib.Path | None, count: int, seed: int) -> list[str]:
    """`count` prompts: excerpts of a file's last 5 %, or questions for a chat."""
    if text is None:
        return essay_prompts(count)
    content = text.read_text(encoding="utf-8")
    held_out = content[-len(content) // 20 :]
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        size = draw.randint(*EXCERPT_BYTES)
        start = draw.randrange(len(held_out) - size)
        found.append(held_out[start : start + size])
    return found


def ways(arguments: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Options of `helios serve` by the name of the way of execution; the one without drafts comes first."""
    found: dict[str, tuple[str, ...]] = {PLAIN: ()}
    for depth in arguments.drafts:
        rows = ("--draft-tokens", str(depth), "--speculative-token-capacity", str(arguments.capacity))
        for allocation in arguments.allocations:
            found[f"D={depth}, {allocation}"] = (*rows, "--draft-allocation", allocation)
        if arguments.fixed:
            found[f"D={depth}, fixed"] = (*rows, "--verification", f"fixed:{depth + 1}")
        if arguments.copies:
            found[f"D={depth}, copies alone"] = (*rows, "--draft-head", "none")
    return found


def row_of(done: Round, plain: Round) -> dict[str, float]:
    """A round's figures, and those over the round without drafts."""
    moved = done.counters
    return {
        "tokens_per_s": done.tokens_per_s,
        "ratio": done.tokens_per_s / plain.tokens_per_s,
        "accepted_per_round": done.accepted_per_round,
        "rounds": moved["flare_speculative_rounds_total"],
        "share_of_tokens": moved["flare_speculative_accepted_tokens_total"] / moved["flare_output_tokens_total"],
        "gap_ms": done.gap_ms,
        "different_answers": sum(a.text != b.text for a, b in zip(done.streams, plain.streams, strict=True)),
    }


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per round, number of streams and way."""
    model = resolve_model(arguments.model).name
    prompts = read_prompts(arguments.text, max(arguments.streams), arguments.seed)
    common = ("--model", arguments.model, "--threads", str(arguments.threads))
    rows = []
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(helios_server(*common, *more)) for name, more in ways(arguments).items()}

        def run(name: str, count: int) -> Round:
            return run_round(
                servers[name], model, prompts[:count], arguments.tokens, arguments.text is None, arguments.temperature
            )

        for count in arguments.streams:
            for name in servers:
                run(name, count)  # discovers the shapes
        for number in range(arguments.rounds):
            for count in arguments.streams:
                done = {name: run(name, count) for name in servers}
                rows += [
                    {"round": number, "streams": count, "way": name, **row_of(one, done[PLAIN])}
                    for name, one in done.items()
                ]
    return rows


def print_table(rows: list[dict[str, Any]], streams: Sequence[int]) -> None:
    """Medians over the rounds, with the ratio's range: accepted drafts per round and as a share of all tokens."""
    table = Table(title=f"drafts over HTTP, {os.cpu_count()} CPUs")
    for column in (
        "streams", "way", "tokens/s", "ratio (range)", "accepted", "share", "gap ms", "differ",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "way" else "right")
    for count in streams:
        for name in dict.fromkeys(row["way"] for row in rows):
            chosen = [row for row in rows if (row["streams"], row["way"]) == (count, name)]
            median = {key: statistics.median(row[key] for row in chosen) for key in chosen[0] if key != "way"}
            ratios = sorted(row["ratio"] for row in chosen)
            table.add_row(
                str(count),
                name,
                f"{median['tokens_per_s']:.1f}",
                f"{median['ratio']:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                f"{median['accepted_per_round']:.2f}",
                f"{median['share_of_tokens'] * 100:.0f} %",
                f"{median['gap_ms']:.1f}",
                str(sum(row["different_answers"] for row in chosen)),
            )
    Console().print(table)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(pathlib.Path(__file__).parents[1] / "gpu" / "assets" / "byte-model"))
    parser.add_argument("--text", type=pathlib.Path, help="prompts are excerpts of this file")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8], choices=range(1, len(TOPICS) + 1))
    parser.add_argument("--drafts", type=int, nargs="+", default=[3, 7])
    parser.add_argument("--allocations", nargs="*", default=["none", "host", "device"])
    parser.add_argument("--fixed", action="store_true", help="also rounds that always verify every draft")
    parser.add_argument("--copies", action="store_true", help="also servers without a draft head")
    parser.add_argument("--capacity", type=int, default=64, help="--speculative-token-capacity")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments)
    if arguments.json:
        print(json.dumps(rows))
    else:
        print_table(rows, arguments.streams)


if __name__ == "__main__":
    main()
