"""Draft heads' files: written after training, read again to train further or to measure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gpu.device import ModelError
from gpu.model.config import ModelConfig
from gpu.model.draft_head import DRAFT_TOKEN_IDS, FORMAT
from gpu.training.draft_module import DraftModule


def weights_sha256(path: pathlib.Path) -> str:
    """The digest of a GGUF file, or of a checkpoint directory's one model.safetensors. Raises ModelError."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise ModelError(f"{file} is missing; a head is tied to one weight file by its digest")
    with file.open("rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()


def write_draft_head(
    module: DraftModule, draft_token_ids: torch.Tensor | None, metadata: Mapping[str, str], path: pathlib.Path
) -> None:
    """Write the head's file in bfloat16; `metadata` comes on top of the format's name and the head's extents."""
    config = module.config
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in module.state_dict().items()}
    if draft_token_ids is not None:
        tensors[DRAFT_TOKEN_IDS] = draft_token_ids
    extents = {
        "hidden_size": config.hidden_size,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
    }
    texts = {"format": FORMAT, **{name: str(value) for name, value in extents.items()}, **metadata}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata=texts)


def read_metadata(path: pathlib.Path) -> dict[str, str]:
    """The texts of a head's file."""
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata())


def read_draft_module(path: pathlib.Path, target: ModelConfig) -> tuple[DraftModule, torch.Tensor | None]:
    """A head's file as the trainable module, and the tokens that it can draft; None: all."""
    tensors = load_file(path)
    ids = tensors.pop(DRAFT_TOKEN_IDS, None)
    inner = int(read_metadata(path)["intermediate_size"])
    module = DraftModule(dataclasses.replace(target, intermediate_size=inner))
    module.load_state_dict({name: value.float() for name, value in tensors.items()})
    return module, ids


def store_figures(path: pathlib.Path, figures: dict[str, dict[str, float]]) -> None:
    """Write the file again with the figures in its metadata."""
    save_file(load_file(path), path, metadata={**read_metadata(path), "figures": json.dumps(figures)})
