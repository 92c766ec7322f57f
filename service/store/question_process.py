"""`python -m service.store.question_process`: answers one question of an operator in a process of its own.

A statement may take any time and memory before a database notices its own limits: a text function of SQLite that
compares two long texts asks nobody whether to go on, and a driver holds what it receives. So it runs where it can be
killed, has a limit on memory, gives way to what serves, and ends with the process that asked.

Reads a Question as JSON from standard input; writes a line of JSON, Told, and the answer's bytes to standard output.
"""

from __future__ import annotations

import os
import resource
import sys

import msgspec

from service.process import guard_child
from service.store.answer_forms import written
from service.store.errors import StatementError, StoreError
from service.store.question import Question, Told
from service.store.statements import run_statement

NICENESS = 10
MOST_MEMORY = 1536 << 20
"""Bytes of address space: the interpreter's own, SQLite's heap, one row and the answer."""


def main() -> int:
    """Answers and returns 0; what is wrong with the question or the store is part of the answer."""
    guard_child()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = sys.stdin.buffer.read()
    if not asked:  # whoever kept this process ready needs it no more
        return 0
    os.nice(NICENESS)  # only now: getting ready takes half a second, for which somebody may wait
    question = msgspec.json.decode(asked, type=Question)
    body, told = answer(question)
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()
    return 0


def answer(question: Question) -> tuple[bytes, Told]:
    """The answer's bytes in the form that was asked for, and what is said of it."""
    try:
        with run_statement(question.url, question.statement, question.timeout_s) as found:
            return written(found, question.form, question.rows)
    except StatementError as error:
        return b"", Told(error=str(error), offset=error.offset)
    except StoreError as error:
        return b"", Told(error=str(error), is_mistake=False)
    except MemoryError:
        return b"", Told(
            error="the statement needs more memory than one may have; narrow it, or cut texts with substr()"
        )


if __name__ == "__main__":
    sys.exit(main())
