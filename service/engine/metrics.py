"""The engine's series, looked up once. Every update is a store into shared memory."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Iterable

from gpu.device import Device
from scheduler.plans import CostState, Reason, ScheduledPlan
from scheduler.policy import COEFFICIENTS, PolicyConfig
from scheduler.records import FinishReason
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import GraphKind
from service.engine.request_metrics import RequestMetrics
from service.engine.requests import EngineRequest, RequestTable
from service.engine.round_metrics import RoundMetrics
from service.journal.records import LaneOutcome
from service.journal.status import CAUSES, LOSSES, JournalStatus
from service.telemetry.metric_table import EXECUTION_CLASSES, OUTCOMES, PREFIX_RESULTS, TEXTUAL
from service.telemetry.series import TracedHistogram
from service.telemetry.shared import MetricsWriter
from service.telemetry.span_ids import plan_ids

BUSY_WINDOW_NS = 10_000_000_000


class EngineMetrics:
    """Counters and histograms move with each plan and publication; gauges with refresh(). Times are ns."""

    def __init__(self, writer: MetricsWriter, run_id: str) -> None:
        self._writer, self._run_id = writer, run_id
        self.per_request = RequestMetrics(writer, run_id)
        self._up = writer.gauge("flare_engine_up")
        self._execution_ns = {
            c: writer.counter("flare_scheduler_execution_nanoseconds_total", c) for c in EXECUTION_CLASSES
        }
        self._executions = {c: writer.counter("flare_scheduler_executions_total", c) for c in EXECUTION_CLASSES}
        self._timing_credit = writer.gauge("flare_scheduler_credit_milliseconds", "timing_refresh")
        self._acceptance_credit = writer.gauge("flare_scheduler_credit_milliseconds", "acceptance_learning")
        self._plan_seconds = writer.traced_histogram("flare_scheduler_plan_seconds")
        self._margin = writer.traced_histogram("flare_scheduler_margin_ratio")
        self._cost_error = {k: writer.traced_histogram("flare_graph_cost_error_ratio", k.value) for k in GraphKind}
        self._duration = {k: writer.traced_histogram("flare_graph_duration_seconds", k.value) for k in GraphKind}
        self._estimates = {s: writer.gauge("flare_graph_estimates", s.value) for s in CostState}
        self._running = writer.gauge("flare_requests_running")
        self._waiting = writer.gauge("flare_requests_waiting")
        self._oldest_wait = writer.gauge("flare_oldest_wait_seconds")
        self._requests = {o: writer.counter("flare_requests_total", o) for o in OUTCOMES}
        self._prompt_tokens = writer.counter("flare_prompt_tokens_total")
        self._output_tokens = writer.counter("flare_output_tokens_total")
        self._pages_used = writer.gauge("flare_kv_pages_used")
        self._pages_total = writer.gauge("flare_kv_pages_total")
        self._prefix = {r: writer.counter("flare_prefix_cache_tokens_total", r) for r in PREFIX_RESULTS}
        self._rounds = RoundMetrics(writer)
        self._busy_ratio = writer.gauge("flare_device_busy_ratio")
        self._journal_bytes = writer.gauge("flare_journal_bytes")
        self._journal_lost = {c: writer.counter("flare_journal_lost_records_total", c) for c in LOSSES}
        self._sync_failures = writer.counter("flare_journal_sync_failures_total")
        self._trouble = {c: writer.gauge("flare_journal_trouble", c) for c in CAUSES}
        self._journal_seen = JournalStatus(dict.fromkeys(LOSSES, 0), 0, None)
        self._malformed = writer.counter("flare_ipc_malformed_messages_total")
        self._malformed_seen = 0
        self._counts = 0, 0
        self._busy: collections.deque[tuple[int, int]] = collections.deque()

    def set_up(self, up: bool) -> None:
        """Whether the engine serves."""
        self._up.set(float(up))

    def policy(self, version: int, policy: PolicyConfig) -> None:
        """The next plan uses this policy."""
        self._writer.gauge("flare_scheduler_policy_version").set(version)
        for coefficient in COEFFICIENTS:
            if not coefficient.choices:
                value = float(getattr(policy, coefficient.name))
                self._writer.gauge("flare_scheduler_policy", coefficient.name).set(value)
        used = tuple(getattr(policy, name) for name, _ in TEXTUAL)
        for names in itertools.product(*(choices for _, choices in TEXTUAL)):
            self._writer.gauge("flare_scheduler_policy_info", *names).set(float(names == used))

    def planned(self, plan: ScheduledPlan, fence: int, plan_ns: int, now_ns: int) -> None:
        """A plan was committed; it took plan_ns to make."""
        self._observe(self._plan_seconds, plan_ns / 1e9, fence, now_ns)
        if plan.margin is not None:
            self._observe(self._margin, plan.margin, fence, now_ns)
        self._timing_credit.set(plan.ledgers.timing_credit_ms)
        self._acceptance_credit.set(plan.ledgers.acceptance_credit_ms)

    def executed(
        self, plan: ScheduledPlan, fence: int, device_ns: int, prompt_tokens: int, output_tokens: int, now_ns: int
    ) -> None:
        """A graph completed; device_ns is 0 when it failed."""
        reason = Reason.ORDINARY if plan.reason is Reason.SOLO_PREFILL else plan.reason
        self._executions[reason.value].inc()
        self._execution_ns[reason.value].inc(device_ns)
        self._prompt_tokens.inc(prompt_tokens)
        self._output_tokens.inc(output_tokens)
        if device_ns:
            self._observe(self._duration[plan.shape.kind], device_ns / 1e9, fence, now_ns)
            if plan.selected_cost_ns:
                error = abs(device_ns - plan.selected_cost_ns) / plan.selected_cost_ns
                self._observe(self._cost_error[plan.shape.kind], error, fence, now_ns)

    def rounds(self, outcomes: Iterable[tuple[str, LaneOutcome]]) -> None:
        """Lanes of a completed graph that had drafts, with the drafts' source."""
        self._rounds.add(outcomes)

    def prefix(self, hit_tokens: int, miss_tokens: int) -> None:
        """A request was admitted with `hit_tokens` of its prompt in the prefix cache."""
        self._prefix["hit"].inc(hit_tokens)
        self._prefix["miss"].inc(miss_tokens)

    def ended(self, request: EngineRequest, reason: FinishReason, now_ns: int) -> None:
        """A request reached its terminal state."""
        self._requests[reason.value].inc()
        self.per_request.ended(request, reason, now_ns)

    def refused(self) -> None:
        """A request was not taken."""
        self._requests["refused"].inc()

    def requests(self, table: RequestTable, now_ns: int) -> None:
        """How many run and wait now."""
        counts = table.running, table.waiting
        if counts == self._counts and not table.waiting:
            return
        self._counts = counts
        first = table.longest_waiting
        self._running.set(counts[0])
        self._waiting.set(counts[1])
        self._oldest_wait.set(0.0 if first is None else max(0, now_ns - first.arrived_ns) / 1e9)

    def refresh(
        self, now_ns: int, device: Device, scheduler: RequestScheduler, journal_bytes: int, malformed: int
    ) -> None:
        """The gauges that need a look around, and the heartbeat; a few times a second."""
        self._writer.heartbeat(now_ns)
        self._pages_total.set(device.limits.kv_pages)
        self._pages_used.set(device.used_pages())
        self._journal_bytes.set(journal_bytes)
        self._malformed.inc(malformed - self._malformed_seen)
        self._malformed_seen = malformed
        states = collections.Counter(
            scheduler.catalog.estimate(shape, now_ns).state for shape in scheduler.catalog.shapes
        )
        for state, gauge in self._estimates.items():
            gauge.set(states[state])
        self._refresh_busy(now_ns, device.busy_ns())

    def journal(self, status: JournalStatus, trouble: Collection[str]) -> None:
        """What the journal lost so far, and the causes that act now."""
        before, self._journal_seen = self._journal_seen, status
        for cause, counter in self._journal_lost.items():
            counter.inc(status.lost[cause] - before.lost[cause])
        self._sync_failures.inc(status.sync_failures - before.sync_failures)
        for cause, gauge in self._trouble.items():
            gauge.set(float(cause in trouble))

    def _observe(self, histogram: TracedHistogram, value: float, fence: int, now_ns: int) -> None:
        """An observation of the plan at `fence`, whose span is a trace by itself."""
        bucket = histogram.observe(value, now_ns)
        if bucket is not None:
            histogram.keep(bucket, value, now_ns, plan_ids(self._run_id, fence).trace_id)

    def _refresh_busy(self, now_ns: int, busy_ns: int) -> None:
        window = self._busy
        window.append((now_ns, busy_ns))
        while len(window) > 2 and now_ns - window[1][0] >= BUSY_WINDOW_NS:
            window.popleft()
        elapsed = now_ns - window[0][0]
        # A graph counts when it completes, so a long one can exceed the window's part of it.
        self._busy_ratio.set(min(1.0, (busy_ns - window[0][1]) / elapsed) if elapsed > 0 else 0.0)
