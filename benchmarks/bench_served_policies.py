"""What a client sees of each policy over HTTP: first tokens, gaps and throughput under open-loop arrivals.

    python benchmarks/bench_served_policies.py --server http://127.0.0.1:8000 --database /tmp/data/helios.db
        [--presets balanced throughput interactive budget:512] [--rounds 2] [--rate 1.5] [--requests 40]
        [--prompt-tokens 1000] [--answer-tokens 200] [--chats 0] [--chat-tokens 96] [--json]

Give it a running `helios serve` that nobody else uses, and its SQLite store. In each round every preset is put in force
live (`helios policy set`), one after the other, and gets the same arrivals: Poisson at --rate a second, prompts of
lognormal length (sigma 0.4, median --prompt-tokens, within a quarter and 1.7 of it), answers uniform within half of
--answer-tokens. --chats adds as many short chats that stream all the while, one after the other. The next preset starts
when all answers are there, so that a drift of the machine hits all alike; compare presets within a round.

TTFT and gaps are the client's clock; a gap is the time between two pieces of text of one answer. The plans of each run
are read from the store afterwards: `engine_...`: the same without HTTP and the client; `most_tokens` in one plan,
decoding requests and prompt tokens together; `over`: plans of more than the budget; `passed_over`: plans that left
out a request in the middle of its answer. Wall time is measured: on a simulated device choose --time-scale so that
`device_s` is nearly `wall_s` while answers run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import math
import pathlib
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

WORDS = ("river", "violin", "chess", "bread", "comet", "bridge", "whale", "clock", "garden", "map", "island", "train")
LANES = """
SELECT p.fence, p.kind, p.reason, p.committed_ns, p.completed_ns, p.device_ms, l.request_id, l.role, l.prompt_tokens,
    l.committed_tokens, l.published_ns, r.queue_ms + r.prefill_ms AS first_ms
FROM plans p JOIN plan_lanes l USING (run_id, fence) JOIN requests r USING (run_id, request_id)
WHERE p.policy_version = ? AND p.outcome = 'completed' AND p.kind IN ('prefill', 'decode', 'mixed')
ORDER BY p.run_id, p.fence
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One arrival: seconds after the start, and tokens (of the prompt nearly, of the answer exactly)."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Seconds from the request's start to each piece of text, and the server's count of tokens."""

    arrivals_s: tuple[float, ...]
    tokens: int


def arrivals(options: argparse.Namespace, round_number: int) -> list[Request]:
    """The requests of a round, the same for every preset."""
    luck = random.Random(round_number)
    found, now = [], 0.0
    for _ in range(options.requests):
        now += luck.expovariate(options.rate)
        tokens = options.prompt_tokens * math.exp(luck.gauss(0, 0.4))
        prompt = int(min(max(tokens, options.prompt_tokens / 4), options.prompt_tokens * 1.7))
        answer = luck.randint(options.answer_tokens // 2, options.answer_tokens * 3 // 2)
        found.append(Request(now, prompt, max(1, answer)))
    return found


async def read(client: httpx.AsyncClient, model: str, prompt: str, tokens: int) -> Answer:
    """Streams one answer; raises httpx.HTTPStatusError when it is refused."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, found, used = time.perf_counter(), [], 0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(f"the server ended an answer: {chunk['error']}")
            if any(choice["text"] for choice in chunk["choices"]):
                found.append(time.perf_counter() - began)
            used = (chunk.get("usage") or {}).get("completion_tokens", used)
    return Answer(tuple(found), used)


def words(luck: random.Random, tokens: int) -> str:
    """Common words, one token each nearly always; drawn anew, so that hardly a prefix is cached."""
    return " ".join(luck.choice(WORDS) for _ in range(tokens))


async def load(
    options: argparse.Namespace, model: str, requests: Sequence[Request]
) -> tuple[list[Answer], list[Answer]]:
    """The answers to `requests`, and those of the chats that stream beside them."""
    luck, began = random.Random(time.time_ns()), time.perf_counter()

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=options.server, timeout=600, limits=limits) as client:

        async def one(request: Request) -> Answer:
            await asyncio.sleep(max(0.0, began + request.at_s - time.perf_counter()))
            return await read(client, model, words(luck, request.prompt_tokens), request.answer_tokens)

        async def chat() -> list[Answer]:
            found = []
            while not arrived.is_set():
                found.append(await read(client, model, words(luck, 24), options.chat_tokens))
            return found

        arrived = asyncio.Event()
        chats = [asyncio.create_task(chat()) for _ in range(options.chats)]
        answers = await asyncio.gather(*map(one, requests))
        arrived.set()
        return answers, list(itertools.chain.from_iterable(await asyncio.gather(*chats)))


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def figures(answers: Sequence[Answer], prefix: str) -> dict[str, float]:
    """First tokens (ms), gaps (ms) and how many answers there were."""
    first = [answer.arrivals_s[0] * 1e3 for answer in answers if answer.arrivals_s]
    gaps = [(b - a) * 1e3 for answer in answers for a, b in itertools.pairwise(answer.arrivals_s)]
    return {
        f"{prefix}ttft_p50_ms": percentile(first, 0.5),
        f"{prefix}ttft_p99_ms": percentile(first, 0.99),
        f"{prefix}gap_p50_ms": percentile(gaps, 0.5),
        f"{prefix}gap_p99_ms": percentile(gaps, 0.99),
        f"{prefix}answers": len(answers),
    }


def put_in_force(server: str, preset: str) -> int:
    """The version under which `preset` is in force."""
    command = [sys.executable, "-m", "service.cli", "policy", "set", "--preset", preset, "--server", server, "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{preset} cannot be put in force: {done.stderr.strip()}")
    return int(httpx.get(f"{server}/api/policy", timeout=30).json()["version"])


def lanes_of(database: pathlib.Path, version: int) -> list[list[sqlite3.Row]]:
    """The completed plans of one version in order, each as its lanes."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as store:
        store.row_factory = sqlite3.Row
        rows = store.execute(LANES, (version,)).fetchall()
    return [list(lanes) for _, lanes in itertools.groupby(rows, key=lambda row: row["fence"])]


def passed_over(plans: Sequence[Sequence[sqlite3.Row]]) -> int:
    """Plans that left out an answer: its first token was there when they were made, and they were not past its last."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for lane in itertools.chain.from_iterable(plans):
        if lane["committed_tokens"]:
            first.setdefault(lane["request_id"], lane["completed_ns"])
            last[lane["request_id"]] = lane["fence"]
    found = 0
    for plan in plans:
        served = {lane["request_id"] for lane in plan if lane["role"] == "decode"}
        made, fence = plan[0]["committed_ns"], plan[0]["fence"]
        found += any(at <= made and last[name] >= fence and name not in served for name, at in first.items())
    return found


def engine_figures(plans: Sequence[Sequence[sqlite3.Row]]) -> dict[str, float]:
    """First tokens and gaps as the engine published them, without HTTP and the client."""
    outputs: dict[str, list[int]] = {}
    first: dict[str, float] = {}
    for lane in itertools.chain.from_iterable(plans):
        if lane["committed_tokens"] and lane["published_ns"] is not None and lane["first_ms"] is not None:
            outputs.setdefault(lane["request_id"], []).append(lane["published_ns"])
            first[lane["request_id"]] = lane["first_ms"]
    gaps = [(b - a) / 1e6 for times in outputs.values() for a, b in itertools.pairwise(times)]
    return {
        "engine_first_p50_ms": percentile(list(first.values()), 0.5),
        "engine_first_p99_ms": percentile(list(first.values()), 0.99),
        "engine_gap_p99_ms": percentile(gaps, 0.99),
    }


def plan_figures(database: pathlib.Path, version: int, preset: str) -> dict[str, float]:
    """What the store says of the plans of one version: counts, device time, and how many broke the preset's rule."""
    plans = lanes_of(database, version)
    tokens = [sum(1 if lane["role"] == "decode" else lane["prompt_tokens"] for lane in plan) for plan in plans]
    budget = int(preset.partition(":")[2] or 0)
    return {
        "plans": len(plans),
        "mixed": sum(plan[0]["kind"] == "mixed" for plan in plans),
        "by_budget": sum(plan[0]["reason"] == "token_budget" for plan in plans),
        "most_tokens": max(tokens, default=0),
        "over": sum(count > budget for count in tokens) if budget else 0,
        "passed_over": passed_over(plans),
        "device_s": sum(plan[0]["device_ms"] for plan in plans) / 1e3,
        **engine_figures(plans),
    }


def run(options: argparse.Namespace, model: str, number: int, preset: str) -> dict[str, Any]:
    """One preset in one round."""
    version = put_in_force(options.server, preset)
    began = time.perf_counter()
    answers, chats = asyncio.run(load(options, model, arrivals(options, number)))
    wall_s = time.perf_counter() - began
    tokens = sum(answer.tokens for answer in (*answers, *chats))
    row = {"round": number, "preset": preset, "version": version, "wall_s": wall_s, "tokens_per_s": tokens / wall_s}
    row |= figures(answers, "")
    return row | (figures(chats, "chat_") if options.chats else {})


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Every figure, one line for a run."""
    made = Table(*rows[0].keys())
    for row in rows:
        made.add_row(*(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    return made


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--database", required=True, type=pathlib.Path)
    parser.add_argument("--presets", nargs="+", default=["balanced", "throughput", "interactive", "budget:512"])
    for name, default in (("rounds", 2), ("requests", 40), ("prompt-tokens", 1000), ("answer-tokens", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("chats", 0), ("chat-tokens", 96)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=1.5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    options, progress = parse(), Console(stderr=True)
    model = httpx.get(f"{options.server}/v1/models", timeout=30).json()["data"][0]["id"]
    rows = []
    for number in range(options.rounds):
        for preset in options.presets:
            progress.print(f"round {number + 1} of {options.rounds}: {preset}")
            rows.append(run(options, model, number, preset))
            if options.json:
                progress.print_json(json.dumps(rows[-1]))
    time.sleep(3)  # the recorder writes the last rows within a second or two
    rows = [row | plan_figures(options.database, row["version"], row["preset"]) for row in rows]
    print(json.dumps(rows, indent=2)) if options.json else Console(width=240).print(table(rows))


if __name__ == "__main__":
    main()
