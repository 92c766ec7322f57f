"""The optimisers and the learning-rate schedule that all training scripts share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import torch
from torch import nn

_COOLED_SHARE = 0.02  # the last learning rate, as a share of the first


@dataclasses.dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates: `matrices` of weight matrices (Muon), `others` of embeddings, norms and biases (Adam)."""

    matrices: float
    others: float
    weight_decay: float
    warm_up_steps: int


class Optimiser:
    """Muon for matrices inside layers and AdamW for everything else, with warm-up and a cosine schedule."""

    def __init__(self, module: nn.Module, rates: Rates, steps: int, adam_names: Iterable[str] = ()) -> None:
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        excluded = tuple(adam_names)
        matrices = [p for name, p in named if p.dim() == 2 and not name.startswith(excluded or ("\0",))]
        taken = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in taken]
        self._parameters = [*matrices, *others]
        adam = torch.optim.AdamW(others, lr=rates.others, betas=(0.9, 0.95), weight_decay=0.0)
        self._optimisers: list[tuple[torch.optim.Optimizer, float]] = [(adam, rates.others)]
        if matrices:
            muon = torch.optim.Muon(
                matrices, lr=rates.matrices, weight_decay=rates.weight_decay, adjust_lr_fn="match_rms_adamw"
            )
            self._optimisers.append((muon, rates.matrices))
        self._warm_up, self._steps, self._done = rates.warm_up_steps, steps, 0

    def step(self, loss: torch.Tensor) -> None:
        """Backpropagate `loss`, clip the gradient and move the parameters."""
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        share = self._share()
        for optimiser, peak in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = peak * share
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self._done += 1

    def _share(self) -> float:
        if self._done < self._warm_up:
            return (self._done + 1) / self._warm_up
        progress = (self._done - self._warm_up) / max(1, self._steps - self._warm_up)
        return _COOLED_SHARE + (1 - _COOLED_SHARE) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
