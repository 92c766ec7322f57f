"""Let a target write the text that its draft head learns from, and keep its hidden states.

python -m gpu.training.generate --kind chat --output SCRATCH --tokens 570000
python -m gpu.training.generate --kind text --model gpu/assets/byte-model --text tinyshakespeare.txt --output SCRATCH

A further run adds to the shards that SCRATCH holds, with prompts in another order: a prompt may come again.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import time
from collections.abc import Iterator

import torch

from gpu.model.weights import load_model, open_source
from gpu.training.byte_model import split_text
from gpu.training.chat_prompts import chat_prompts
from gpu.training.chat_tokenizer import END_OF_TURN, chat_token_ids, smollm2_path, smollm2_tokenizer
from gpu.training.generation import GenerationLimits, Prompt, generate
from gpu.training.samples import Sample, read_samples, write_shard

_SHARD_ANSWER_TOKENS = 8000
_TEXT_PROMPT_TOKENS = 48
_HELD_OUT_EVERY = 16
_TEXT_TEMPERATURES = (0.0, 0.7, 1.0)


def text_prompts(path: pathlib.Path, seed: int) -> Iterator[Prompt]:
    """Endless excerpts of the text file as prompts of the byte-level model; every 16th is from the held-out part."""
    generator = torch.Generator().manual_seed(seed)
    parts = split_text(path)
    for index in itertools.count():
        is_held_out = index % _HELD_OUT_EVERY == 0
        part = parts[int(is_held_out)]
        start = int(torch.randint(len(part) - _TEXT_PROMPT_TOKENS, (1,), generator=generator))
        ids = tuple(part[start : start + _TEXT_PROMPT_TOKENS].tolist())
        yield Prompt(ids, _TEXT_TEMPERATURES[index // _HELD_OUT_EVERY % 3 if is_held_out else index % 3], is_held_out)


def chat_model_prompts(model_path: pathlib.Path, seed: int) -> tuple[Iterator[Prompt], int]:
    """SmolLM2's prompts, and the id of the token that ends its answers."""
    tokenizer = smollm2_tokenizer(model_path)
    (end,) = tokenizer.encode(END_OF_TURN, add_special_tokens=False).ids
    prompts = (
        Prompt(tuple(chat_token_ids(tokenizer, question)), temperature, is_held_out)
        for question, temperature, is_held_out in chat_prompts(seed)
    )
    return prompts, end


def write_samples(samples: Iterator[Sample], directory: pathlib.Path, tokens: int) -> None:
    """Write shards of whole samples until `tokens` answer tokens lie there or no sample is left."""
    directory.mkdir(parents=True, exist_ok=True)
    number = len(list(directory.glob("*.safetensors")))
    done = sum(answer_tokens(sample) for sample in read_samples(directory))
    pending: list[Sample] = []
    started, fresh = time.monotonic(), 0
    for sample in samples:
        pending.append(sample)
        fresh += answer_tokens(sample)
        is_last = done + fresh >= tokens
        if is_last or sum(map(answer_tokens, pending)) >= _SHARD_ANSWER_TOKENS:
            write_shard(pending, directory / f"{number:05}.safetensors")
            number, pending = number + 1, []
            rate = fresh / (time.monotonic() - started)
            print(f"{done + fresh} answer tokens, {rate:.0f} a second, CPU {time.process_time():.0f} s", flush=True)
        if is_last:
            return
    if pending:
        write_shard(pending, directory / f"{number:05}.safetensors")


def answer_tokens(sample: Sample) -> int:
    """Tokens of the answer."""
    return sample.token_ids.shape[0] - sample.prompt_tokens


@torch.inference_mode()
def main() -> None:
    """Generate until there are enough tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("chat", "text"), required=True)
    parser.add_argument("--model", type=pathlib.Path, help="default: the installed SmolLM2")
    parser.add_argument("--text", type=pathlib.Path, help="the text file of --kind text")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, default=570_000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--answer-tokens", type=int, default=256)
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="float32 is the quicker one without AVX-512",
    )
    parser.add_argument("--seed", type=int, default=20261130)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.model or smollm2_path()
    seed = options.seed + len(read_samples(options.output))
    if options.kind == "chat":
        prompts, end = chat_model_prompts(path, seed)
        ends, longest = frozenset({end}), 128
    else:
        prompts, ends, longest = text_prompts(options.text, seed), frozenset[int](), _TEXT_PROMPT_TOKENS
    limits = GenerationLimits(options.rows, longest, options.answer_tokens, ends)
    model = load_model(open_source(path), getattr(torch, options.dtype), longest + options.answer_tokens)
    write_samples(generate(model, prompts, limits, seed), options.output, options.tokens)


if __name__ == "__main__":
    main()
