"""llama.cpp as a peer of bench_serve: parallel greedy sequences through llama-cpp-python's low-level API.

    PYTHON benchmarks/llama_peer.py MODEL.gguf --threads 1 --sequences 16 --context 2048

PYTHON is any interpreter that has llama_cpp and numpy; nothing of Helios is imported. Reads JSON lines such as
{"prompts": [[1, 2], [3]], "tokens": 48} and answers each with one line: {"seconds": wall time of prefill and decoding,
"first_token_s": when all first tokens were known, "tokens": new tokens in all, "outputs": their ids per prompt}.
All sequences start at once; each step decodes them in one llama_batch and takes the likeliest tokens. The first line
that it writes names the model and the library. Ends with its standard input.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

BATCH_TOKENS = 2048


@llama_cpp.llama_log_callback
def _silent(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """Nothing but answers is written."""


class LlamaSequences:
    """One context with room for `sequences` of `context` tokens each."""

    def __init__(self, path: str, threads: int, sequences: int, context: int) -> None:
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = sequences * context
        parameters.n_batch = BATCH_TOKENS
        parameters.n_seq_max = sequences
        parameters.n_threads = parameters.n_threads_batch = threads
        if hasattr(parameters, "kv_unified"):
            parameters.kv_unified = False  # a sequence attends its own part of the cache only
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise SystemExit(f"llama.cpp cannot make a context of {sequences} sequences of {context} tokens")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def description(self) -> str:
        """The model as llama.cpp names it."""
        text = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self._model, text, len(text))
        return text.value.decode()

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """`tokens` new tokens for each prompt."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        began = time.perf_counter()
        newest = self._prefill(prompts)
        first_s = time.perf_counter() - began
        outputs = [[token] for token in newest]
        for step in range(tokens - 1):
            entries = [(token, len(prompts[row]) + step, row, True) for row, token in enumerate(newest)]
            likeliest = self._decode(entries)
            newest = [likeliest[row] for row in range(len(prompts))]
            for output, token in zip(outputs, newest, strict=True):
                output.append(token)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "first_token_s": first_s, "tokens": len(prompts) * tokens, "outputs": outputs}

    def _prefill(self, prompts: list[list[int]]) -> list[int]:
        """The first token after each prompt; as many prompt tokens at a time as a batch holds."""
        entries = [
            (token, position, row, position == len(prompt) - 1)
            for row, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        likeliest: dict[int, int] = {}
        for start in range(0, len(entries), BATCH_TOKENS):
            likeliest |= self._decode(entries[start : start + BATCH_TOKENS])
        return [likeliest[row] for row in range(len(prompts))]

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """Run (token, position, sequence, whether its logits are wanted); the likeliest next token by sequence."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, (token, position, row, wanted) in enumerate(entries):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = row
            batch.logits[index] = wanted
        code = llama_cpp.llama_decode(self._context, batch)
        if code:
            raise SystemExit(f"llama_decode returned {code}")
        return {row: self._likeliest(index) for index, (_, _, row, wanted) in enumerate(entries) if wanted}

    def _likeliest(self, index: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--context", type=int, default=512, help="tokens of prompt and output of each sequence")
    arguments = parser.parse_args()
    sequences = LlamaSequences(arguments.model, arguments.threads, arguments.sequences, arguments.context)
    print(json.dumps({"model": sequences.description(), "llama_cpp": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(sequences.generate(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
