"""Equal streams through the real worker loop and scheduler: how long planning takes, how busy the device is."""

from __future__ import annotations

import dataclasses
import pathlib
import select
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from gpu.capacity import batch_buckets
from gpu.create import create_device
from gpu.device import Device
from gpu.selfcheck.models import billion_config, tiny_config, write_random_model
from gpu.selfcheck.outcome import CheckFailed
from scheduler.kernels.loader import load_kernels
from scheduler.plans import ScheduledPlan
from scheduler.policy import PolicyConfig
from service.engine.rehearsal import rehearse
from service.engine.start import build_worker
from service.engine.worker import Worker
from service.ipc.messages import Event, Sampling, Submit, ToEngine, Tokens
from service.journal.records import Record
from service.journal.status import LOSSES, JournalStatus
from service.settings import EngineStart, Settings
from service.telemetry.shared import MetricsWriter

_MODELS = {"tiny": tiny_config, "billion": billion_config}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_DEADLINE_S = 240.0
_CLIENT = b"selfcheck"


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """`streams` greedy requests that all arrive at once, each of so many tokens, on a random model."""

    model: str
    streams: int
    prompt_tokens: int
    output_tokens: int
    dtype: str


def serve_load(load: Load, device_name: str, folder: pathlib.Path) -> str:
    """Serve the load to its end. Raises CheckFailed when an answer is not complete."""
    path = write_random_model(folder / load.model, _MODELS[load.model](), dtype=_DTYPES[load.dtype])
    load_kernels()
    device = create_device(
        path,
        device=device_name,
        dtype=load.dtype,
        prefill_capacities=(64, 128),
        scored_capacities=(),
        decode_batches=batch_buckets(load.streams),
        request_slots=load.streams,
        max_context=load.prompt_tokens + load.output_tokens + 1,
        snapshot_rows=0,
    )
    try:
        rehearse(device.shapes)
        device.prepare(lambda _what, _share: None)
        return _serve(load, device, folder)
    finally:
        device.shut_down(abandon=False)


def _serve(load: Load, device: Device, folder: pathlib.Path) -> str:
    settings = Settings(data_dir=str(folder / "data"), database="sqlite://", threads=1)
    settings.run_dir.mkdir(parents=True)
    policy = PolicyConfig()
    start = EngineStart(
        settings=settings, run_id="selfcheck", endpoint="", policy_version=1, coefficients=policy.as_dict()
    )
    with MetricsWriter(settings.engine_metrics_path) as metrics:
        client = _Client(load)
        worker = build_worker(start, policy, load.model, device, _NoJournal(), client, metrics, time.monotonic_ns)
        measured = _drive(worker, client, device)
    if client.finished != dict.fromkeys(client.finished, "length") or len(client.finished) != load.streams:
        raise CheckFailed(f"{load.streams} streams ended as {sorted(client.finished.values())}, not all complete")
    expected = load.streams * load.output_tokens
    if client.tokens != expected:
        raise CheckFailed(f"{client.tokens} tokens came and {expected} were asked for")
    return (
        f"{len(measured.plans_us)} plan calls, longest {max(measured.plans_us):.0f} µs, median "
        f"{statistics.median(measured.plans_us):.0f} µs, "
        f"longest iteration {max(measured.steps_us) / 1e3:.1f} ms, device busy {measured.busy_share:.1%}, "
        f"{client.tokens / measured.wall_s:.0f} tokens/s"
    )


@dataclasses.dataclass(slots=True)
class _Measured:
    plans_us: list[float] = dataclasses.field(default_factory=list)
    steps_us: list[float] = dataclasses.field(default_factory=list)
    busy_share: float = 0.0
    wall_s: float = 0.0


def _drive(worker: Worker, client: _Client, device: Device) -> _Measured:
    """Step the worker until every stream has ended, sleeping as the engine's process does."""
    measured = _Measured()
    _time_plans(worker, measured.plans_us)
    began = time.perf_counter()
    busy_ns = device.busy_ns()
    while not (client.done and worker.drained):
        before = time.perf_counter()
        worker.step()
        after = time.perf_counter()
        measured.steps_us.append((after - before) * 1e6)
        if after - began > _DEADLINE_S:
            raise CheckFailed(f"{len(client.finished)} streams have ended within {_DEADLINE_S:.0f} s")
        select.select([device.completion_fd], [], [], worker.wait_ns() / 1e9)
    measured.wall_s = time.perf_counter() - began
    measured.busy_share = (device.busy_ns() - busy_ns) / 1e9 / measured.wall_s
    return measured


def _time_plans(worker: Worker, plans_us: list[float]) -> None:
    """Note how long each of the scheduler's plan calls takes."""
    plan: Callable[[], ScheduledPlan | None] = worker.core.scheduler.plan

    def timed() -> ScheduledPlan | None:
        began = time.perf_counter()
        chosen = plan()
        plans_us.append((time.perf_counter() - began) * 1e6)
        return chosen

    worker.core.scheduler.plan = timed  # type: ignore[method-assign]


class _NoJournal:
    """Keeps nothing."""

    bytes_used = 0

    def status(self) -> JournalStatus:
        return JournalStatus(dict.fromkeys(LOSSES, 0), 0, None)

    def append(self, records: Sequence[Record], last_fence: int) -> None:
        pass

    def sync_if_due(self, now_ns: int) -> None:
        pass

    def close(self) -> None:
        pass


class _Client:
    """Submits the load at once and counts what comes back. `finished`: reasons by request."""

    malformed = 0

    def __init__(self, load: Load) -> None:
        self._load = load
        self._sent = False
        self.tokens = 0
        self.finished: dict[str, str] = {}

    @property
    def done(self) -> bool:
        """Every stream has ended."""
        return len(self.finished) == self._load.streams

    def receive(self) -> list[tuple[bytes, ToEngine]]:
        if self._sent:
            return []
        self._sent = True
        return [(_CLIENT, self._submit(number)) for number in range(self._load.streams)]

    def send(self, client: bytes, events: list[Event]) -> bool:
        for event in events:
            if isinstance(event, Tokens):
                self.tokens += len(event.token_ids)
                if event.finish_reason is not None:
                    self.finished[event.request_id] = event.finish_reason
        return True

    def probe(self, client: bytes) -> bool:
        return True

    def close(self) -> None:
        pass

    def _submit(self, number: int) -> Submit:
        prompt = [(number + 7 * place) % 256 for place in range(self._load.prompt_tokens)]
        return Submit(
            request_id=f"stream-{number}",
            model=self._load.model,
            prompt_token_ids=prompt,
            max_output_tokens=self._load.output_tokens,
            sampling=Sampling(0.0),
            stop_token_ids=[],
            host_stop=False,
            arrived_ns=time.monotonic_ns(),
            tokenize_ns=0,
        )
