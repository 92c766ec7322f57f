"""A deterministic engine: a manual clock, a scripted device, a journal and a connection that share one event list."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scheduler.policy import PolicyConfig
from service.engine.start import build_worker
from service.ipc.messages import Cancel, Refused, Sampling, Submit, Tokens
from service.journal.packed import decode_records
from service.journal.records import PlanCommitted, PlanCompleted, RequestArrived, RequestFinished, encoder
from service.journal.status import LOSSES, JournalStatus
from service.settings import EngineStart, Settings
from service.telemetry.render import render
from service.telemetry.shared import MetricsWriter
from tests.engine.fake_device import STOP, Clock, FakeDevice


class FakeJournal:
    """Keeps every record, as the recorder would decode it, and each write in the shared event list."""

    bytes_used = 0

    def __init__(self, events: list) -> None:
        self.events = events
        self.records: list = []
        self.writes: list[tuple[list, int]] = []
        self.fail: Exception | None = None
        self.closed = False
        self.lost = dict.fromkeys(LOSSES, 0)
        self.sync_failures = 0
        self.stuck: str | None = None

    def status(self) -> JournalStatus:
        return JournalStatus(dict(self.lost), self.sync_failures, self.stuck)

    def append(self, records: Sequence, last_fence: int) -> None:
        if self.fail is not None:
            raise self.fail
        decoded = decode_records(encoder.encode(list(records)))
        self.records += decoded
        self.writes.append((decoded, last_fence))
        self.events.append(("write", decoded))

    def sync_if_due(self, now_ns: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def of(self, kind: type) -> list:
        return [record for record in self.records if isinstance(record, kind)]

    def holds_commit(self, fence: int) -> bool:
        return any(record.fence == fence for record in self.of(PlanCommitted))


class FakeTransport:
    """`inbox`: what clients sent. `sent` and the event list: what they got. `gone` clients take nothing."""

    def __init__(self, events: list) -> None:
        self.events = events
        self.inbox: list[tuple[bytes, object]] = []
        self.sent: list[tuple[bytes, object]] = []
        self.gone: set[bytes] = set()
        self.malformed = 0

    def receive(self):
        inbox, self.inbox = self.inbox, []
        return inbox

    def send(self, client, events) -> bool:
        if client in self.gone:
            return False
        self.events.append(("send", list(events)))
        self.sent += [(client, event) for event in events]
        return True

    def probe(self, client) -> bool:
        return client not in self.gone

    def close(self) -> None:
        pass


class Rig:
    """One engine with everything around it under the test's hand."""

    def __init__(self, tmp_path, **device) -> None:
        settings = Settings(
            data_dir=str(tmp_path),
            database="sqlite://",
            threads=1,
            queue_limit=device.pop("queue_limit", 32),
            verification=device.pop("verification", "adaptive"),
            scheduler_checkpoint_extra_work_fraction=device.pop("fraction", 0.05),
        )
        policy = device.pop("policy", PolicyConfig())
        self.events: list[tuple[str, list]] = []
        self.clock, self.device = self.make_device(**device)
        self.journal = self.device.journal = FakeJournal(self.events)
        self.transport = FakeTransport(self.events)
        self.metrics_path = settings.engine_metrics_path
        self.writer = MetricsWriter(self.metrics_path)
        start = EngineStart(
            settings=settings,
            run_id="run-1",
            endpoint="inproc://none",
            policy_version=1,
            coefficients=policy.as_dict(),
        )
        self.worker = build_worker(
            start, policy, "m", self.device, self.journal, self.transport, self.writer, self.clock
        )
        self.core = self.worker.core

    def make_device(self, **device):
        """The clock and the device under it."""
        clock = Clock()
        return clock, FakeDevice(clock, **device)

    def submit(self, request_id: str, prompt: int = 4, output: int = 4, client: bytes = b"A", **more) -> None:
        """A request whose prompt is `prompt` tokens long and begins with `first` (default 10)."""
        token_ids = [more.pop("first", 10)] + [11] * (prompt - 1)
        message = Submit(
            request_id,
            "m",
            more.pop("token_ids", token_ids),
            output,
            more.pop("sampling", Sampling(0.0)),
            more.pop("stop", [STOP]),
            more.pop("host_stop", False),
            more.pop("arrived_ns", self.clock()),
            more.pop("tokenize_ns", 0),
            more.pop("traceparent", None),
            more.pop("boundaries", []),
            more.pop("logprobs", None),
            more.pop("prompt_logprobs", None),
            **more,
        )
        self.transport.inbox.append((client, message))

    def cancel(
        self, request_id: str, reason: str = "abort", client: bytes = b"A", answer_tokens: int | None = None
    ) -> None:
        self.transport.inbox.append((client, Cancel(request_id, reason, answer_tokens)))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.worker.step()
            self.check()

    def settle(self, limit: int = 2000) -> None:
        """Step until nothing runs, waits or is pending."""
        for _ in range(limit):
            self.step()
            if self.worker.drained and not len(self.core.table) and not self.transport.inbox:
                return
        raise AssertionError("the engine does not come to rest")

    def check(self) -> None:
        """What must hold after every iteration."""
        assert self.device.free_pages() >= 0
        open_slots = {r.handle.slot for r in self.core.table if r.handle is not None}
        open_slots |= {handle.slot for handle in self.core.leaving}
        assert set(self.device.residents) == open_slots
        assert self.core.scheduler.resident_count >= len(open_slots)

    def tokens(self, request_id: str) -> list[Tokens]:
        return [e for _, e in self.transport.sent if isinstance(e, Tokens) and e.request_id == request_id]

    def text(self, request_id: str) -> list[int]:
        return [token for message in self.tokens(request_id) for token in message.token_ids]

    def ending(self, request_id: str) -> RequestFinished:
        """The one terminal state of a request, which journal and client agree on."""
        (finished,) = [r for r in self.journal.of(RequestFinished) if r.request_id == request_id]
        told = [m for m in self.tokens(request_id) if m.finish_reason is not None]
        if told:
            assert [m.finish_reason for m in told] == [finished.finish_reason]
            assert self.tokens(request_id)[-1] is told[0]
            assert told[0].output_tokens == finished.output_tokens
        return finished

    def ending_of(self, request_id: str) -> RequestFinished | None:
        """The terminal state, if it is written already."""
        return next((r for r in self.journal.of(RequestFinished) if r.request_id == request_id), None)

    def refusal(self, request_id: str) -> Refused:
        (refused,) = [e for _, e in self.transport.sent if isinstance(e, Refused) and e.request_id == request_id]
        return refused

    def arrived(self, request_id: str) -> RequestArrived:
        (arrived,) = [r for r in self.journal.of(RequestArrived) if r.request_id == request_id]
        return arrived

    def plans(self) -> list[PlanCommitted]:
        return self.journal.of(PlanCommitted)

    def completions(self) -> list[PlanCompleted]:
        return self.journal.of(PlanCompleted)

    def metric(self, name: str, **labels: str) -> float:
        """A sample of the exposition that the service would render now."""
        self.core.metrics.refresh(self.clock(), self.device, self.core.scheduler, 0, self.transport.malformed)
        text = render(self.metrics_path, self.metrics_path.with_name("none"), clock=self.clock).decode()
        inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        sample = f"{name}{{{inner}}} " if labels else f"{name} "
        (line,) = [line for line in text.splitlines() if line.startswith(sample)]
        return float(line.rpartition(" ")[2])


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


@pytest.fixture
def make_rig(tmp_path):
    made = []

    def make(**device) -> Rig:
        made.append(None)
        return Rig(tmp_path / str(len(made)), **device)

    return make


@pytest.fixture(scope="session")
def rig_class():
    return Rig


@pytest.fixture(scope="session")
def device_class():
    return FakeDevice
