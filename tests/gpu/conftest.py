"""The tiny checkpoint, the real model's file, and a driver that runs frames to their end."""

from __future__ import annotations

import pathlib

import pytest
import torch
from device_driver import DeviceDriver
from tiny_checkpoint import write_tiny_checkpoint

from gpu import create_device
from service.model_source import resolve_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory with config.json, model.safetensors, tokenizer.json and a chat template."""
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(directory)
    return directory


@pytest.fixture(scope="session")
def smollm2_path() -> pathlib.Path:
    """The GGUF file of the default model."""
    return resolve_model("smollm2-135m-instruct").path


@pytest.fixture
def make_driver(tiny_checkpoint):
    """Creates devices and stops them after the test."""
    drivers = []

    def make(path=tiny_checkpoint, **settings) -> DeviceDriver:
        defaults = {"prefill_capacities": (16, 64), "decode_batches": (1, 2, 4, 8), "threads": 1}
        drivers.append(DeviceDriver(create_device(path, **(defaults | settings))))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.device.shut_down(abandon=False)


@pytest.fixture
def driver(make_driver) -> DeviceDriver:
    """A device with the tiny model."""
    return make_driver()
