"""A journal that loses records: serving goes on, the counters say so, and each episode is logged once."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from service.engine import worker as worker_module
from service.ipc.messages import Tokens
from service.journal.status import EPISODE_NS, LOSSES, Episodes, JournalStatus
from service.journal.writer import JournalWriter

SECOND = 1_000_000_000


def quiet(**changes) -> JournalStatus:
    lost = {**dict.fromkeys(LOSSES, 0), **changes.pop("lost", {})}
    return JournalStatus(lost, changes.pop("sync_failures", 0), changes.pop("stuck", None))


def test_an_episode_is_logged_at_its_beginning_and_its_end(caplog):
    episodes = Episodes()
    with caplog.at_level(logging.WARNING):
        assert episodes.look(quiet(), 0) == set()
        for second in range(1, 60):
            status = quiet(lost={"disk_full": second * 3}, stuck="disk_full")
            assert episodes.look(status, second * SECOND) == {"disk_full"}
        status = quiet(lost={"disk_full": 59 * 3})
        assert episodes.look(status, 59 * SECOND + EPISODE_NS - 1) == {"disk_full"}
        assert episodes.look(status, 59 * SECOND + EPISODE_NS) == set()
        assert episodes.look(status, 99 * SECOND) == set()
    assert [record.getMessage() for record in caplog.records] == [
        "the trace is losing records: disk full",
        "over (177 in all): the trace is losing records: disk full",
    ]


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (quiet(lost={"over_budget": 1}), "over_budget"),
        (quiet(sync_failures=1), "sync_failed"),
        (quiet(stuck="write_failed"), "write_failed"),
    ],
)
def test_each_cause_begins_an_episode_of_its_own(status, cause):
    assert Episodes().look(status, 0) == {cause}


def test_a_full_disk_under_a_serving_engine_is_counted_and_told(rig, tmp_path, monkeypatch, caplog):
    """The journal is the real one; its disk takes nothing from some moment on."""
    journal = JournalWriter(tmp_path / "journal", run_id="run-1", segment_bytes=64 << 10, budget_bytes=1 << 20)
    rig.worker._journal = journal
    rig.device.journal, rig.device.automatic = None, True
    rig.submit("a", output=3)
    rig.step()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("pwrite", "posix_fallocate"):
        monkeypatch.setattr(os, name, full)
    with caplog.at_level(logging.WARNING):
        rig.settle()
        for _ in range(3):
            rig.clock.advance(worker_module.TICK_NS)
            rig.step()
    assert [message.finish_reason for message in rig.tokens("a") if isinstance(message, Tokens)][-1] == "length"
    assert rig.metric("flare_journal_lost_records_total", cause="disk_full") == journal.lost_records > 0
    assert rig.metric("flare_journal_lost_records_total", cause="over_budget") == 0
    assert rig.metric("flare_journal_trouble", cause="disk_full") == 1
    said = [record.getMessage() for record in caplog.records if record.name == "service.journal.status"]
    assert said == ["the trace is losing records: disk full"]
    journal.close()


def test_failed_syncs_are_counted(rig):
    rig.journal.sync_failures = 4
    rig.step()
    assert rig.metric("flare_journal_sync_failures_total") == 4
    assert rig.metric("flare_journal_trouble", cause="sync_failed") == 1
