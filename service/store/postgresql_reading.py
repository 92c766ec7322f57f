"""What PostgreSQL lets an operator's statement do, beyond a transaction that cannot write.

A transaction that only reads still calls functions: ones that read the server's files, wait, lock, talk to other
servers or change the session. So no function runs that the server itself calls volatile, none that runs text as SQL,
and no name of the server's own catalogs may stand in the statement. Where the store's user is a superuser or may read
all data anyway, the statement runs as `pg_read_all_data`, a role that can do nothing else.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from service.store.errors import StatementError
from service.store.positions import in_words

_HARMLESS = ("random", "clock_timestamp", "timeofday", "gen_random_uuid")
"""Volatile functions that change nothing and tell nothing."""
_OPEN_NAMES = frozenset({"pg_typeof", "pg_column_size"})
_CLOSED = re.compile(
    r"pg_.*|current_setting|(query|cursor|table|schema|database)_to_xml.*|ts_stat|ts_rewrite"
    r"|crosstab.*|connectby|xpath_table",  # of extensions
    re.DOTALL,
)
_READER_SINCE = 140_000
_COMMENT_MARK = re.compile(r"/\*|\*/")
_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\r\f\v]+|--[^\n\r]*)
    | (?P<comment>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]|''|\\.)*')
    | (?P<unicode>[uU]&")
    | (?P<string>(?:[uU]&|[bBxXnN])?'(?:[^']|'')*')
    | (?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][\w\x80-\U0010ffff]*)?\$)
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<name>[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*)
    | (?P<number>[0-9]+)
    | (?P<other>.)""",
    flags=re.VERBOSE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """A name in a statement, as the server reads it; `is_called` says whether a parenthesis follows."""

    text: str
    offset: int
    is_called: bool


def words(statement: str) -> list[Word]:
    """The names outside of comments and texts, in order. Raises StatementError for what is never closed."""
    found: list[Word] = []
    follows_name = False
    for kind, text, start, _end in _tokens(statement):
        if kind == "name":
            found.append(Word(text, start, is_called=False))
        elif text == "(" and follows_name:
            found[-1] = dataclasses.replace(found[-1], is_called=True)
        follows_name = kind == "name"
    return found


def without_end(statement: str) -> str:
    """The statement without the semicolons, comments and space behind it. Raises StatementError."""
    ends = [end for kind, text, _, end in _tokens(statement) if (kind, text) != ("other", ";")]
    return statement[: ends[-1]] if ends else ""


def _tokens(statement: str) -> Iterator[tuple[str, str, int, int]]:
    """(kind, text, start, end) of everything but space and comments; kind is name, text or other.

    A quoted name is given as the server reads it, any other name in small letters.
    """
    end, follows_escaped = 0, False
    while end < len(statement):
        start = end
        match = _TOKEN.match(statement, start)
        assert match is not None, "any character is a token"
        kind, text, end = match.lastgroup, match[0], match.end()
        if follows_escaped and text[0] == "'":  # the server would go on with backslashes that escape, unlike here
            raise StatementError("an E'…' text that goes on in another line is not read here; write it as one", start)
        follows_escaped = kind == "escaped" or (follows_escaped and kind in ("space", "comment"))
        if kind == "comment":
            end = _comment_end(statement, start)
        elif kind == "unicode":
            raise StatementError('names in U&"…" are not read here; write them as they are', start)
        elif kind == "dollar":
            end = _text_end(statement, text, end)
            yield "text", statement[start:end], start, end
        elif kind in ("string", "escaped"):
            yield "text", text, start, end
        elif kind == "quoted":
            yield "name", text[1:-1].replace('""', '"'), start, end
        elif kind == "name":
            yield "name", text.lower(), start, end
        elif kind != "space":
            if text in ("'", '"'):
                raise StatementError(f"the {text} in {in_words(statement, start)} is never closed", start)
            yield "other", text, start, end


def _text_end(statement: str, mark: str, start: int) -> int:
    found = statement.find(mark, start)
    if found < 0:
        raise StatementError(f"the text that begins with {mark} is never closed", start - len(mark))
    return found + len(mark)


def _comment_end(statement: str, start: int) -> int:
    """Behind the comment that begins at `start`; comments lie within each other."""
    depth, at = 0, start
    while match := _COMMENT_MARK.search(statement, at):
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
        if depth == 0:
            return at
    raise StatementError("the comment that begins with /* is never closed")


def check_reading(connection: Any, statement: str) -> None:
    """Raises StatementError for what would do more than read the store. `connection` is the driver's."""
    found = words(statement)
    for word in found:
        if _CLOSED.fullmatch(word.text) and word.text not in _OPEN_NAMES:
            raise _refused(statement, word, "belongs to the server and not to the trace store")
    called = {word.text: word for word in reversed(found) if word.is_called}
    volatile = connection.execute(
        "SELECT proname FROM pg_catalog.pg_proc WHERE proname = ANY(%s) AND (provolatile = 'v' OR prosecdef)"
        " AND proname <> ALL(%s) LIMIT 1",
        (list(called), list(_HARMLESS)),
    ).fetchone()
    if volatile is not None:
        raise _refused(statement, called[volatile[0]], "may do more than read")


def become_reader(connection: Any) -> None:
    """For this transaction give up every right but reading, where the user has that role."""
    if connection.info.server_version < _READER_SINCE:
        return
    if connection.execute("SELECT pg_catalog.pg_has_role('pg_read_all_data', 'MEMBER')").fetchone()[0]:
        connection.execute("SET LOCAL ROLE pg_read_all_data")


def _refused(statement: str, word: Word, why: str) -> StatementError:
    return StatementError(
        f"{word.text} {why} ({in_words(statement, word.offset)}); only statements that read the store may run here, "
        "and nothing was changed",
        word.offset,
    )
