"""Readers of the dashboard for bench_views.py: `python benchmarks/viewers.py ADDRESS COUNT`, until it is ended.

Prints one line for each page: its name, the status, and the seconds it took.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time

import httpx

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
PAGES = ("", "timeline", "requests", "costs", "learning")


def read_pages(base: str, number: int) -> None:
    """One page after the other, as a browser asks for them."""
    with httpx.Client(timeout=60) as client:
        for name in itertools.islice(itertools.cycle(PAGES), number % len(PAGES), None):
            inputs = [
                {"id": "url", "property": "pathname", "value": f"/dashboard/{name}"},
                {"id": "url", "property": "search", "value": "?last=7d"},
            ]
            output = {"output": "page.children", "outputs": {"id": "page", "property": "children"}}
            began = time.perf_counter()
            answer = client.post(
                f"{base}/dashboard/_dash-update-component",
                json={**output, "inputs": inputs, "changedPropIds": ["url.pathname"]},
            )
            print(json.dumps([name, answer.status_code, time.perf_counter() - began]), flush=True)


def ask_without_end(base: str) -> None:
    """Statements that run as long as they may."""
    while True:
        httpx.post(f"{base}/api/sql", json={"statement": ENDLESS, "timeout_s": 10}, timeout=60)


if __name__ == "__main__":
    address, count = sys.argv[1], int(sys.argv[2])
    workers = [threading.Thread(target=read_pages, args=(address, number), daemon=True) for number in range(count)]
    workers += [threading.Thread(target=ask_without_end, args=(address,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    threading.Event().wait()
