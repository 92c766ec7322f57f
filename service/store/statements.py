"""An operator's own SQL over the trace store: one statement that only reads, within a time limit, row by row."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import json
import sqlite3
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import sqlalchemy as sa

from service.store.engines import open_database
from service.store.errors import StatementError
from service.store.faults import typed_faults
from service.store.positions import in_words, sqlite_position
from service.store.postgresql_answers import described
from service.store.postgresql_reading import become_reader, check_reading, without_end

LARGEST_VALUE = 64 << 20
MOST_MEMORY = 256 << 20
"""Bytes of one value or row, and of everything that SQLite holds in memory, which a statement can grow."""
_TOO_LARGE = f"one value or row may have {LARGEST_VALUE >> 20} MiB; narrow the statement, or cut texts with substr()"
_BASE_BYTES = 64 << 20
_ROW_BYTES = 4 << 10
"""How large an answer may be: so much, and so much more for each row that was asked for."""
_SQLITE_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: LARGEST_VALUE,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1 << 20,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 1000,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 500,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_BEYOND_A_BOUND = (
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.StatementTooComplex,
    psycopg.errors.TooManyColumns,
    psycopg.errors.TooManyArguments,
    psycopg.errors.ConfigurationLimitExceeded,
)
"""Of PostgreSQL: the statement is at fault and not the store."""
_STEPS_BETWEEN_CHECKS = 20_000  # SQLite's own steps, about a millisecond
_INTERRUPTED = "interrupted"
_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_FUNCTIONS_THAT_LOAD = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})
_READING_PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"})


class ColumnType(enum.Enum):
    """What a column of an answer holds, where the database says so."""

    TIME = "time"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    TEXT = "text"
    JSON = "json"
    UNKNOWN = "unknown"


_SQLITE_TYPES = {  # as the migrations declare them; TEXT and BLOB are what newer versions say of expressions, too
    "DATETIME": ColumnType.TIME,
    "BOOLEAN": ColumnType.BOOLEAN,
    "INTEGER": ColumnType.INTEGER,
    "FLOAT": ColumnType.FLOAT,
    "JSON": ColumnType.JSON,
}
_POSTGRESQL_TYPES = {
    "timestamptz": ColumnType.TIME,
    "timestamp": ColumnType.TIME,
    "bool": ColumnType.BOOLEAN,
    "int2": ColumnType.INTEGER,
    "int4": ColumnType.INTEGER,
    "int8": ColumnType.INTEGER,
    "float4": ColumnType.FLOAT,
    "float8": ColumnType.FLOAT,
    "text": ColumnType.TEXT,
    "varchar": ColumnType.TEXT,
    "json": ColumnType.JSON,
    "jsonb": ColumnType.JSON,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """Column names and types, and the rows as they are fetched; a row has one value per column.

    SQLite's times are text, its booleans 0 and 1.
    """

    columns: tuple[str, ...]
    types: tuple[ColumnType, ...]
    rows: Iterator[Sequence[Any]]


@contextlib.contextmanager
def run_statement(url: str, statement: str, timeout_s: float) -> Iterator[Answer]:
    """Run one reading statement on the store at `url`; its rows must be fetched inside the block.

    Whatever would write, attach another file or change the session is refused, and nothing was changed. `timeout_s`
    counts until the last row. SQLite is held to LARGEST_VALUE and, in the whole process from then on, to MOST_MEMORY.
    Raises StatementError for that, a mistake in the statement and a passed limit, and StoreError for what the database
    cannot do.
    """
    if not statement.strip().rstrip(";").strip():
        raise StatementError("the statement is empty; try: SELECT kind, count(*) FROM plans GROUP BY kind")
    engine = open_database(url, readonly=True)
    answer = _sqlite_answer if engine.dialect.name == "sqlite" else _postgresql_answer
    try:
        with (
            typed_faults(engine.url),
            engine.connect() as connection,
            _named(statement, timeout_s),
            answer(connection.connection.driver_connection, statement, timeout_s) as found,
        ):
            yield found
    finally:
        engine.dispose()


@contextlib.contextmanager
def _sqlite_answer(connection: Any, statement: str, timeout_s: float) -> Iterator[Answer]:
    deadline = time.monotonic() + timeout_s
    path = connection.execute("PRAGMA database_list").fetchone()[2]
    _limit(connection)
    connection.set_authorizer(_permit_reading)
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_CHECKS)
    try:
        cursor = connection.execute(statement)
        if cursor.description is None:
            raise StatementError("the statement gives no rows; it must be one SELECT")
        with contextlib.closing(cursor):
            columns = tuple(column[0] for column in cursor.description)
            yield Answer(columns, _declared_types(path, statement, len(columns)), cursor)
    except sqlite3.OperationalError as error:
        if str(error) == _INTERRUPTED and time.monotonic() <= deadline:  # sqlite3 keeps what a handler raises to itself
            raise KeyboardInterrupt from error
        at = sqlite_position(connection, statement, str(error))
        if at is not None:
            raise StatementError(_of_statement(str(error), statement, at), at) from error
        raise
    finally:
        connection.set_progress_handler(None, 0)
        connection.set_authorizer(None)


def _limit(connection: sqlite3.Connection) -> None:
    """No value, statement or plan of it takes more than a bound; the heap's limit holds for the process."""
    for category, most in _SQLITE_LIMITS.items():
        connection.setlimit(category, most)
    connection.execute(f"PRAGMA hard_heap_limit={MOST_MEMORY}")


def _declared_types(path: str, statement: str, count: int) -> tuple[ColumnType, ...]:
    """What the tables declare of the answer's columns, as SQLite says it of a view; nothing of expressions.

    The view is made and forgotten in a session of its own, which cannot write to the store.
    """
    unknown = (ColumnType.UNKNOWN,) * count
    uri = f"file:{urllib.parse.quote(path)}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        try:
            connection.execute(f"CREATE TEMP VIEW helios_answer AS {statement.strip().rstrip(';')}")
            declared = [row[2] for row in connection.execute("PRAGMA temp.table_info(helios_answer)")]
        except (sqlite3.Error, sqlite3.Warning):  # a PRAGMA, for one, is no view
            return unknown
    types = tuple(_SQLITE_TYPES.get(name.upper(), ColumnType.UNKNOWN) for name in declared)
    return types if len(types) == count else unknown


def _permit_reading(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """SQLite asks this while it compiles a statement. A pragma with a value would change the session."""
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS_THAT_LOAD:
        return sqlite3.SQLITE_DENY
    if action in _READS or (action == sqlite3.SQLITE_PRAGMA and first in _READING_PRAGMAS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


@contextlib.contextmanager
def _postgresql_answer(connection: Any, statement: str, timeout_s: float) -> Iterator[Answer]:
    """The statement is the source of another one, which only reads and says how many bytes each row takes.

    The transaction around it is read only as well, and rows come one by one.
    """
    connection.execute("SET TRANSACTION READ ONLY")
    become_reader(connection)
    connection.execute("SET LOCAL standard_conforming_strings = on")
    connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
    connection.execute("SELECT set_config('statement_timeout', %s, true)", (str(max(1, round(timeout_s * 1000))),))
    plain = without_end(statement)
    check_reading(connection, plain)
    found = described(connection, plain)
    types = tuple(_postgresql_type(connection.adapters.types.get(code), code) for code in found.type_codes)
    with connection.cursor() as cursor, contextlib.closing(cursor.stream(found.sized())) as rows:
        yield Answer(found.columns, types, _within_row_size(rows))


def _postgresql_type(info: Any, code: int) -> ColumnType:
    """The driver finds an element's type under its array's number, too."""
    return _POSTGRESQL_TYPES.get(info.name, ColumnType.UNKNOWN) if info and info.oid == code else ColumnType.UNKNOWN


def _within_row_size(rows: Iterator[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """The rows without their first value, the bytes of each. Raises StatementError for one that is too large."""
    for size, *row in rows:
        if size > LARGEST_VALUE:
            raise StatementError(_TOO_LARGE)
        yield tuple(row)


@contextlib.contextmanager
def _named(statement: str, timeout_s: float) -> Iterator[None]:
    """Raises StatementError for what the driver says of the statement; faults of the store stay the driver's."""
    try:
        yield
    except MemoryError as error:
        raise StatementError(
            f"the statement needs more than {MOST_MEMORY >> 20} MiB of memory; narrow it, or cut texts with substr()"
        ) from error
    except (sqlite3.Error, sqlite3.Warning, psycopg.Error, ValueError) as error:
        if isinstance(error, StatementError):
            raise
        raise _statement_fault(error, statement, timeout_s) from error


def _of_statement(text: str, statement: str, offset: int | None) -> str:
    at = "" if offset is None else f" ({in_words(statement, offset)})"
    return f"{text}{at}; nothing was changed"


def _statement_fault(error: Exception, statement: str, timeout_s: float) -> Exception:
    text = _first_line(error)
    if isinstance(error, psycopg.errors.QueryCanceled) or text == _INTERRUPTED:
        return _too_slow(timeout_s)
    if "string or blob too big" in text:
        return StatementError(f"{text}: {_TOO_LARGE}")
    if "not authorized" in text or "prohibited" in text:
        return StatementError(f"{text}: only statements that read may run here; nothing was changed")
    if "one statement at a time" in text or "multiple commands" in text:
        return StatementError("these are several statements; only one may run at a time, and nothing was changed")
    if isinstance(error, psycopg.errors.SyntaxError):  # of an UPDATE that returns rows, too
        return StatementError(f"{text}: it must be one statement that reads, as SELECT does; nothing was changed")
    if isinstance(error, psycopg.errors.OutOfMemory):
        return StatementError(f"{text}: {_TOO_LARGE}")
    if isinstance(error, _BEYOND_A_BOUND):
        return StatementError(_of_statement(text, statement, None))
    if isinstance(error, psycopg.OperationalError) or (isinstance(error, sqlite3.DatabaseError) and _is_state(text)):
        return sa.exc.OperationalError(None, None, error)
    return StatementError(_of_statement(text, statement, None))


def _is_state(message: str) -> bool:
    """Whether SQLite speaks of its file and not of the statement."""
    words = ("is locked", "unable to open", "disk", "not a database", "malformed database")  # of a JSON text, too
    return any(word in message for word in words)


def _too_slow(timeout_s: float) -> StatementError:
    return StatementError(f"no answer within {timeout_s:g} s; narrow the statement, or raise the limit with --timeout")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def row_bytes(row: Sequence[Any]) -> int:
    """About what a row takes: texts by their length, 8 bytes for everything else."""
    return sum(map(_value_bytes, row))


def _value_bytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return len(json_text(value)) if isinstance(value, dict | list) else 8


def within_size(rows: Iterator[Sequence[Any]], most_rows: int) -> Iterator[Sequence[Any]]:
    """The rows, as long as they take no more than an answer of `most_rows` may. Raises StatementError."""
    most, taken = _BASE_BYTES + _ROW_BYTES * most_rows, 0
    for row in rows:
        taken += row_bytes(row)
        if taken > most:
            raise StatementError(
                f"the answer takes more than {most >> 20} MiB; select fewer columns, or allow more with --rows"
            )
        yield row


def limited(rows: Iterator[Sequence[Any]], most: int) -> tuple[list[Sequence[Any]], bool]:
    """Up to `most` rows, and whether there were more."""
    taken = list(itertools.islice(rows, most + 1))
    return taken[:most], len(taken) > most


def json_text(value: Any) -> str:
    """A dict or a list as JSON; PostgreSQL's arrays hold what JSON has no form for, such as times."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=_json_form)


def _json_form(value: Any) -> float | str:
    if isinstance(value, decimal.Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names; a second column of one name gets its number behind it."""
    return [name if name not in names[:at] else f"{name}_{names[:at].count(name) + 1}" for at, name in enumerate(names)]
