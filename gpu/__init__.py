"""The package that does: model, pages, prepared programs, sampling. `create_device` builds all of it."""

from gpu.create import create_device as create_device

__all__ = ["create_device"]
