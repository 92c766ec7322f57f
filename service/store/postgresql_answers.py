"""What a statement on PostgreSQL will answer, and the same answer with the size of each row in front of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import psycopg
from psycopg import pq

from service.store.errors import StatementError
from service.store.positions import in_words

LARGEST_ROW = 64 << 20
_FIXED_SIZE = frozenset(
    {16, 18, 20, 21, 23, 26, 700, 701, 790, 1082, 1083, 1114, 1184, 1186, 1266, 1700, 2950}
)  # bool, char, int8, int2, int4, oid, float4, float8, money, date, times, timestamps, interval, numeric, uuid
_TEXT_TYPES = frozenset({17, 25, 1042, 1043})  # bytea, text, char(n), varchar
_READS_ONLY = "it must be one statement that reads, as SELECT does; nothing was changed"


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """A statement that the server has read and not run: its columns with the numbers of their types."""

    statement: str
    columns: tuple[str, ...]
    type_codes: tuple[int, ...]

    def sized(self) -> bytes:
        """A statement that gives the rows, each with its size in bytes before it.

        What can be large comes as NULL where the row takes more than LARGEST_ROW: it never leaves the server. OFFSET 0
        keeps the server from computing sizes once for each column.
        """
        names = [f"c{at}" for at in range(len(self.columns))]
        sizes = [_size(name, code) for name, code in zip(names, self.type_codes, strict=True)]
        total = " + ".join(size for size in sizes if size) or "0::bigint"
        guarded = [
            f"CASE WHEN bytes <= {LARGEST_ROW} THEN {name} END" if size else name
            for name, size in zip(names, sizes, strict=True)
        ]
        source = f"(\n{self.statement}\n) AS answer({', '.join(names)})"
        inner = f"SELECT {total} AS bytes, {', '.join(names)} FROM {source} OFFSET 0"
        return f"SELECT bytes, {', '.join(guarded)} FROM ({inner}) AS sized".encode()


def described(connection: psycopg.Connection[Any], statement: str) -> Described:
    """Lets the server read the statement, which must be a single one with columns. Raises StatementError."""
    session = connection.pgconn
    result = session.prepare(b"", statement.encode())
    if result.status == pq.ExecStatus.COMMAND_OK:
        result = session.describe_prepared(b"")
    if result.status != pq.ExecStatus.COMMAND_OK:
        raise _fault(psycopg.errors.error_from_result(result, "utf-8"), statement)
    if result.nparams:
        raise StatementError("the statement has parameters such as $1; write their values instead")
    if result.nfields == 0 and statement.lstrip()[:6].lower() == "select":
        raise StatementError("the answer has no columns; name some behind SELECT")
    if result.nfields == 0:
        raise StatementError(f"the statement gives no columns; {_READS_ONLY}")
    names = tuple((result.fname(at) or b"").decode() for at in range(result.nfields))
    return Described(statement, names, tuple(result.ftype(at) for at in range(result.nfields)))


def _size(name: str, type_code: int) -> str | None:
    if type_code in _FIXED_SIZE:
        return None
    value = name if type_code in _TEXT_TYPES else f"CAST({name} AS text)"
    return f"coalesce(octet_length({value}), 0)::bigint"


def _fault(error: psycopg.Error, statement: str) -> Exception:
    position = error.diag.statement_position
    offset = None if position is None else int(position) - 1
    text = error.diag.message_primary or str(error)
    if isinstance(error, psycopg.OperationalError | psycopg.errors.QueryCanceled):
        return error
    if "multiple commands" in text:
        return StatementError("these are several statements; only one may run at a time, and nothing was changed")
    where = "" if offset is None else f" ({in_words(statement, offset)})"
    return StatementError(f"{text}{where}; nothing was changed", offset)
