"""Rigs of the engine whose checkpoints come often."""

from __future__ import annotations

import pytest

from service.engine import worker
from tests.engine.conftest import Rig

MS = 1_000_000


@pytest.fixture
def frequent_checkpoints(monkeypatch):
    monkeypatch.setattr(worker, "TICK_NS", 10 * MS)
    monkeypatch.setattr(worker, "CHECKPOINT_NS", 60 * MS)


@pytest.fixture
def make_rig(tmp_path, frequent_checkpoints):
    made = []

    def make(**device) -> Rig:
        made.append(None)
        return Rig(tmp_path / f"rig-{len(made)}", **device)

    return make
