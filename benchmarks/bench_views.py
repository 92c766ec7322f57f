"""Whether slow views of the dashboard delay tokens or metrics: gaps of streams and times of /metrics, with and without.

    python benchmarks/bench_views.py [--plans 1000000] [--views 20] [--rounds 3] [--seconds 15] [--json]

`helios serve` on the simulated device (100 plans a second) over a store of a million plans. Four clients read streams
all the time, another asks for /metrics every quarter of a second. Each round measures twice: without views, and beside
benchmarks/viewers.py, whose readers ask for one page after the other over seven days, while two statements on /api/sql
do not end. A gap is the time between two chunks of a stream that arrive on their own.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import httpx
from served_streams import helios_server

from service.load.million import fill_store
from service.load.server import byte_model, catalog_csv
from service.load.statistics import percentile

STREAMS = 4
VIEWERS = pathlib.Path(__file__).with_name("viewers.py")


class Reader(threading.Thread):
    """Does `once` again and again; notes what it gives while `noting`."""

    def __init__(self, once: Callable[[], Iterator[float]]) -> None:
        super().__init__(daemon=True)
        self.once, self.noting, self.ends = once, False, threading.Event()
        self.found: list[float] = []

    def run(self) -> None:
        while not self.ends.is_set():
            for value in self.once():
                if self.noting:
                    self.found.append(value)
                if self.ends.is_set():
                    return


def stream_gaps(base: str) -> Iterator[float]:
    """Gaps in ms between the chunks of one streamed answer."""
    body = {"model": "byte-model", "prompt": "a", "max_tokens": 1000, "stream": True}
    with httpx.stream("POST", f"{base}/v1/completions", json=body, timeout=60) as answer:
        times = (time.perf_counter() for _ in answer.iter_raw())
        for before, after in itertools.pairwise(times):
            yield (after - before) * 1e3


def scrape(base: str) -> Iterator[float]:
    """The time in ms of one scrape, and a pause."""
    began = time.perf_counter()
    httpx.get(f"{base}/metrics", timeout=60).raise_for_status()
    yield (time.perf_counter() - began) * 1e3
    time.sleep(0.25)


def measured(readers: Sequence[Reader], seconds: float) -> dict[str, float]:
    """p50 and p99 of what streams and scrapes took in the next seconds."""
    for reader in readers:
        reader.found, reader.noting = [], True
    time.sleep(seconds)
    for reader in readers:
        reader.noting = False
    gaps = [gap for reader in readers[:-1] for gap in reader.found]
    scrapes = readers[-1].found
    return {
        "gap_p50_ms": percentile(gaps, 0.5),
        "gap_p99_ms": percentile(gaps, 0.99),
        "metrics_p50_ms": percentile(scrapes, 0.5),
        "metrics_p99_ms": percentile(scrapes, 0.99),
        "events": len(gaps),
    }


def rounds(base: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """One row for each round: figures without views, with them, and their ratios."""
    readers = [Reader(lambda: stream_gaps(base)) for _ in range(STREAMS)] + [Reader(lambda: scrape(base))]
    for reader in readers:
        reader.start()
    time.sleep(5)
    rows = []
    for _ in range(options.rounds):
        without = measured(readers, options.seconds)
        command = [sys.executable, str(VIEWERS), base, str(options.views)]
        asking = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert asking.stdout is not None, "it is a pipe"
        asking.stdout.readline()  # a first view was answered
        beside = measured(readers, options.seconds)
        asking.terminate()
        answers = asking.communicate()[0].splitlines()
        row = {f"{name}_0": value for name, value in without.items()}
        row |= {f"{name}_{options.views}": value for name, value in beside.items()}
        row |= {f"{name}_ratio": beside[name] / without[name] for name in without}
        rows.append(row | {"views_answered": len(answers)})
    for reader in readers:
        reader.ends.set()
    for reader in readers:
        reader.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=1_000_000)
    parser.add_argument("--views", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--store", help="a SQLite file to keep the plans in; filled if it is not there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        catalog = pathlib.Path(folder) / "catalog.csv"
        catalog.write_text(catalog_csv(STREAMS), encoding="utf-8")
        store = pathlib.Path(options.store or pathlib.Path(folder) / "helios.db")
        if not store.exists():
            fill_store(f"sqlite:///{store}", dt.datetime.now(dt.UTC), options.plans)
        simulated = ("--device", "simulated", "--catalog", str(catalog), "--time-scale", "0.2")
        with helios_server("--model", byte_model(), "--database", str(store), *simulated) as base:
            rows = rounds(base, options)
    if options.json:
        print(json.dumps(rows))
        return
    for name in rows[0]:
        print(
            f"{name:24}",
            *(f"{row[name]:10.2f}" for row in rows),
            f"  median {statistics.median(r[name] for r in rows):.2f}",
        )


if __name__ == "__main__":
    main()
