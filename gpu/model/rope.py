"""Rotary positions: the frequencies, and tables of cosines and sines per position."""

from __future__ import annotations

import math

import torch

from gpu.model.config import ModelConfig


def inverse_frequencies(config: ModelConfig, factors: torch.Tensor | None = None) -> torch.Tensor:
    """Radians per position [head_dim / 2], float32. `factors` are a file's own divisors."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if factors is not None:
        return frequencies / factors
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_context / wavelengths
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = share.clamp(0.0, 1.0)  # 0: long waves, fully stretched; 1: short waves, as they were
    return (1 - share) * frequencies / scaling.factor + share * frequencies


def position_tables(frequencies: torch.Tensor, positions: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines, each [positions, head_dim].

    The first half of each sine row is negated, so that x * cos + swap_halves(x) * sin rotates x.
    """
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat((cosines, cosines), dim=1).to(dtype), torch.cat((-sines, sines), dim=1).to(dtype)
