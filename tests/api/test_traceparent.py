"""The W3C traceparent header."""

from __future__ import annotations

import pytest

from service.api.traceparent import checked_traceparent

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize("header", [GOOD, f"00-{TRACE}-{PARENT}-00", f" {GOOD} "])
def test_valid_headers_pass(header):
    assert checked_traceparent(header) == header.strip()


def test_a_later_version_is_read_by_its_first_four_fields():
    assert checked_traceparent(f"cc-{TRACE}-{PARENT}-01-what-comes") == f"cc-{TRACE}-{PARENT}-01"


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
    assert checked_traceparent(header) is None
