"""One server per test module, its engine back to its first script for every test."""

from __future__ import annotations

import pathlib
import shutil
import sys
from collections.abc import Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from fake_engine import Api, serving

from service.store.database import open_database


@pytest.fixture(scope="module")
def module_api(_sqlite_template: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    shutil.copy(_sqlite_template, folder / "helios.db")
    store = open_database(f"sqlite:///{folder / 'helios.db'}")
    with serving(store, folder) as api:
        yield api
    store.dispose()


@pytest.fixture
def api(module_api: Api) -> Api:
    module_api.engine.reset()
    return module_api
