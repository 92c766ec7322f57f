"""What bench_serve measures Helios beside: transformers in this process, llama.cpp in an interpreter of its own."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import time
from collections.abc import Iterator
from typing import IO, Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from gpu.model.source import expected_shapes
from gpu.model.weights import open_source

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PEER_SCRIPT = pathlib.Path(__file__).with_name("llama_peer.py")


class TransformersPeer:
    """The model's own weights in transformers. All prompts at once, left-padded, without HTTP or streaming."""

    def __init__(self, path: pathlib.Path, dtype: str, threads: int) -> None:
        logging.disable_progress_bar()
        logging.set_verbosity_error()
        torch.set_num_threads(threads)
        self._model = load_transformers(path, DTYPES[dtype])

    def tokens_per_s(self, prompts: list[list[int]], tokens: int) -> float:
        """New tokens per second of one batched greedy generate call, prefill included."""
        width = max(map(len, prompts))
        padded = torch.tensor([[0] * (width - len(row)) + row for row in prompts])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
        began = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(
                padded,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
        return len(prompts) * tokens / (time.perf_counter() - began)


def load_transformers(path: pathlib.Path, dtype: torch.dtype) -> LlamaForCausalLM:
    """A GGUF file's or checkpoint's weights in transformers."""
    source = open_source(path)
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
    return LlamaForCausalLM.from_pretrained(None, config=config, state_dict=state, dtype=dtype).eval()


class LlamaPeer:
    """llama.cpp on the same GGUF file, in the file's own (quantised) number format."""

    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self._requests = requests
        self._answers = answers
        self.description = self._answer()

    def tokens_per_s(self, prompts: list[list[int]], tokens: int) -> float:
        """New tokens per second of parallel greedy sequences, prefill included."""
        self._requests.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._requests.flush()
        answer = self._answer()
        if [len(output) for output in answer["outputs"]] != [tokens] * len(prompts):
            raise RuntimeError("llama.cpp did not generate the tokens that it was asked for")
        return float(answer["tokens"] / answer["seconds"])

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the llama.cpp process ended; its standard error says why")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def llama_peer(
    python: str | None, path: pathlib.Path, threads: int, sequences: int, context: int
) -> Iterator[LlamaPeer | None]:
    """The peer in the interpreter `python`, with `context` tokens for each sequence; None without an interpreter."""
    if python is None:
        yield None
        return
    command = [python, str(PEER_SCRIPT), str(path), "--threads", str(threads)]
    command += ["--sequences", str(sequences), "--context", str(context)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield LlamaPeer(process.stdin, process.stdout)
    finally:
        process.stdin.close()
        process.wait(20)
