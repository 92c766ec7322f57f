"""Weights from a Hugging Face checkpoint: config.json and one or more safetensors files."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from gpu.device import ModelError
from gpu.model.config import ModelConfig, config_from_json
from gpu.model.source import OUTPUT_HEAD

_INDEX = "model.safetensors.index.json"


class SafetensorsSource:
    """An open checkpoint directory. Raises ModelError when a file is missing, damaged or unsupported."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        config = config_from_json(_read_json(directory / "config.json"))
        self._files: dict[str, Any] = {}
        self._file_of = self._locate()
        if config.tied_embeddings is False and OUTPUT_HEAD not in self._file_of:
            raise ModelError(f"{directory} holds no {OUTPUT_HEAD}, and its embeddings are not tied")
        self._config = config

    @property
    def config(self) -> ModelConfig:
        """The extents that the tensors must have."""
        return self._config

    @property
    def rope_frequency_factors(self) -> torch.Tensor | None:
        """None: config.json describes the scaling."""
        return None

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor in the file's precision. Raises ModelError when absent or not floating point."""
        filename = self._file_of.get(name)
        if filename is None:
            raise ModelError(f"{self._directory} holds no tensor {name}")
        try:
            tensor: torch.Tensor = self._open(filename).get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self._directory / filename}: {name} cannot be read: {error}") from error
        if not tensor.is_floating_point():
            raise ModelError(f"{name} is {tensor.dtype}; only floating-point weights are supported")
        return tensor

    def _locate(self) -> dict[str, str]:
        """Tensor name -> file name, from the index when there is one."""
        index_path = self._directory / _INDEX
        if index_path.is_file():
            weight_map = _read_json(index_path).get("weight_map")
            if not isinstance(weight_map, dict):
                raise ModelError(f"{index_path} has no weight_map")
            return {str(name): str(filename) for name, filename in weight_map.items()}
        filenames = sorted(path.name for path in self._directory.glob("*.safetensors"))
        if not filenames:
            raise ModelError(f"{self._directory} holds no *.safetensors file")
        return {name: filename for filename in filenames for name in self._open(filename).keys()}  # noqa: SIM118

    def _open(self, filename: str) -> Any:
        if filename not in self._files:
            path = self._directory / filename
            if path.resolve().parent != self._directory.resolve() and not path.is_symlink():
                raise ModelError(f"{path} lies outside the checkpoint")
            try:
                self._files[filename] = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} cannot be read: {error}; download the checkpoint again") from error
        return self._files[filename]


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return values
