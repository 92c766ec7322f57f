"""Time to the first token and tokens per second of concurrent chats, beside transformers and llama.cpp.

    python benchmarks/bench_serve.py [--streams 1 4 8 16] [--rounds 5] [--tokens 48] [--threads 1]
        [--dtype float32|bfloat16] [--llama-python PATH] [--json] [-- OPTIONS OF helios serve]

Starts `helios serve` with the default model, loads the same weights into transformers in this process and, where
--llama-python names an interpreter that has llama_cpp, the same GGUF file into llama.cpp. For each number of streams a
round runs Helios and then its peers, one after the other, so that a drift of the machine hits all alike; ratios are
taken within a round. Greedy; all have the same prompts and number of new tokens. The prompts of a round are new, so
that no prefix cache holds more of them than the chat template's own beginning; "cached" is the share it held.

The peers get all prompts of a batch at once and are not timed over HTTP: upper bounds of what servers around them
could do. --dtype is that of Helios and transformers; llama.cpp multiplies in the file's own quantised format. "busy" is
the share of the round that Helios' programs ran, by its counters; "accepted" the drafts that became output per round of
a request; "longest plan" the upper bound of the histogram's last bucket that moved. Wall time is measured; run it on a
quiet machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import statistics
from collections.abc import Sequence
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from serve_peers import DTYPES, LlamaPeer, TransformersPeer, llama_peer
from served_streams import TOPICS, helios_server, run_round

from service.model_source import resolve_model
from service.settings import DEFAULT_MODEL
from service.text import TextModel, load_text_model

SAMPLE = re.compile(r"(flare_\w+)(?:\{(.*)\})? (\S+)")
PLAN_BUCKET = "flare_scheduler_plan_seconds_bucket"

Counters = dict[tuple[str, str], float]


def prompts(count: int, number: int) -> list[str]:
    """Distinct prompts of nearly one length, new for each number (0 to 999)."""
    return [
        f"Number {number:03d}. Write a long and detailed essay about {topic}: history, people and craft."
        for topic in TOPICS[:count]
    ]


def prompt_ids(text: TextModel, count: int, number: int) -> list[list[int]]:
    """The same prompts as chats in token ids."""
    chats = [text.render_chat([{"role": "user", "content": prompt}]) for prompt in prompts(count, number)]
    return [text.encode(chat, add_special_tokens=False) for chat in chats]


def labelled_counters(base: str) -> Counters:
    """Every sample that /metrics shows, by name and label values."""
    lines = httpx.get(f"{base}/metrics", timeout=10).text.splitlines()
    samples = [sample for sample in map(SAMPLE.fullmatch, lines) if sample]
    return {(sample[1], sample[2] or ""): float(sample[3]) for sample in samples}


def total(moved: Counters, name: str, label: str = "") -> float:
    """Sum over the series of `name` whose labels contain `label`."""
    return sum(value for (known, labels), value in moved.items() if known == name and label in labels)


def longest_plan_ms(moved: Counters) -> float:
    """Upper bound of the slowest plan call: of the last bucket that holds one."""
    buckets = sorted(
        (float(labels.partition('le="')[2].partition('"')[0].replace("+Inf", "inf")), count)
        for (name, labels), count in moved.items()
        if name == PLAN_BUCKET
    )
    plans = buckets[-1][1]
    return next(bound for bound, count in buckets if count == plans) * 1e3 if plans else math.nan


def helios_round(base: str, chats: Sequence[str], tokens: int) -> dict[str, float]:
    """All chats at once: first-token times, the whole's tokens per second, and what the counters say of it."""
    before = labelled_counters(base)
    done = run_round(base, DEFAULT_MODEL, chats, tokens, chat=True)
    moved = {key: value - before.get(key, 0.0) for key, value in labelled_counters(base).items()}
    hits = total(moved, "flare_prefix_cache_tokens_total", "hit")
    return {
        "ttft_ms": statistics.median(done.first_ms),
        "worst_ttft_ms": max(done.first_ms),
        "gap_ms": done.gap_ms,
        "tokens_per_s": done.tokens_per_s,
        "busy": done.busy_share,
        "accepted": done.accepted_per_round,
        "longest_plan_ms": longest_plan_ms(moved),
        "cached": hits / max(1.0, total(moved, "flare_prefix_cache_tokens_total")),
    }


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per round and number of streams; the first pass, which discovers the shapes, is not counted."""
    source = resolve_model(DEFAULT_MODEL)
    text = load_text_model(source)
    transformers = TransformersPeer(source.path, arguments.dtype, arguments.threads)
    most, tokens = max(arguments.streams), arguments.tokens
    context = -(-(max(map(len, prompt_ids(text, most, 0))) + 8 + tokens) // 256) * 256
    options = ["--threads", str(arguments.threads), "--dtype", arguments.dtype, *arguments.helios]
    numbers = itertools.count()
    rows = []
    with (
        llama_peer(arguments.llama_python, source.path, arguments.threads, most, context) as llama,
        helios_server(*options) as base,
    ):
        for streams in arguments.streams:
            chats, ids = prompts(streams, number := next(numbers)), prompt_ids(text, streams, number)
            helios_round(base, chats, tokens)
            peers(transformers, llama, ids, 4)
        for round_number, streams in itertools.product(range(arguments.rounds), arguments.streams):
            chats, ids = prompts(streams, number := next(numbers)), prompt_ids(text, streams, number)
            row = {"round": round_number, "streams": streams, **helios_round(base, chats, tokens)}
            for name, value in peers(transformers, llama, ids, tokens).items():
                row |= {f"{name}_tokens_per_s": value, f"{name}_ratio": row["tokens_per_s"] / value}
            rows.append(row)
    return rows


def peers(
    transformers: TransformersPeer, llama: LlamaPeer | None, ids: list[list[int]], tokens: int
) -> dict[str, float]:
    """Tokens per second of each peer."""
    measured = {"transformers": transformers.tokens_per_s(ids, tokens)}
    if llama is not None:
        measured["llama_cpp"] = llama.tokens_per_s(ids, tokens)
    return measured


def print_table(rows: list[dict[str, Any]], title: str) -> None:
    """Medians over the rounds, ratios with their range, and the worst first token, plan and busy share."""
    names = [name for name in ("transformers", "llama_cpp") if f"{name}_ratio" in rows[0]]
    table = Table(title=title)
    for column in ("streams", "TTFT ms p50", "TTFT ms worst", "gap ms", "tokens/s"):
        table.add_column(column, justify="right")
    for name in names:
        table.add_column(f"{name} tokens/s", justify="right")
        table.add_column("ratio (range)", justify="right")
    for column in ("busy", "accepted", "longest plan ms", "cached"):
        table.add_column(column, justify="right")
    for streams in dict.fromkeys(row["streams"] for row in rows):
        chosen = [row for row in rows if row["streams"] == streams]
        median = {key: statistics.median(row[key] for row in chosen) for key in chosen[0]}
        cells = [str(streams), f"{median['ttft_ms']:.0f}", f"{max(row['worst_ttft_ms'] for row in chosen):.0f}"]
        cells += [f"{median['gap_ms']:.1f}", f"{median['tokens_per_s']:.1f}"]
        for name in names:
            ratios = [row[f"{name}_ratio"] for row in chosen]
            cells.append(f"{median[f'{name}_tokens_per_s']:.1f}")
            cells.append(f"{median[f'{name}_ratio']:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        cells.append(f"{median['busy']:.1%}")
        cells.append(f"{median['accepted']:.2f}")
        cells.append(f"≤ {max(row['longest_plan_ms'] for row in chosen):.2f}")
        cells.append(f"{median['cached']:.0%}")
        table.add_row(*cells)
    Console(width=max(160, Console().width)).print(table)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float32")
    parser.add_argument("--llama-python", metavar="PATH", help="an interpreter that has llama_cpp")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("helios", nargs="*", metavar="-- OPTION", help="more options of helios serve")
    arguments = parser.parse_args()
    if not 1 <= min(arguments.streams) <= max(arguments.streams) <= len(TOPICS):
        parser.error(f"--streams are 1 to {len(TOPICS)}")
    rows = measure(arguments)
    if arguments.json:
        print(json.dumps(rows))
        return
    options = " ".join(arguments.helios)
    print_table(rows, f"helios serve {options} {arguments.dtype}, {os.cpu_count()} CPUs, {arguments.threads} threads")


if __name__ == "__main__":
    main()
