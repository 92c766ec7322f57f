"""An answer as a Parquet file whose columns have the same types whichever database gave it.

Reached through `service.store.exports` alone: pyarrow takes 30 MB of memory, and only an export needs it.
"""

from __future__ import annotations

import decimal
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.store.errors import ExportFailed
from service.store.statements import Answer, ColumnType, distinct_names, json_text

CHUNK_ROWS = 16_384
TIME = pa.timestamp("us", tz="UTC")
_TYPES = {
    ColumnType.TIME: TIME,
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.INTEGER: pa.int64(),
    ColumnType.FLOAT: pa.float64(),
    ColumnType.TEXT: pa.string(),
    ColumnType.JSON: pa.string(),
}
_TIME_TEXT = r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\.\d{6}$"


def write_parquet(path: pathlib.Path, answer: Answer, most_rows: int) -> tuple[int, bool]:
    """Write up to `most_rows` rows to `path`, whole or not at all; returns how many, and whether there were more.

    Times become timestamps in UTC with microseconds, and every whole number has 64 bits. A column whose type the
    database does not say (SQLite says none of an expression) takes that of its values. A file that is there is
    replaced. Raises ExportFailed, and what fetching the rows raises.
    """
    columns = [_Column(kind) for kind in answer.types]
    rows = iter(answer.rows)
    count = 0
    while chunk := list(itertools.islice(rows, min(CHUNK_ROWS, most_rows - count))):
        count += len(chunk)
        for column, values in zip(columns, zip(*chunk, strict=True), strict=True):
            column.add(values)
    is_cut = count == most_rows and next(rows, None) is not None
    arrays = [column.array() for column in columns]
    _write(path, pa.Table.from_arrays(arrays, names=distinct_names(answer.columns)))
    return count, is_cut


class _Column:
    """One column's values, gathered in chunks of Arrow's own compact form."""

    def __init__(self, kind: ColumnType) -> None:
        self._kind = kind
        self._chunks: list[pa.Array] = []

    def add(self, values: Sequence[Any]) -> None:
        """The next rows' values."""
        self._chunks.append(_array(values, self._kind))

    def array(self) -> pa.ChunkedArray:
        """All values, of one type."""
        found = _common_type({chunk.type for chunk in self._chunks if chunk.null_count < len(chunk)})
        wanted = found or _TYPES.get(self._kind, pa.string())
        whole = pa.chunked_array([_cast(chunk, wanted) for chunk in self._chunks], type=wanted)
        return _times_of_text(whole) if self._kind is ColumnType.UNKNOWN and wanted == pa.string() else whole


def _array(values: Sequence[Any], kind: ColumnType) -> pa.Array:
    """The values of one chunk: of the column's type, or of their own where that is not known or does not fit."""
    try:
        if kind is ColumnType.TIME and any(isinstance(value, str) for value in values):
            return _times(pa.array(values, pa.string()))
        plain = [_PLAIN[kind](value) if kind in _PLAIN and value is not None else _plain(value) for value in values]
        return pa.array(plain, _TYPES.get(kind))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return _mixed([_plain(value) for value in values])


def _mixed(values: Sequence[Any]) -> pa.Array:
    """Numbers of several kinds as doubles; anything else of several kinds as text."""
    if all(value is None or isinstance(value, int | float) for value in values):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _plain(value: Any) -> Any:
    """A value that Arrow has a type for. PostgreSQL's sum of whole numbers is a Decimal without decimals."""
    if isinstance(value, decimal.Decimal):
        whole = value.is_finite() and value.as_tuple().exponent == 0 and abs(value) < 2**63
        return int(value) if whole else float(value)
    if isinstance(value, dict | list):
        return json_text(value)
    return value


def _json_text(value: Any) -> str:
    """JSON in one form, whether the database keeps its text or its value."""
    return json_text(json.loads(value) if isinstance(value, str) else value)


_PLAIN: dict[ColumnType, Callable[[Any], Any]] = {ColumnType.JSON: _json_text, ColumnType.BOOLEAN: bool}


def _common_type(types: Collection[pa.DataType]) -> pa.DataType | None:
    """A type for all: that of all, double for numbers of two kinds, text for the rest; None for no value at all."""
    if len(types) <= 1:
        return next(iter(types), None)
    return pa.float64() if set(types) == {pa.int64(), pa.float64()} else pa.string()


def _cast(chunk: pa.Array, wanted: pa.DataType) -> pa.Array:
    try:
        return chunk.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ExportFailed(f"a column holds values of several types ({error}); CAST it in the statement") from error


def _times(text: pa.Array | pa.ChunkedArray) -> Any:
    """Times in UTC of `YYYY-MM-DD HH:MM:SS.ffffff`."""
    return pc.assume_timezone(text.cast(pa.timestamp("us")), "UTC")


def _times_of_text(whole: pa.ChunkedArray) -> pa.ChunkedArray:
    """SQLite keeps times as text and says no type of an expression such as max(committed_at): known by its form."""
    matches = pc.match_substring_regex(whole, _TIME_TEXT).drop_null()
    if not len(matches) or not pc.all(matches).as_py():
        return whole
    try:
        return _times(whole)
    except pa.ArrowInvalid:  # the 31st of February
        return whole


def _write(path: pathlib.Path, table: pa.Table) -> None:
    """Under another name first, so that nobody reads half a file."""
    try:
        if path.exists() and not path.is_file():
            raise ExportFailed(f"{path}: is no plain file, which would be replaced; name a new file")
        _replace(path.resolve(), table)
    except OSError as error:
        raise ExportFailed(
            f"{path}: cannot write it ({error.strerror or error}). Name a file in a directory that this user may write"
        ) from error


def _replace(path: pathlib.Path, table: pa.Table) -> None:
    """`path` is no link, for a link would be replaced and not its file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        pq.write_table(table, partial, compression="zstd")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
