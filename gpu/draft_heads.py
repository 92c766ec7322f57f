"""Which draft head a device uses: a named file, or the shipped one that was made for the model's weights."""

from __future__ import annotations

import hashlib
import pathlib

from safetensors import SafetensorError, safe_open

SHIPPED = pathlib.Path(__file__).parent / "assets" / "draft-heads"
AUTO = "auto"
NONE = "none"


def choose_draft_head(wanted: str | None, model_path: pathlib.Path) -> pathlib.Path | None:
    """The head's file, None for copies alone.

    `wanted`: a path; "auto" for the shipped head whose target has the sha256 of the weights at `model_path`, if any;
    "none" or None for no head.
    """
    if wanted in (None, NONE):
        return None
    if wanted != AUTO:
        return pathlib.Path(wanted)
    heads = {path: _target_sha256(path) for path in sorted(SHIPPED.glob("*.safetensors"))}
    weights = _weight_file(model_path) if heads else None
    if weights is None:
        return None
    digest = _sha256(weights)
    return next((path for path, target in heads.items() if target == digest), None)


def _weight_file(model_path: pathlib.Path) -> pathlib.Path | None:
    """The file that heads name by its digest; None where the weights are in several."""
    path = model_path / "model.safetensors" if model_path.is_dir() else model_path
    return path if path.is_file() else None


def _target_sha256(head: pathlib.Path) -> str:
    try:
        with safe_open(head, framework="pt") as file:
            return str((file.metadata() or {}).get("target_sha256", ""))
    except (SafetensorError, OSError):  # a damaged head fits no model
        return ""


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
