"""Loads the writer of Parquet files: the only way to it, so that what exports nothing does not hold pyarrow."""

from __future__ import annotations

import importlib
import pathlib
from typing import Protocol, cast

from service.store.statements import Answer


class ParquetWriter(Protocol):
    """The module service.store.parquet."""

    def write_parquet(self, path: pathlib.Path, answer: Answer, most_rows: int) -> tuple[int, bool]: ...


def load_parquet() -> ParquetWriter:
    """The writer; the first call takes a tenth of a second and 30 MB."""
    return cast(ParquetWriter, importlib.import_module("service.store.parquet"))
