"""The whole engine loop over its real socket, journal and poll, and the process's way of refusing to start."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import msgspec
import pytest

from scheduler.policy import PolicyConfig
from service.control.errors import EngineDidNotAnswer
from service.control.policy import PolicyControl, resolve_initial_policy
from service.engine import process
from service.engine.run import EXIT_OK, PollWaiter, StopSignal, run_worker
from service.engine.start import build_worker, catalog_digest
from service.ipc.client import EngineClient
from service.ipc.errors import EngineRefused, PolicyRejected
from service.ipc.messages import Sampling, Submit
from service.ipc.server import EngineServer
from service.journal.reader import Batch, JournalReader
from service.journal.records import PlanCommitted, PolicyApplied, RequestFinished, RunEnded, RunStarted
from service.journal.writer import JournalWriter
from service.settings import EngineStart, Settings
from service.telemetry.shared import MetricsWriter


def engine_start(tmp_path, **changes) -> EngineStart:
    settings = Settings(data_dir=str(tmp_path), database="sqlite://", threads=1, **changes)
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    settings.journal_dir.mkdir(parents=True, exist_ok=True)
    return EngineStart(
        settings=settings,
        run_id="run-1",
        endpoint=f"ipc://{tmp_path}/e",
        policy_version=1,
        coefficients=PolicyConfig().as_dict(),
    )


class LiveEngine:
    """run_worker in a thread of its own, over real parts and a scripted device whose results wake the poll."""

    def __init__(self, tmp_path, device) -> None:
        self.start = engine_start(tmp_path)
        self.device = device
        device.completion_fd, self.wake_fd = os.pipe()
        submit, collect = device.submit, device.collect

        def submit_and_wake(frame):
            submit(frame)
            os.write(self.wake_fd, b"\0")

        def collect_and_read():
            if device.running is not None and device.automatic:
                os.read(device.completion_fd, 1)
            return collect()

        device.submit, device.collect = submit_and_wake, collect_and_read
        self.stop = StopSignal()
        self.code = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        settings = self.start.settings
        journal = JournalWriter(settings.journal_dir, run_id="run-1", segment_bytes=1 << 20, budget_bytes=4 << 20)
        with EngineServer(self.start.endpoint) as server, MetricsWriter(settings.engine_metrics_path) as metrics:
            worker = build_worker(
                self.start, PolicyConfig(), "m", self.device, journal, server, metrics, time.monotonic_ns
            )
            wait = PollWaiter(server.socket, self.device.completion_fd, self.stop.fd)
            self.code = run_worker(worker, self.stop, wait, time.monotonic_ns)
        journal.close()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        if not self.stop.requested:
            self.stop.request()
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.stop.close()
        os.close(self.device.completion_fd)
        os.close(self.wake_fd)

    def records(self) -> list:
        reader = JournalReader(self.start.settings.journal_dir)
        found = []
        while (item := reader.poll()) is not None:
            assert isinstance(item, Batch)
            found += item.records
        reader.close()
        return found


@pytest.fixture
def device(device_class):
    class RealClock:
        def __call__(self):
            return time.monotonic_ns()

        def advance(self, ns):
            """Real time moves by itself."""

    return device_class(RealClock())


def request(request_id: str, output: int = 5, first: int = 10) -> Submit:
    return Submit(request_id, "m", [first, 11, 12], output, Sampling(0.0), [1], False, time.monotonic_ns(), 0)


async def answer(client: EngineClient, message: Submit) -> tuple[list[int], str | None]:
    tokens, reason = [], None
    async with client.submit(message) as stream:
        async for part in stream:
            tokens += part.token_ids
            reason = part.finish_reason
    return tokens, reason


def test_requests_policy_and_shutdown_over_the_real_socket_and_journal(tmp_path, device):
    device.scripts[30] = [60, 61, 1]

    async def scenario(engine):
        async with EngineClient(engine.start.endpoint) as client, asyncio.timeout(20):
            ready = await client.wait_ready()
            assert ready.run_id == "run-1"
            got = await asyncio.gather(*(answer(client, request(f"r{n}")) for n in range(6)))
            assert got == [([50] * 5, "length")] * 6
            assert await answer(client, request("s", 100, first=30)) == ([60, 61], "stop")
            with pytest.raises(EngineRefused, match="too_long"):
                await answer(client, request("long", 10_000))
            fence = await client.configure_policy(2, PolicyConfig.throughput().as_dict())
            with pytest.raises(PolicyRejected, match="token_fairness"):
                await client.configure_policy(3, {"token_fairness": -1.0})
            await answer(client, request("after"))
            device.automatic = False
            async with client.submit(request("open")) as stream:
                engine.stop.request()
                last = [part async for part in stream][-1]
            assert (last.finish_reason, last.error) == ("abort", "the server is shutting down")
            device.automatic = True
            return fence

    with LiveEngine(tmp_path, device) as engine:
        fence = asyncio.run(scenario(engine))
    assert engine.code == EXIT_OK
    records = engine.records()
    assert isinstance(records[0], RunStarted)
    assert isinstance(records[-1], RunEnded)
    plans = [r for r in records if isinstance(r, PlanCommitted)]
    assert all((plan.policy_version == 2) == (plan.fence > fence) for plan in plans)
    assert len([r for r in records if isinstance(r, RequestFinished)]) == 9


def test_the_real_control_engine_and_connection_agree_after_an_answer_came_too_late(tmp_path, device, store):
    """The engine has version 2 when the control gives it up."""

    async def scenario(engine):
        async with EngineClient(engine.start.endpoint) as client, asyncio.timeout(20):
            await client.wait_ready()

            async def apply(version, coefficients, *, withdraws=None):
                fence = await client.configure_policy(version, coefficients, withdraws=withdraws)
                if version == 2:
                    raise TimeoutError
                return fence

            control = PolicyControl(store, apply)
            wanted = {"expected_version": 1, "coefficients": {"token_fairness": 8}, "actor": "anna"}
            with pytest.raises(EngineDidNotAnswer):
                await control.change(**wanted)
            with pytest.raises(PolicyRejected, match="withdrawn"):
                await client.configure_policy(2, PolicyConfig().as_dict())
            await answer(client, request("between"))
            assert not control.owes_engine
            assert (await control.change(**wanted)).version == 3
            await answer(client, request("after"))

    resolve_initial_policy(store, engine_start(tmp_path).settings)
    with LiveEngine(tmp_path, device) as engine:
        asyncio.run(scenario(engine))
    records = engine.records()
    assert [r.version for r in records if isinstance(r, PolicyApplied)] == [1, 2, 1, 3]
    assert {r.policy_version for r in records if isinstance(r, PlanCommitted)} == {1, 3}


def test_a_client_process_that_vanishes_has_its_requests_cancelled(tmp_path, device):
    async def open_and_vanish(engine):
        client = EngineClient(engine.start.endpoint)
        await client.start()
        await client.wait_ready()
        device.automatic = False
        stream = client.submit(request("lost", 400))
        await stream.__aenter__()
        stream.cancel = lambda reason: None  # as a killed process would not
        client._task.cancel()
        await asyncio.gather(client._task, return_exceptions=True)
        client._context.destroy(0)
        client._context = None

    async def look(engine):
        async with EngineClient(engine.start.endpoint) as client, asyncio.timeout(20):
            await client.wait_ready()
            while len(device.residents):
                await asyncio.sleep(0.01)
            device.automatic = True

    with LiveEngine(tmp_path, device) as engine:
        asyncio.run(open_and_vanish(engine))
        asyncio.run(look(engine))
    (ended,) = [r for r in engine.records() if isinstance(r, RequestFinished)]
    assert (ended.request_id, ended.finish_reason, ended.error) == ("lost", "abort", "the client went away")


@pytest.fixture
def quiet_process(monkeypatch):
    monkeypatch.setattr(process, "guard_child", lambda: None)
    monkeypatch.setattr(process, "install_stop_handler", lambda callback, deadline_s: None)


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["/nowhere/start.json"]])
def test_wrong_usage_exits_with_2_and_says_so(quiet_process, arguments, capsys):
    assert process.main(arguments) == 2
    assert "usage" in capsys.readouterr().err


def test_an_unknown_model_exits_with_2_and_is_named(quiet_process, tmp_path, capsys):
    path = tmp_path / "start.json"
    path.write_bytes(msgspec.json.encode(engine_start(tmp_path, model="no-such-model")))
    assert process.main([str(path)]) == 2
    assert "no-such-model" in capsys.readouterr().err


def test_the_catalog_digest_tells_catalogs_apart(device):
    assert catalog_digest(device.shapes) == catalog_digest(list(device.shapes))
    assert catalog_digest(device.shapes) != catalog_digest(device.shapes[1:])
    assert len(catalog_digest(device.shapes)) == 64
