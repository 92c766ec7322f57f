"""What the byte-level model says greedily, by transformers: one sequence at a time, no pages, batches or drafts."""

from __future__ import annotations

import pathlib

import torch
from transformers import LlamaForCausalLM
from transformers.utils import logging

SMALLEST_MARGIN = 2e-4
"""Logits: were the two likeliest tokens closer, float32 sums in another order could decide otherwise."""


class ExpectedAnswers:
    """Greedy continuations of text in float32, each computed once to the longest length asked for."""

    def __init__(self, model_path: pathlib.Path) -> None:
        logging.disable_progress_bar()
        torch.set_num_threads(1)
        self._model = LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self._known: dict[str, str] = {}

    def __call__(self, prompt: str, tokens: int) -> str:
        """The first `tokens` bytes of the answer; fails where the model itself is nearly undecided."""
        if len(self._known.get(prompt, "")) < tokens:
            self._known[prompt] = self._generate(prompt, tokens)
        return self._known[prompt][:tokens]

    @torch.inference_mode()
    def _generate(self, prompt: str, tokens: int) -> str:
        ids = torch.tensor([list(prompt.encode())])
        done = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=0,
        )
        best = torch.stack([logits[0].topk(2).values for logits in done.logits])
        margin = float((best[:, 0] - best[:, 1]).min())
        assert margin > SMALLEST_MARGIN, f"choose another prompt: {prompt!r} is decided by {margin}"
        return bytes(done.sequences[0, ids.shape[1] :].tolist()).decode("ascii")
