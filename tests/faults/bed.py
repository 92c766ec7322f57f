"""A whole server on the simulated device under load from a submitter, and what must be true of it after every fault."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import signal
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence

import httpx
import msgspec
import sqlalchemy as sa
from waiting import free_port, wait_until

from service.journal.segments import SegmentFile
from service.load.server import Options, simulated_settings
from service.load.submitter import Load, Received, Submitter
from service.store.database import open_database, read_transaction
from tests.e2e.helios_server import HeliosServer, children_of

RATE = 100.0
LANES = 4
ANSWER_TOKENS = 40
LONG_S = 120.0
"""For what a busy machine may take long for: starts of processes, a backlog to be stored."""
SOME_TOKENS = 4 * ANSWER_TOKENS
"""Progress: several requests' worth."""

_TOLD = {"length", "abort"}
"""Ends that the engine itself told, so that every token before them was published."""


class Bed(HeliosServer):
    """A server of its own, and its load. `database`: another store than SQLite in `data_dir`."""

    submitter: Submitter

    def __init__(self, data_dir: pathlib.Path, database: str = "", **settings: object) -> None:
        base = simulated_settings(data_dir, Options(plans_per_s=RATE, lanes=LANES, database=database))
        self.settings = msgspec.structs.replace(base, port=free_port(), **settings)
        self._written = data_dir.parent / f"{data_dir.name}-settings.json"
        self._written.write_bytes(msgspec.json.encode(self.settings))
        command = [sys.executable, "-m", "tests.faults.serve_settings", str(self._written)]
        super().__init__(data_dir, command=command, port=self.settings.port)

    def sql(self, query: str, **parameters: object) -> list[dict[str, object]]:
        """Rows of the store, whichever it is; none while it cannot be reached."""
        return store_rows(self.settings.database, query, **parameters)

    def health(self) -> dict[str, list[str]]:
        """GET /health/ready, whatever its status; without reasons or warnings where the service does not answer."""
        with contextlib.suppress(Exception):
            return self.http.get("/health/ready").json()
        return {"reasons": [], "warnings": []}

    def lag_s(self) -> float | None:
        """Age of the oldest record that the store lacks; None while there is no recorder that says so."""
        with contextlib.suppress(AssertionError, httpx.HTTPError):
            return self.metric('flare_trace_lag_seconds{sink="sql"}')
        return None

    def warned(self, part: str) -> bool:
        """Whether /health/ready says this, as a reason or as a warning."""
        health = self.health()
        return any(part in line for line in (*health["reasons"], *health["warnings"]))

    def kill(self, module: str, signum: int = signal.SIGKILL) -> int:
        """Signal the process that runs this module now; its pid."""
        pid = self.child(module)
        os.kill(pid, signum)
        return pid

    def replaced(self, module: str, old: int) -> int:
        """The successor of `old`, once there is one."""
        return wait_until(
            lambda: (pid := children_of(self.process.pid).get(module)) not in (None, old) and pid,
            f"another {module}\n{self.log()}",
            LONG_S,
        )

    def serves_on(self) -> None:
        """Tokens keep coming: several requests' worth. Serving must not depend on what is broken now."""
        self.submitter.wait_tokens(SOME_TOKENS, LONG_S)

    def settle(self) -> dict[str, Received]:
        """End the load; what was received, once the store has everything that the journal can give."""
        self.submitter.pause()
        received = self.submitter.received()
        wait_until(lambda: self._stored(received), f"the trace in SQL\n{self.log()}", LONG_S)
        return received

    def _stored(self, received: Mapping[str, Received]) -> bool:
        """The newest ended request's end and plan are stored, and the recorder has nothing more to read.

        An older plan may be in flight for ever as far as SQL knows: its end was lost.
        """
        told = [name for name, found in received.items() if found.ended in _TOLD]
        ends = self.sql("SELECT request_id FROM requests WHERE finished_at IS NOT NULL")
        newest = "SELECT run_id, MAX(fence) FROM plans GROUP BY run_id"
        open_plans = self.sql(f"SELECT fence FROM plans WHERE outcome = 'in_flight' AND (run_id, fence) IN ({newest})")
        known = {row["request_id"] for row in ends}
        return bool(told) and told[-1] in known and not open_plans and self.lag_s() == 0


@contextlib.contextmanager
def bed(data_dir: pathlib.Path, database: str = "", **settings: object) -> Iterator[Bed]:
    """A ready server under load; ended afterwards whatever happens."""
    server = Bed(data_dir, database, **settings)
    try:
        server.wait_ready()
        with Submitter(server.settings.engine_endpoint, Load(LANES, 16, ANSWER_TOKENS)) as server.submitter:
            server.submitter.wait_ready(seconds=LONG_S)
            server.submitter.begin()
            server.submitter.wait_tokens(LANES, LONG_S)
            wait_until(lambda: server.sql("SELECT run_id FROM engine_runs"), "the recorder to have begun", LONG_S)
            yield server
    finally:
        server.end()


@contextlib.contextmanager
def again(former: Bed) -> Iterator[Bed]:
    """Another server on the data directory of one that has ended; its engine gets the same load."""
    wait_until(lambda: former.process.poll() is not None, "the former server to end", LONG_S)
    server = Bed(former.data_dir, former.settings.database)
    server.submitter = former.submitter
    try:
        yield server.wait_ready()
    finally:
        server.end()


def store_rows(url: str, query: str, **parameters: object) -> list[dict[str, object]]:
    """Rows of a store that may be locked, away or not made yet; then none."""
    engine = open_database(url, readonly=True)
    try:
        with read_transaction(engine) as connection:
            return [dict(row._mapping) for row in connection.execute(sa.text(query), parameters)]
    except Exception:
        return []
    finally:
        engine.dispose()


@dataclasses.dataclass(frozen=True, slots=True)
class Missing:
    """What a run's stored plans leave out. `fences`: absent ones, each within a gap of its run. `unknown`: plans
    whose end is not known."""

    fences: frozenset[int]
    unknown: int


def assert_conserved(url: str, received: Mapping[str, Received]) -> dict[str, Missing]:
    """Every plan is in SQL once or in a gap, and every received token is counted in plan_lanes.committed_tokens.

    Fences of a run count from 1 without a hole. A request that the engine ended has exactly its tokens committed, one
    that was lost with its engine at least those. In a run with gaps a missing plan, or one whose end is missing, may
    have held one token of each request (there are no drafts). Returns what is missing by run.
    """
    assert received, "the load received nothing"
    missing = _missing(url)
    lanes = store_rows(url, "SELECT request_id, SUM(committed_tokens) AS n FROM plan_lanes GROUP BY request_id")
    committed = {row["request_id"]: int(row["n"]) for row in lanes}
    for name, found in received.items():
        stored = committed.get(name, 0)
        lost = missing.get(found.run_id, Missing(frozenset(), 0))
        allowed = len(lost.fences) + lost.unknown
        assert found.tokens - allowed <= stored, f"{name}: {found} and {stored} committed; missing: {lost}"
        if found.ended in _TOLD:
            assert stored <= found.tokens, f"{name}: {found} and {stored} committed: some are counted twice"
    return missing


def _missing(url: str) -> dict[str, Missing]:
    """By run; fails where a fence is absent and no gap of its run says so, or where a plan has no lanes."""
    gaps = store_rows(url, "SELECT run_id, from_fence, to_fence FROM trace_gaps")
    plans = store_rows(url, "SELECT run_id, fence, outcome, active_rows FROM plans ORDER BY run_id, fence")
    lanes = store_rows(url, "SELECT run_id, fence, COUNT(*) AS n FROM plan_lanes GROUP BY run_id, fence")
    assert {(row["run_id"], row["fence"]): row["n"] for row in lanes} == {
        (row["run_id"], row["fence"]): row["active_rows"] for row in plans
    }
    fences = collections.defaultdict(set)
    for row in plans:
        fences[row["run_id"]].add(row["fence"])
    told = collections.defaultdict(set)
    for gap in gaps:
        if gap["from_fence"] is not None:
            told[gap["run_id"]] |= set(range(gap["from_fence"], gap["to_fence"] + 1))
    found = {}
    for run in {*fences, *told}:
        last = max(fences[run] | told[run])
        holes = set(range(1, last + 1)) - fences[run]
        assert holes <= told[run], f"run {run}: fences {sorted(holes - told[run])[:20]} are neither stored nor in a gap"
        unknown = sum(row["run_id"] == run and row["outcome"] in ("lost", "in_flight") for row in plans)
        found[run] = Missing(frozenset(holes), unknown)
    return found


def assert_whole(url: str, received: Mapping[str, Received]) -> None:
    """Nothing at all is missing."""
    assert store_rows(url, "SELECT * FROM trace_gaps") == []
    assert all(not missing.fences for missing in assert_conserved(url, received).values())


def assert_gap_is_told(server: Bed, run: str | None, part: str = "") -> None:
    """A gap of this run, with this part of its reason, is a row, a metric and a line of /health/ready."""
    gaps = server.sql("SELECT * FROM trace_gaps")
    assert any(gap["run_id"] == run and part in gap["reason"] for gap in gaps), gaps
    assert server.metric("flare_trace_lost_records_total") > 0
    wait_until(lambda: server.warned("trace_gaps"), f"the gap at /health/ready: {server.health()}")


def lock(path: pathlib.Path) -> sqlite3.Connection:
    """A foreign connection that holds the write lock of a SQLite file until it is closed."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def frames_of(directory: pathlib.Path, number: int) -> Sequence[tuple[int, int]]:
    """Where each frame of a segment begins and ends."""
    segment = SegmentFile(directory, number)
    try:
        offsets, offset = [], 4096
        while (frame := segment.frame(offset)) is not None:
            offsets.append((offset, frame.end))
            offset = frame.end
        return offsets
    finally:
        segment.close()


def damage(path: pathlib.Path, offset: int, count: int = 16) -> None:
    """Overwrite bytes of a file, as a torn write or a bad sector would."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xa5" * count)
