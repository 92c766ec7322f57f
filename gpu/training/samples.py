"""Generated text with the target's hidden states, in safetensors shards of a scratch directory."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import torch
from safetensors.torch import load_file, save_file


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One prompt with its answer. The first `prompt_tokens` of `token_ids` [tokens] are the prompt.

    `hidden` [tokens, hidden] float16: before the final norm, after each token. `log_totals` [tokens] float32: the
    logarithm of the softmax's denominator there, 0 before the prompt's last token. temperature 0 is greedy.
    """

    token_ids: torch.Tensor
    hidden: torch.Tensor
    log_totals: torch.Tensor
    prompt_tokens: int
    temperature: float
    is_held_out: bool


def write_shard(samples: Sequence[Sample], path: pathlib.Path) -> None:
    """Write whole samples; the file appears under its name only when complete."""
    numbers = [(s.token_ids.shape[0], s.prompt_tokens, int(s.is_held_out)) for s in samples]
    tensors = {
        "token_ids": torch.cat([sample.token_ids for sample in samples]).int(),
        "hidden": torch.cat([sample.hidden for sample in samples]),
        "log_totals": torch.cat([sample.log_totals for sample in samples]),
        "numbers": torch.tensor(numbers, dtype=torch.int64),
        "temperatures": torch.tensor([sample.temperature for sample in samples], dtype=torch.float32),
    }
    unfinished = path.with_suffix(".part")
    save_file(tensors, unfinished)
    unfinished.rename(path)


def read_samples(directory: pathlib.Path) -> list[Sample]:
    """Every sample of every shard, in the order of generation."""
    samples = []
    for path in sorted(directory.glob("*.safetensors")):
        shard = load_file(path)
        lengths = shard["numbers"][:, 0].tolist()
        parts = [torch.split(shard[name], lengths) for name in ("token_ids", "hidden", "log_totals")]
        rows = zip(*parts, shard["numbers"].tolist(), shard["temperatures"].tolist(), strict=True)
        for token_ids, hidden, log_totals, (_, prompt_tokens, held_out), temperature in rows:
            samples.append(
                Sample(token_ids.long(), hidden, log_totals, prompt_tokens, round(temperature, 4), bool(held_out))
            )
    return samples
