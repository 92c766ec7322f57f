"""Prometheus' own check of an exposition."""

from __future__ import annotations

import subprocess

from needs import program

INSTRUCTION = "tests of the metrics need prometheus and promtool (Debian: apt-get install prometheus)"
KNOWN_REMARKS = {  # promtool's taste against names that dashboards rely on
    "flare_kv_pages_total": 'non-counter metrics should not have "_total" suffix',
    "flare_scheduler_credit_milliseconds": 'use base unit "seconds" instead of "milliseconds"',
    "flare_scheduler_execution_nanoseconds_total": 'use base unit "seconds" instead of "nanoseconds"',
}


def remarks(exposition: bytes) -> dict[str, str]:
    """What `promtool check metrics` says, by the first word of each line; ends the test where it is not installed."""
    promtool = program("promtool", instruction=INSTRUCTION)
    done = subprocess.run([promtool, "check", "metrics"], input=exposition, capture_output=True, check=False)
    lines = (done.stdout + done.stderr).decode().splitlines()
    return {first: rest for first, _, rest in (line.partition(" ") for line in lines)}
