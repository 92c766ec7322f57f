"""First-token time and tokens per second at 1 and 8 concurrent chats, beside transformers on the same weights.

    python benchmarks/bench_serve.py [--rounds 5] [--tokens 48] [--threads 1] [--json]

Starts `helios serve` with the default model and loads the same weights into transformers in this process. Each round
runs Helios at 1 chat, transformers at batch 1, Helios at 8, transformers at batch 8, one after the other, so that a
drift of the machine hits all four alike; ratios are taken within a round. Greedy, float32, the same prompts and
the same number of new tokens. transformers gets all prompts of a batch at once and padded, and is not timed over HTTP:
an upper bound of what a server around it could do. Wall time is measured; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from gpu.model.source import expected_shapes
from gpu.model.weights import open_source
from service.model_source import resolve_model
from service.settings import DEFAULT_MODEL
from service.text import load_text_model

TOPICS = ("rivers", "violins", "chess", "bread", "comets", "bridges", "whales", "clocks")
CONCURRENCIES = (1, 8)
START_S = 180.0


def prompts(count: int) -> list[str]:
    """Distinct prompts of nearly one length."""
    return [f"Write a long and detailed essay about {topic}: history, people and craft." for topic in TOPICS[:count]]


@contextlib.contextmanager
def helios(threads: int) -> Iterator[str]:
    """A ready server's address; stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "service.cli", "serve", "--port", str(port), "--threads", str(threads)]
        process = subprocess.Popen(
            [*command, "--data-dir", str(pathlib.Path(folder) / "data")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_ready(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def wait_ready(base: str, process: subprocess.Popen[bytes]) -> None:
    """Returns once the server answers as ready; raises RuntimeError when it does not start."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{base}/health/ready", timeout=2).status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError("helios serve did not become ready")


def one_chat(client: openai.OpenAI, prompt: str, tokens: int) -> tuple[float, int, list[float]]:
    """(seconds to the first token, output tokens, arrival times of the chunks)."""
    began = time.perf_counter()
    arrivals = []
    used = 0
    for chunk in client.chat.completions.create(
        model=DEFAULT_MODEL,
        messages=[{"role": "user", "content": prompt}],
        stream=True,
        temperature=0,
        max_tokens=tokens,
        stream_options={"include_usage": True},
    ):
        if chunk.choices and chunk.choices[0].delta.content:
            arrivals.append(time.perf_counter() - began)
        if chunk.usage is not None:
            used = chunk.usage.completion_tokens
    return arrivals[0], used, arrivals


def helios_round(base: str, count: int, tokens: int) -> dict[str, float]:
    """`count` chats at once: first-token times and the whole's tokens per second."""
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=300)
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        chats = list(pool.map(lambda prompt: one_chat(client, prompt, tokens), prompts(count)))
    took = time.perf_counter() - began
    gaps = [b - a for _, _, arrivals in chats for a, b in itertools.pairwise(arrivals)]
    return {
        "ttft_ms": statistics.median(first for first, _, _ in chats) * 1e3,
        "worst_ttft_ms": max(first for first, _, _ in chats) * 1e3,
        "gap_ms": statistics.median(gaps) * 1e3,
        "tokens_per_s": sum(used for _, used, _ in chats) / took,
    }


def transformers_model(threads: int) -> LlamaForCausalLM:
    """The default model's own weights in transformers."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(threads)
    source = open_source(resolve_model(DEFAULT_MODEL).path)
    c = source.config
    config = LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        rms_norm_eps=c.norm_epsilon,
        max_position_embeddings=c.context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        tie_word_embeddings=True,
    )
    state = {name: source.tensor(name) for name in expected_shapes(c)}
    model = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=state, dtype=torch.float32)
    return model.eval()


def transformers_round(model: LlamaForCausalLM, ids: list[list[int]], tokens: int) -> float:
    """Tokens per second of one batched greedy generate call."""
    width = max(map(len, ids))
    padded = torch.tensor([[0] * (width - len(row)) + row for row in ids])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
    began = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            padded, attention_mask=mask, do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0
        )
    return len(ids) * tokens / (time.perf_counter() - began)


def measure(rounds: int, tokens: int, threads: int) -> list[dict[str, Any]]:
    """One row per round and concurrency."""
    text = load_text_model(resolve_model(DEFAULT_MODEL))
    model = transformers_model(threads)
    chats = [text.render_chat([{"role": "user", "content": prompt}]) for prompt in prompts(max(CONCURRENCIES))]
    ids = [text.encode(chat, add_special_tokens=False) for chat in chats]
    rows = []
    with helios(threads) as base:
        for n in CONCURRENCIES:
            helios_round(base, n, tokens)  # discovers the shapes
            transformers_round(model, ids[:n], 4)
        for number in range(rounds):
            for n in CONCURRENCIES:
                row = {"round": number, "chats": n, **helios_round(base, n, tokens)}
                row["transformers_tokens_per_s"] = transformers_round(model, ids[:n], tokens)
                row["ratio"] = row["tokens_per_s"] / row["transformers_tokens_per_s"]
                rows.append(row)
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Medians over the rounds, with the ratio's range."""
    table = Table(title=f"helios serve beside transformers, {os.cpu_count()} CPUs")
    for column in ("chats", "TTFT ms", "worst TTFT ms", "gap ms", "tokens/s", "transformers tokens/s", "ratio (range)"):
        table.add_column(column, justify="right")
    for n in CONCURRENCIES:
        chosen = [row for row in rows if row["chats"] == n]
        medians = {key: statistics.median(row[key] for row in chosen) for key in chosen[0]}
        ratios = sorted(row["ratio"] for row in chosen)
        table.add_row(
            str(n),
            f"{medians['ttft_ms']:.0f}",
            f"{medians['worst_ttft_ms']:.0f}",
            f"{medians['gap_ms']:.1f}",
            f"{medians['tokens_per_s']:.1f}",
            f"{medians['transformers_tokens_per_s']:.1f}",
            f"{medians['ratio']:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        )
    Console().print(table)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments.rounds, arguments.tokens, arguments.threads)
    if arguments.json:
        print(json.dumps(rows))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
