"""First-token time and tokens per second at 1 to 16 concurrent chats, beside transformers and llama.cpp.

    python benchmarks/bench_serve.py [--rounds 5] [--tokens 48] [--threads 1] [--chats 1 4 8 16]
        [--llama-cpp PYTHON] [--serve "--mixed-prefill --draft-tokens 3"] [--json]

Starts `helios serve` with the default model and loads the same weights into transformers in this process; with
--llama-cpp, an interpreter that has llama-cpp-python, also into llama.cpp in a third. Each round runs Helios,
transformers and llama.cpp at each number of chats, one after the other, so that a drift of the machine hits all alike;
ratios are taken within a round. Greedy, the same prompts and the same number of new tokens. Helios and transformers
compute in float32; llama.cpp in the GGUF file's own 4-bit and 8-bit formats. Both others get all prompts of a batch at
once and are not timed over HTTP: an upper bound of what a server around them could do. Wall time is measured; run it on
a quiet machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from served_streams import TOPICS, essay_prompts, helios_server, run_round
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from gpu.model.source import expected_shapes
from gpu.model.weights import open_source
from service.model_source import resolve_model
from service.settings import DEFAULT_MODEL
from service.text import load_text_model

LLAMA_CPP_SCRIPT = pathlib.Path(__file__).with_name("llama_cpp_generate.py")


def helios_round(base: str, count: int, tokens: int) -> dict[str, float]:
    """`count` chats at once: first-token times and the whole's tokens per second."""
    done = run_round(base, DEFAULT_MODEL, essay_prompts(count), tokens, chat=True)
    return {
        "ttft_ms": statistics.median(done.first_ms),
        "worst_ttft_ms": max(done.first_ms),
        "gap_ms": done.gap_ms,
        "busy_share": done.busy_share,
        "accepted_per_round": done.accepted_per_round,
        "tokens_per_s": done.tokens_per_s,
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


class LlamaCpp:
    """llama.cpp in another interpreter, which answers over pipes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def round(self, ids: list[list[int]], tokens: int) -> float:
        """Tokens per second of one batched greedy call; raises RuntimeError when the other process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"prompts": ids, "tokens": tokens}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("llama.cpp ended; its messages are above")
        return len(ids) * tokens / float(json.loads(line)["seconds"])


@contextlib.contextmanager
def llama_cpp(python: str | None, threads: int) -> Iterator[LlamaCpp | None]:
    """llama.cpp with the default model's file, or None without an interpreter for it."""
    if python is None:
        yield None
        return
    command = [python, str(LLAMA_CPP_SCRIPT), str(resolve_model(DEFAULT_MODEL).path), str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield LlamaCpp(process)
        finally:
            process.terminate()


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per round and number of chats."""
    tokens, threads = arguments.tokens, arguments.threads
    text = load_text_model(resolve_model(DEFAULT_MODEL))
    model = transformers_model(threads)
    chats = [text.render_chat([{"role": "user", "content": prompt}]) for prompt in essay_prompts(max(arguments.chats))]
    ids = [text.encode(chat, add_special_tokens=False) for chat in chats]
    rows = []
    options = ("--threads", str(threads), *shlex.split(arguments.serve))
    with helios_server(*options) as base, llama_cpp(arguments.llama_cpp, threads) as other:
        for n in arguments.chats:
            helios_round(base, n, tokens)  # discovers the shapes
            transformers_round(model, ids[:n], 4)
            if other is not None:
                other.round(ids[:n], 4)
        for number in range(arguments.rounds):
            for n in arguments.chats:
                row = {"round": number, "chats": n, **helios_round(base, n, tokens)}
                row["transformers_tokens_per_s"] = transformers_round(model, ids[:n], tokens)
                row["ratio"] = row["tokens_per_s"] / row["transformers_tokens_per_s"]
                if other is not None:
                    row["llama_cpp_tokens_per_s"] = other.round(ids[:n], tokens)
                    row["llama_cpp_ratio"] = row["tokens_per_s"] / row["llama_cpp_tokens_per_s"]
                rows.append(row)
    return rows


def print_table(rows: list[dict[str, Any]], chats: Sequence[int]) -> None:
    """Medians over the rounds, with the ratios' ranges."""
    others = [name for name in ("transformers", "llama_cpp") if f"{name}_tokens_per_s" in rows[0]]
    table = Table(title=f"helios serve beside {' and '.join(others)}, {os.cpu_count()} CPUs")
    titles = ["chats", "TTFT ms", "worst TTFT ms", "gap ms", "busy %", "tokens/s"]
    for column in (*titles, *(title for name in others for title in (f"{name} tokens/s", "ratio (range)"))):
        table.add_column(column, justify="right")
    for n in chats:
        chosen = [row for row in rows if row["chats"] == n]
        medians = {key: statistics.median(row[key] for row in chosen) for key in chosen[0]}
        cells = [
            str(n),
            f"{medians['ttft_ms']:.0f}",
            f"{medians['worst_ttft_ms']:.0f}",
            f"{medians['gap_ms']:.1f}",
            f"{medians['busy_share'] * 100:.1f}",
            f"{medians['tokens_per_s']:.1f}",
        ]
        for name in others:
            key = "ratio" if name == "transformers" else f"{name}_ratio"
            ratios = sorted(row[key] for row in chosen)
            cells += [
                f"{medians[f'{name}_tokens_per_s']:.1f}",
                f"{medians[key]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            ]
        table.add_row(*cells)
    Console().print(table)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chats", type=int, nargs="+", default=[1, 4, 8, 16], choices=range(1, len(TOPICS) + 1))
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--serve", metavar="OPTIONS", default="", help="more options of helios serve, in one string")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments)
    if arguments.json:
        print(json.dumps(rows))
    else:
        print_table(rows, arguments.chats)


if __name__ == "__main__":
    main()
