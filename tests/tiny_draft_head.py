"""A random draft head for a tiny target: its proposals are as good as chance, which a small vocabulary makes likely."""

from __future__ import annotations

import pathlib

import torch
from safetensors.torch import save_file

from gpu.model.config import ModelConfig
from gpu.model.draft_head import FORMAT, draft_head_shapes


def write_tiny_draft_head(path: pathlib.Path, config: ModelConfig, *, seed: int = 0, draft_token_ids=None):
    """Write a head's file for this target and return its tensors."""
    generator = torch.Generator().manual_seed(seed)
    inner = 48
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    tensors = {}
    for name, shape in draft_head_shapes(config.hidden_size, query, key, inner).items():
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.1 * noise if "norm.weight" in name or "layernorm" in name else 0.2 * noise
    if draft_token_ids is not None:
        tensors["draft_token_ids"] = torch.tensor(draft_token_ids, dtype=torch.int64)
    extents = {name: str(getattr(config, name)) for name in ("hidden_size", "heads", "kv_heads", "head_dim")}
    metadata = {"format": FORMAT, "target_name": "tiny", "target_sha256": "0" * 64, "intermediate_size": str(inner)}
    save_file(tensors, path, metadata | extents)
    return tensors
