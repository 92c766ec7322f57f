"""Believable journal records, and journals, sinks and collectors around them."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from otlp_receiver import OtlpReceiver

from service.journal.packed import decode_packed
from service.journal.reader import JournalReader
from service.journal.records import (
    AlternativeRecord,
    LaneOutcome,
    LaneRecord,
    OutputPublished,
    PartsRecord,
    PlanCommitted,
    PlanCompleted,
    PolicyApplied,
    Record,
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RunEnded,
    RunStarted,
    ShapeRecord,
)
from service.journal.writer import JournalWriter
from service.recorder.pump import _run_changes
from service.recorder.sql_sink import SqlSink
from service.store.tables import metadata

WALL_NS = 1_760_000_000_000_000_000
MONOTONIC_NS = 5_000_000_000
MS = 1_000_000
SHAPE = ShapeRecord("decode", 8, 0, 1, 8, 0, False, "none")
PREFILL = ShapeRecord("prefill", 1, 0, 1, 0, 64, False, "none")
PARTS = PartsRecord(60.0, 4.0, 1.5, 0.0, 0.25, 21.5)


def at(ms: float) -> int:
    return MONOTONIC_NS + int(ms * MS)


def started(run_id: str = "run-1") -> RunStarted:
    return RunStarted(
        run_id, WALL_NS, MONOTONIC_NS, "host-1", "0.1.0", "model-1", "cpu", "digest", {"port": 8000}, [SHAPE], 1
    )


def policy(version: int = 1, fence: int = 0) -> PolicyApplied:
    return PolicyApplied(version, fence, at(1), {"token_fairness": 16.0, "estimate_ttl_ns": 30_000_000_000})


def arrived(request_id: str, ms: float = 2, **changes) -> RequestArrived:
    fields = {"model": "model-1", "prompt_tokens": 12, "max_tokens": 64, "prefix_key": None, **changes}
    return RequestArrived(
        request_id, fields["model"], at(ms), 400_000, fields["prompt_tokens"], fields["max_tokens"],
        fields["prefix_key"], fields.get("trace_id"), fields.get("parent_span_id"),
        fields.get("operation", "text_completion"), fields.get("trace_flags", 1), fields.get("trace_state"),
        fields.get("options"),
    )  # fmt: skip


def admitted(request_id: str, ms: float = 3) -> RequestAdmitted:
    return RequestAdmitted(request_id, 0, 1, at(ms), 4)


def finished(request_id: str, ms: float = 90, first_ms: float | None = 40, **changes) -> RequestFinished:
    fields = {"finish_reason": "stop", "error": None, "output_tokens": 5, **changes}
    first_ns = None if first_ms is None else at(first_ms)
    return RequestFinished(
        request_id, fields["finish_reason"], fields["error"], first_ns, at(ms), fields["output_tokens"],
        2 * MS, 30 * MS, 50 * MS, 1 * MS,
    )  # fmt: skip


def lane(request_id: str, **changes) -> LaneRecord:
    fields = {"token_price": 2.5, "lane_value": 64.0, **changes}
    return LaneRecord(
        request_id, 0, 1, "decode", 0, 1, 1, None, fields["token_price"], 0.5, 12.0, 3.0, 1.0, 0.0, fields["lane_value"]
    )


def alternative(rank: int, requests: list[str]) -> AlternativeRecord:
    return AlternativeRecord(
        rank, PREFILL, "rate", 1.25, PARTS, 0.0, None, None, 1, requests, 9 * MS, "fresh", "unmeasured"
    )


def plan(fence: int, requests: list[str], ms: float = 5, **changes) -> PlanCommitted:
    fields = {"score": 3.5, "margin": 0.25, "alternatives": 2, "lanes": None, "horizon_ms": 21.5, "ttl": 1, **changes}
    return PlanCommitted(
        fence, at(ms), SHAPE, "ordinary", "rate", fields["score"], 0.5, PARTS, 20 * MS, 7 * MS, "fresh",
        len(requests), len(requests), fields["margin"], 4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.5, 3, fence % 2,
        changes.get("policy_version", 1), 55.5, None, None,
        fields["lanes"] or [lane(request) for request in requests],
        [alternative(rank, requests[:1]) for rank in range(1, fields["alternatives"] + 1)],
    )  # fmt: skip


def completed(fence: int, lanes: int, ms: float = 25, outcome: str = "completed") -> PlanCompleted:
    return PlanCompleted(
        fence, at(ms - 19), at(ms), outcome, 18 * MS, 19 * MS, 0, 18 * MS,
        [LaneOutcome(number, 3, 1, 1, 2, 3) for number in range(lanes)],
    )  # fmt: skip


def published(fence: int, lanes: int, ms: float = 26) -> OutputPublished:
    return OutputPublished(fence, at(ms), list(range(lanes)))


def ended(ms: float = 100, reason: str = "stopped") -> RunEnded:
    return RunEnded(at(ms), reason)


def story(fences: int = 6, requests: int = 2, run_id: str = "run-1") -> list[list[Record]]:
    """A whole run as frames: start, arrivals, plans that complete one frame later, ends."""
    names = [f"request-{number}" for number in range(requests)]
    frames: list[list[Record]] = [[started(run_id), policy()]]
    frames.append([record for name in names for record in (arrived(name), admitted(name))])
    for fence in range(1, fences + 1):
        frames.append([plan(fence, names, 10 * fence)])
        frames.append([completed(fence, requests, 10 * fence + 8), published(fence, requests, 10 * fence + 9)])
    frames.append([finished(name, 10 * fences + 10, 19, output_tokens=fences) for name in names])
    frames.append([ended(10 * fences + 20)])
    return frames


def write_frames(directory: pathlib.Path, frames: list[list[Record]], run_id: str = "run-1", **options) -> None:
    """A writer's whole life; it closes without a RunEnded of its own."""
    writer = JournalWriter(directory, run_id=run_id, **{"segment_bytes": 64 << 10, "budget_bytes": 64 << 20, **options})
    fence = 0
    for frame in frames:
        fence = max([fence, *(record.fence for record in frame if isinstance(record, PlanCommitted))])
        writer.append(frame, fence)
    writer.close()


def drain(engine: sa.Engine, directory: pathlib.Path, batch: int = 4, close: bool = True, **options) -> int:
    """What a pump does, without threads or time. Returns lost records."""
    reader = JournalReader(directory, decode=decode_packed)
    sink = SqlSink(engine, reader.journal_id, **options)
    reader.position = sink.resume()
    reader.run_id = sink.run_id
    lost, pending = 0, []
    while (item := reader.poll()) is not None:
        if pending and (len(pending) >= batch or _run_changes(pending, item)):
            lost += sink.deliver(pending).lost
            pending = []
        pending.append(item)
    if pending:
        lost += sink.deliver(pending).lost
    if close:
        sink.close_lost_run()
    reader.close()
    return lost


def batches(directory: pathlib.Path) -> list:
    reader = JournalReader(directory)
    found = []
    while (item := reader.poll()) is not None:
        found.append(item)
    reader.close()
    return found


def contents(engine: sa.Engine) -> dict[str, list[tuple]]:
    """Every row of every table, but for when it was written and generated ids."""
    hidden = {"updated_at", "noticed_at", "id"}
    with engine.connect() as connection:
        return {
            table.name: sorted(
                (
                    tuple(row)
                    for row in connection.execute(sa.select(*[c for c in table.columns if c.name not in hidden]))
                ),
                key=repr,
            )
            for table in metadata.sorted_tables
        }


def rows(engine: sa.Engine, table: sa.Table) -> list[dict]:
    with engine.connect() as connection:
        return [dict(row._mapping) for row in connection.execute(sa.select(table).order_by(*table.primary_key))]


@pytest.fixture
def collector() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    yield receiver
    receiver.close()


@pytest.fixture
def make():
    """The helpers of this file as one namespace."""
    return types.SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("__")})
