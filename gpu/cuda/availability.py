"""Whether there is a CUDA device that torch can use, and what to do if not."""

from __future__ import annotations

import torch

from gpu.device import DeviceUnavailable


def find_cuda() -> torch.device:
    """The device that torch uses by default. Raises DeviceUnavailable, which says what to do."""
    if torch.version.cuda is None:
        raise DeviceUnavailable(
            f"torch {torch.__version__} was built without CUDA; set up again with make setup TORCH_INDEX=URL of a "
            "CUDA build (https://download.pytorch.org/whl/cu130), or use --device cpu"
        )
    if not torch.cuda.is_available():
        raise DeviceUnavailable(
            f"torch {torch.__version__} finds no CUDA device; see whether nvidia-smi lists one, whether its driver is "
            f"new enough for CUDA {torch.version.cuda}, and what CUDA_VISIBLE_DEVICES says, or use --device cpu"
        )
    return torch.device("cuda", torch.cuda.current_device())
