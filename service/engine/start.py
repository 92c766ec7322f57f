"""From EngineStart to a serving worker: what happens once, before the first request."""

from __future__ import annotations

import dataclasses
import gc
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable

from gpu.capacity import MixedSizes, catalog_summary
from gpu.create import create_device
from gpu.device import Device
from scheduler.capacity import DEFAULT_COMPLETION_TOKEN_CAPACITY
from scheduler.catalog import Catalog
from scheduler.kernels.loader import kernels_are_cached, load_kernels
from scheduler.policy import PolicyConfig
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import GraphShape
from service.engine.commands import use_policy
from service.engine.core import Core
from service.engine.decision_log import LoggedScheduler
from service.engine.metrics import EngineMetrics
from service.engine.plan_records import shape_record
from service.engine.ports import Clock, Journal, Transport
from service.engine.rehearsal import rehearse
from service.engine.simulated import simulated_device
from service.engine.worker import Worker
from service.ipc.messages import EngineReady
from service.ipc.server import EngineServer
from service.journal.catalogs import catalog_digest
from service.journal.none import NoJournal
from service.journal.records import RunStarted
from service.journal.writer import JournalWriter
from service.model_source import ModelSource, resolve_model
from service.settings import EngineStart, Settings
from service.telemetry.shared import MetricsWriter


class StopRequested(Exception):
    """SIGTERM arrived while the engine was starting."""


@dataclasses.dataclass(slots=True)
class Engine:
    """A serving engine and what has to be closed, in the order of closing."""

    worker: Worker
    server: EngineServer
    journal: Journal
    metrics: MetricsWriter
    device: Device

    def close(self, abandon: bool) -> None:
        """Close everything; with `abandon`, leave a running program behind."""
        self.server.close()
        self.journal.close()
        self.metrics.close()
        self.device.shut_down(abandon)


def start_engine(start: EngineStart, stopped: Callable[[], bool], clock: Clock = time.monotonic_ns) -> Engine:
    """Load the model, prepare its programs, open the journal and listen.

    Raises StopRequested, and the typed errors of the model, the device, the journal, the metrics file and the
    endpoint.
    """
    settings = start.settings
    policy = PolicyConfig.balanced().merged(start.coefficients)
    source = resolve_model(settings.model)
    device = load_device(settings, source, stopped)
    journal = _open_journal(start)
    metrics = MetricsWriter(settings.engine_metrics_path)
    metrics.gauge("flare_journal_budget_bytes").set(settings.journal_budget)
    server = EngineServer(start.endpoint)
    worker = build_worker(start, policy, source.name, device, journal, server, metrics, clock)
    gc.collect()
    gc.freeze()  # the model and the programs are never garbage; collections need not visit them
    return Engine(worker, server, journal, metrics, device)


def _open_journal(start: EngineStart) -> Journal:
    settings = start.settings
    if not settings.tracing:
        return NoJournal()
    return JournalWriter(
        settings.journal_dir,
        run_id=start.run_id,
        segment_bytes=settings.journal_segment_bytes,
        budget_bytes=settings.journal_budget,
        sync_ms=settings.journal_sync_ms,
    )


def load_device(settings: Settings, source: ModelSource, stopped: Callable[[], bool]) -> Device:
    """The device with every program warm, and the scheduler's kernels; says how far it is on standard error."""
    device = _create(settings, source)

    def progress(what: str, share: float) -> None:
        if stopped():
            raise StopRequested
        _say(f"{what} ({share:.0%})")

    if not kernels_are_cached():
        _say("compiling the scheduler's kernels, once for this version; it takes one to two minutes")
    load_kernels()
    rehearse(device.shapes)
    progress(f"loaded; preparing {catalog_summary(device.shapes)}", 0.0)
    device.prepare(progress)
    return device


def _create(settings: Settings, source: ModelSource) -> Device:
    """The device that the settings ask for, with its programs not run yet."""
    if settings.device == "simulated":
        _say(f"reading the tokenizer of {source.name} from {source.path}; a simulated device loads no weights")
        return simulated_device(settings, source)
    _say(f"loading {source.name} from {source.path} ({_size(source)})")
    return create_device(
        source.path,
        device=settings.device,
        dtype=settings.dtype,
        prefill_capacities=settings.prefill_capacities,
        decode_batches=settings.decode_batches,
        request_slots=settings.request_slots,
        max_context=settings.max_context,
        kv_pages=settings.kv_pages,
        threads=settings.threads,
        draft_head=None if settings.draft_head == "none" else settings.draft_head,
        draft_tokens=settings.draft_tokens,
        speculative_token_capacity=settings.speculative_token_capacity,
        allocation=settings.draft_allocation,
        mixed=settings.mixed_prefill,
        mixed_sizes=MixedSizes(
            settings.mixed_prompt_rows, settings.mixed_batch_step or 0, settings.mixed_prompt_step or 0
        ),
        snapshot_rows=settings.snapshot_rows,
    )


def build_worker(
    start: EngineStart,
    policy: PolicyConfig,
    model: str,
    device: Device,
    journal: Journal,
    transport: Transport,
    metrics: MetricsWriter,
    clock: Clock,
) -> Worker:
    """The worker over its parts, with RunStarted and the first PolicyApplied in its first journal write."""
    settings, limits = start.settings, device.limits
    scheduler = _scheduler(settings, policy, device)
    core = Core(
        scheduler=scheduler,
        device=device,
        metrics=EngineMetrics(metrics, start.run_id),
        clock=clock,
        ready=EngineReady(
            run_id=start.run_id,
            pid=os.getpid(),
            policy_version=start.policy_version,
            context_tokens=limits.context_tokens,
            kv_pages=limits.kv_pages,
            page_tokens=limits.page_tokens,
            vocab_size=limits.vocab_size,
        ),
        policy=policy,
        policy_version=start.policy_version,
        queue_limit=settings.queue_limit,
        traced=settings.tracing,
        log=scheduler if isinstance(scheduler, LoggedScheduler) else None,
    )
    core.advance()
    core.records.append(_run_started(start, model, device.shapes, time.time_ns(), core.now_ns))
    use_policy(core, start.policy_version, policy)
    core.log_checkpoint()
    core.metrics.set_up(True)
    return Worker(core, journal, transport, settings.journal_sync_ms)


def _scheduler(settings: Settings, policy: PolicyConfig, device: Device) -> RequestScheduler:
    """Over the device's programs; raises InvalidCatalog when the verification leaves none to generate with."""
    make = LoggedScheduler if settings.tracing else RequestScheduler
    return make(
        Catalog(device.shapes),
        policy,
        request_slots=device.limits.request_slots,
        checkpoint_extra_work_fraction=settings.scheduler_checkpoint_extra_work_fraction,
        verification=settings.verification,
        completion_token_capacity=max(DEFAULT_COMPLETION_TOKEN_CAPACITY, device.limits.draft_tokens + 1),
    )


def _run_started(
    start: EngineStart, model: str, shapes: tuple[GraphShape, ...], wall_ns: int, monotonic_ns: int
) -> RunStarted:
    settings = {name: getattr(start.settings, name) for name in start.settings.__struct_fields__}
    return RunStarted(
        run_id=start.run_id,
        wall_ns=wall_ns,
        monotonic_ns=monotonic_ns,
        host=platform.node(),
        version=_version(),
        model=model,
        device=start.settings.device,
        catalog_digest=catalog_digest(shapes),
        settings={
            name: ",".join(map(str, value)) if isinstance(value, tuple) else value
            for name, value in settings.items()
            if name not in ("database", "otlp_endpoint")  # they may carry a password
        },
        shapes=[shape_record(shape) for shape in shapes],
        policy_version=start.policy_version,
    )


def _version() -> str:
    try:
        return importlib.metadata.version("helios-serving")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


def _size(source: ModelSource) -> str:
    files = [source.path] if source.path.is_file() else list(source.path.glob("*.safetensors"))
    return f"{sum(file.stat().st_size for file in files) / 2**20:.0f} MiB"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
