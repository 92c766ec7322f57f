"""Previews as jobs: their processes, their turn, their end, and what every process of the service sees of them."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from recorded_traffic import record

from scheduler.policy import PolicyConfig
from service.control.preview import jobs
from service.control.preview.asking import preview_request
from service.control.preview.errors import NothingRecorded, PreviewsFull, PreviewsUnusable, UnknownPreview
from service.control.preview.files import LEFT_BEHIND, PreviewFolder, preview_ids
from service.control.preview.jobs import Limits, Previews
from service.control.preview.messages import PreviewRequest, PreviewStatus

WAIT_S = 120
PRIORITY = """
import os, resource
from service.control.preview.limits import give_way
give_way(19, 3 << 30)
print(os.getpriority(os.PRIO_PROCESS, 0), resource.getrlimit(resource.RLIMIT_AS)[0])
"""


def request(**asked: Any) -> PreviewRequest:
    return preview_request(PolicyConfig.balanced(), 1, minutes=1, **asked)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run" / "previews"


@pytest.fixture
def previews(store: sa.Engine, folder: pathlib.Path) -> Iterator[Previews]:
    """Of a store with a little traffic; their processes end with the test."""
    record(store, seconds=5)
    made = Previews(folder, str(store.url), store, Limits(niceness=0))
    yield made
    for child in made._children.values():
        child.kill()
        child.wait()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that hold their lock and do nothing."""
    monkeypatch.setattr(jobs, "MODULE", "hanging_preview")
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parent))


async def until(look: Callable[[], Awaitable[PreviewStatus]], state: str) -> PreviewStatus:
    """The first status in this state; fails when it ends in another, or is late."""
    async with asyncio.timeout(WAIT_S):
        while (status := await look()).state != state:
            assert not status.ended, status.message
            await asyncio.sleep(0.05)
    return status


def test_a_preview_runs_in_its_own_process_and_every_process_sees_its_result(
    previews: Previews, store: sa.Engine, folder: pathlib.Path
) -> None:
    async def run() -> PreviewStatus:
        started = await previews.start(request(coefficients={"terminal_value": 1.0}), "ada")
        assert (started.state, started.by, started.progress) == ("queued", "ada", 0.0)
        other = Previews(folder, str(store.url), store)
        return await until(lambda: other.status(started.id), "done")

    status = asyncio.run(run())
    assert status.progress == 1.0
    assert status.result is not None
    assert status.result.draft.completed == status.result.recorded.completed > 0
    assert status.request.draft["terminal_value"] == 1.0
    assert None not in (status.started_at, status.ended_at)


def test_a_preview_that_another_process_cancels_ends_by_itself(
    previews: Previews, store: sa.Engine, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> tuple[PreviewStatus, PreviewStatus]:
        monkeypatch.setattr(jobs, "MODULE", "hanging_preview")
        monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parent))
        first = await previews.start(request(), "ada")
        monkeypatch.undo()
        second = await previews.start(request(), "bo")
        assert second.message == "Waits for its turn"
        cancelled = await Previews(folder, str(store.url), store).cancel(second.id)
        async with asyncio.timeout(WAIT_S):
            while PreviewFolder(folder, second.id).lives():
                await asyncio.sleep(0.02)
        assert PreviewFolder(folder, second.id).read().state == "cancelled"
        return await previews.status(first.id), cancelled

    first, second = asyncio.run(run())
    assert first.state == "queued"
    assert second.state == "cancelled"


@pytest.mark.usefixtures("hanging")
def test_who_started_a_preview_ends_its_process_at_once(previews: Previews, folder: pathlib.Path) -> None:
    async def run() -> PreviewStatus:
        started = await previews.start(request(), "ada")
        (child,) = previews._children.values()
        cancelled = await previews.cancel(started.id)
        child.wait(WAIT_S)
        return cancelled

    status = asyncio.run(run())
    assert status.state == "cancelled"
    assert not PreviewFolder(folder, status.id).lives()


@pytest.mark.usefixtures("hanging")
def test_one_runs_three_wait_and_the_next_is_refused(previews: Previews) -> None:
    async def run() -> None:
        for _ in range(4):
            await previews.start(request(), "ada")
        with pytest.raises(PreviewsFull, match="3 wait"):
            await previews.start(request(), "ada")
        assert [status.state for status in await previews.kept()] == ["queued"] * 4

    asyncio.run(run())


@pytest.mark.usefixtures("hanging")
def test_a_full_disk_leaves_nothing_that_counts_as_a_preview(
    previews: Previews, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: pathlib.Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def run() -> PreviewStatus:
        with monkeypatch.context() as disk:
            disk.setattr(pathlib.Path, "write_bytes", full)
            for _ in range(jobs.MOST_WAITING + 2):
                with pytest.raises(PreviewsUnusable, match="No space left"):
                    await previews.start(request(), "ada")
        assert preview_ids(folder) == []
        return await previews.start(request(), "ada")

    assert asyncio.run(run()).message == jobs.STARTING


@pytest.mark.parametrize("text", [b"", b"\xff", b'{"a":' + b"[" * 100_000, b"{}", b"null"])
def test_a_spoilt_state_hides_no_other_preview(previews: Previews, folder: pathlib.Path, text: bytes) -> None:
    spoilt = PreviewFolder(folder, "0" * 24)
    spoilt.path.mkdir(parents=True)
    (spoilt.path / "state.json").write_bytes(text)
    with pytest.raises(PreviewsUnusable, match="cannot be read"):
        spoilt.read()
    assert asyncio.run(previews.kept()) == []


@pytest.mark.usefixtures("hanging")
@pytest.mark.parametrize("part", ["draft", "running"])
def test_one_of_a_version_with_other_coefficients_is_refused_in_words(
    previews: Previews, folder: pathlib.Path, part: str
) -> None:
    async def run() -> str:
        started = await previews.start(request(), "ada")
        await previews.cancel(started.id)
        return started.id

    kept = PreviewFolder(folder, asyncio.run(run()))
    state = json.loads((kept.path / "state.json").read_bytes())
    state["request"][part].popitem()
    (kept.path / "state.json").write_text(json.dumps(state))
    with pytest.raises(PreviewsUnusable, match="another version"):
        kept.read()


@pytest.mark.usefixtures("hanging")
def test_one_whose_process_was_killed_has_failed_in_words(previews: Previews, folder: pathlib.Path) -> None:
    async def run() -> PreviewStatus:
        started = await previews.start(request(), "ada")
        (child,) = previews._children.values()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        return await previews.status(started.id)

    status = asyncio.run(run())
    assert (status.state, status.message) == ("failed", LEFT_BEHIND)
    assert not PreviewFolder(folder, status.id).lives()


@pytest.mark.usefixtures("hanging")
def test_the_newest_are_kept_and_the_oldest_go(
    previews: Previews, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MOST_KEPT", 3)

    async def run() -> list[str]:
        made = []
        for _ in range(5):
            made.append((await previews.start(request(), "ada")).id)
            for child in previews._children.values():
                child.kill()
                child.wait()
        with pytest.raises(UnknownPreview):
            await previews.status(made[0])
        return made

    made = asyncio.run(run())
    assert preview_ids(folder) == made[-3:]


def test_ids_from_outside_reach_no_other_file(previews: Previews) -> None:
    for forged in ("../../helios.db", "..", "", "A" * 24, "0" * 23, "0" * 24 + "/.."):
        with pytest.raises(UnknownPreview):
            asyncio.run(previews.status(forged))
        with pytest.raises(UnknownPreview):
            asyncio.run(previews.cancel(forged))


def test_nothing_is_started_where_nothing_was_recorded(store: sa.Engine, folder: pathlib.Path) -> None:
    with pytest.raises(NothingRecorded):
        asyncio.run(Previews(folder, str(store.url), store).start(request(), "ada"))
    first = dt.datetime.min.replace(tzinfo=dt.UTC)
    with pytest.raises(NothingRecorded):
        asyncio.run(Previews(folder, str(store.url), store).start(request(until=first), "ada"))
    assert preview_ids(folder) == []


def test_a_preview_has_the_lowest_priority_and_a_limit_of_memory() -> None:
    said = subprocess.run([sys.executable, "-c", PRIORITY], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["19", str(3 << 30)]


def test_a_preview_ends_with_the_process_that_started_it(store: sa.Engine, folder: pathlib.Path) -> None:
    record(store, seconds=5)
    script = f"""
import asyncio, os, pathlib
from scheduler.policy import PolicyConfig
from service.control.preview import jobs
from service.control.preview.asking import preview_request
from service.store.database import open_database
jobs.MODULE = "hanging_preview"
previews = jobs.Previews(pathlib.Path({str(folder)!r}), {str(store.url)!r}, open_database({str(store.url)!r}))
asyncio.run(previews.start(preview_request(PolicyConfig.balanced(), 1), "ada"))
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    (name,) = preview_ids(folder)

    async def ended() -> PreviewStatus:
        async with asyncio.timeout(WAIT_S):
            while PreviewFolder(folder, name).lives():
                await asyncio.sleep(0.02)
        return PreviewFolder(folder, name).read()

    assert asyncio.run(ended()).state == "failed"
