"""Which trace a request belongs to, by its headers."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from litestar.datastructures import Headers

from service.api.caller import Caller, caller_in

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{PARENT}-01"


def caller(traceparent: str | None, **more: str) -> Caller:
    return caller_in(Headers({**({} if traceparent is None else {"traceparent": traceparent}), **more}))


@pytest.mark.parametrize("header", [GOOD, f"00-{TRACE}-{PARENT}-00", f" {GOOD} ", f"00-{TRACE}-{PARENT}-ff"])
def test_valid_headers_pass(header):
    assert caller(header) == Caller(header.strip(), None)


def test_a_later_version_is_read_by_its_first_four_fields():
    assert caller(f"cc-{TRACE}-{PARENT}-01-what-comes") == Caller(GOOD)


def test_the_callers_state_comes_along():
    assert caller(GOOD, tracestate="a=1,b=2", baggage="user=7") == Caller(GOOD, "a=1,b=2")
    assert caller(GOOD, tracestate="not a list") == Caller(GOOD)
    assert caller(None, tracestate="a=1") == Caller()


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "x",
        GOOD + "-extra",
        GOOD[:-1],
        GOOD.upper(),
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{PARENT}-01",
        GOOD.replace("-", "_"),
        "٠٠" + GOOD[2:],
    ],
)
def test_broken_headers_start_a_new_trace(header):
    assert caller(header) == Caller()


ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = f"""
from litestar.datastructures import Headers
from service.api.caller import caller_in
print(caller_in(Headers({{"traceparent": "{GOOD}"}})).traceparent)
"""


@pytest.mark.parametrize(("propagators", "expected"), [("baggage, tracecontext", GOOD), ("none", "None")])
def test_the_propagators_are_those_that_the_environment_names(propagators, expected):
    """They are chosen when the SDK is imported, so this needs a process of its own."""
    environment = {**os.environ, "OTEL_PROPAGATORS": propagators}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == expected, done.stderr


@pytest.mark.parametrize(
    "headers",
    [
        {"baggage": "a=" + "x" * 60_000},
        {"baggage": "\xff=\x9b31m,;=%"},
        {"traceparent": GOOD, "tracestate": "a=b=c,=,,;"},
    ],
)
def test_no_header_of_a_caller_is_written_to_the_log(headers, caplog):
    caller_in(Headers(headers))
    assert caplog.messages == []
