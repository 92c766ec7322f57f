"""Where in a statement a database found its fault."""

from __future__ import annotations

import re
import sqlite3

_NEAR = re.compile(r'near "(?P<token>.+)": syntax error', flags=re.DOTALL)
_MISSING = re.compile(r"no such (?:column|table|function): (?P<name>.+)|ambiguous column name: (?P<twice>.+)")
_MOST_TRIES = 200


def in_words(statement: str, offset: int) -> str:
    """`line 2, column 5` of a character of the statement, both from 1."""
    before = statement[:offset]
    return f"line {before.count(chr(10)) + 1}, column {offset - (before.rfind(chr(10)) + 1) + 1}"


def sqlite_position(connection: sqlite3.Connection, statement: str, message: str) -> int | None:
    """The character that SQLite's message is about, which its driver does not say; None where it cannot be found.

    A statement that ends before the wrong word is merely incomplete; with the wrong word it has the same fault.
    """
    if match := _NEAR.fullmatch(message):
        token = match["token"]
        for found in list(re.finditer(re.escape(token), statement))[:_MOST_TRIES]:
            if _fault(connection, statement[: found.end()]) == message:
                return found.start()
        return None
    if match := _MISSING.fullmatch(message):
        name = (match["name"] or match["twice"]).rsplit(".", 1)[-1]
        found_name = re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", statement, flags=re.IGNORECASE)
        return found_name.start() if found_name else None
    return None


def _fault(connection: sqlite3.Connection, beginning: str) -> str:
    try:
        connection.execute(f"EXPLAIN {beginning}").close()
    except (sqlite3.Error, sqlite3.Warning) as error:
        return str(error)
    return ""
