"""Every metric of the three processes, declared once: name, type, labels, buckets, help.

The table is the layout of the engine's and the recorder's shared-memory files too, so its digest is written into them:
a reader built from another table treats such a file as absent. Every label value that can occur is listed, so each
series exists at 0 from the start and its first event is visible to rate(). No label carries a request, a user or free
text. The service's own metrics are ordinary objects in its registry (service.telemetry.service_metrics).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import get_args

from scheduler.plans import CostState, Reason
from scheduler.policy import COEFFICIENTS
from scheduler.records import FinishReason
from scheduler.shapes import GraphKind
from service.ipc.messages import Operation
from service.journal.status import CAUSES, LOSSES
from service.telemetry.series import EXEMPLAR_WORDS


class MetricType(enum.Enum):
    """COUNTER only rises; GAUGE is the state now; INFO is a gauge whose series is left out while it is 0."""

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"
    HISTOGRAM = "histogram"


class Owner(enum.Enum):
    """Which process writes the metric."""

    ENGINE = "engine"
    RECORDER = "recorder"
    SERVICE = "service"


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `labels` maps each label to all its values; `buckets` are upper bounds, rising, without +Inf.

    `served`: labels behind these whose value is the name of the model that is served, which the service adds.
    `traced`: a histogram whose buckets have exemplars. Only of the service's metrics may a label name no values: they
    come from the table of routes then, and series appear with the first request.
    """

    name: str
    type: MetricType
    help: str
    owner: Owner = Owner.ENGINE
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    buckets: tuple[float, ...] = ()
    served: tuple[str, ...] = ()
    traced: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels' names in declared order."""
        return (*(name for name, _ in self.labels), *self.served)

    def series(self) -> Iterator[tuple[str, ...]]:
        """Every combination of the values of `labels`, in declared order; one empty combination without labels."""
        return itertools.product(*(values for _, values in self.labels))

    @property
    def slots(self) -> int:
        """float64 slots of one series: 1, or one per bucket, one for +Inf and one for the sum."""
        return len(self.buckets) + 2 if self.type is MetricType.HISTOGRAM else 1

    @property
    def exemplar_words(self) -> int:
        """Words of the exemplars of one series."""
        return (len(self.buckets) + 1) * EXEMPLAR_WORDS if self.traced else 0


def _ladder(first: float, steps_per_doubling: int, last: float) -> tuple[float, ...]:
    """Geometric bucket bounds from `first` to about `last`, at three significant digits."""
    bounds = []
    step = 0
    while (bound := first * 2 ** (step / steps_per_doubling)) <= last * 1.01:
        bounds.append(float(f"{bound:.3g}"))
        step += 1
    return tuple(bounds)


# Half a doubling per bucket keeps an interpolated median within 20 % of the truth from 0.5 ms on.
LATENCY_BUCKETS = _ladder(0.0005, 2, 131.072)
GAP_BUCKETS = _ladder(0.0005, 2, 16.384)
PLAN_BUCKETS = _ladder(0.00001, 1, 1.31072)
RATIO_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
MARGIN_BUCKETS = (0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)

EXECUTION_CLASSES = (
    Reason.ORDINARY.value,
    Reason.DISCOVERY.value,
    Reason.TIMING_REFRESH.value,
    Reason.ACCEPTANCE_LEARNING.value,
    Reason.TOKEN_BUDGET.value,
)
LEDGERS = (Reason.TIMING_REFRESH.value, Reason.ACCEPTANCE_LEARNING.value)
OUTCOMES = (*(reason.value for reason in FinishReason), "refused")
PREFIX_RESULTS = ("hit", "miss")
DRAFT_SOURCES = ("learned", "copy")
MAX_DRAFT_TOKENS = 15
DRAFT_DEPTHS = tuple(str(depth) for depth in range(1, MAX_DRAFT_TOKENS + 1))
SINKS = ("sql", "otlp")
GUARD_OUTCOMES = ("held", "rolled_back")
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

# The bounds that the OpenTelemetry conventions ask for.
GEN_AI_DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
GEN_AI_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
GEN_AI_PER_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
HTTP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

_CLASS = (("class", EXECUTION_CLASSES),)
_KIND = (("kind", tuple(kind.value for kind in GraphKind)),)
_SINK = (("sink", SINKS),)
_SOURCE = (("source", DRAFT_SOURCES),)
_SOURCE_DEPTH = (*_SOURCE, ("depth", DRAFT_DEPTHS))
_GEN_AI = (("gen_ai_operation_name", OPERATIONS), ("gen_ai_provider_name", ("helios",)))
_ERROR = ("error_type", ("", "error"))
_SERVED = ("gen_ai_request_model", "gen_ai_response_model")
_HTTP = (("http_route", ()), ("http_request_method", ()), ("http_response_status_code", ()))
_NUMERIC = tuple(c.name for c in COEFFICIENTS if not c.choices)
TEXTUAL = tuple((c.name, c.choices) for c in COEFFICIENTS if c.choices)
"""The coefficients that are names, each with its choices: the labels of flare_scheduler_policy_info."""


def _counter(name: str, text: str, **more: object) -> Metric:
    return Metric(name, MetricType.COUNTER, text, **more)  # type: ignore[arg-type]


def _gauge(name: str, text: str, **more: object) -> Metric:
    return Metric(name, MetricType.GAUGE, text, **more)  # type: ignore[arg-type]


def _histogram(name: str, text: str, buckets: tuple[float, ...], **more: object) -> Metric:
    return Metric(name, MetricType.HISTOGRAM, text, buckets=buckets, **more)  # type: ignore[arg-type]


METRICS: tuple[Metric, ...] = (
    _gauge("flare_engine_up", "1 while an engine serves, else 0."),
    _counter(
        "flare_scheduler_execution_nanoseconds_total",
        "Device time of executed graphs by why they were submitted; solo_prefill counts as ordinary, token_budget by "
        "itself.",
        labels=_CLASS,
    ),
    _counter("flare_scheduler_executions_total", "Executed graphs by why they were submitted.", labels=_CLASS),
    _gauge(
        "flare_scheduler_credit_milliseconds",
        "Credit of each exploration ledger at the newest plan.",
        labels=(("ledger", LEDGERS),),
    ),
    _histogram("flare_scheduler_plan_seconds", "Time to make one decision.", PLAN_BUCKETS, traced=True),
    _gauge("flare_scheduler_policy_version", "Policy version that the next plan uses."),
    _gauge(
        "flare_scheduler_policy",
        "Numeric policy coefficients that the next plan uses.",
        labels=(("coefficient", _NUMERIC),),
    ),
    Metric(
        "flare_scheduler_policy_info",
        MetricType.INFO,
        "1 for the textual policy coefficients that the next plan uses.",
        labels=TEXTUAL,
    ),
    _histogram(
        "flare_scheduler_margin_ratio",
        "(score - runner-up's score) / |score| of plans that had a comparable runner-up.",
        MARGIN_BUCKETS,
        traced=True,
    ),
    _histogram(
        "flare_graph_cost_error_ratio",
        "|observed - estimated| / estimated device time of graphs that had an estimate.",
        RATIO_BUCKETS,
        labels=_KIND,
        traced=True,
    ),
    _histogram(
        "flare_graph_duration_seconds", "Device time of executed graphs.", GAP_BUCKETS, labels=_KIND, traced=True
    ),
    _gauge(
        "flare_graph_estimates",
        "Prepared graphs by what is known about their duration.",
        labels=(("state", tuple(state.value for state in CostState)),),
    ),
    _gauge("flare_requests_running", "Requests that at least one graph has served."),
    _gauge("flare_requests_waiting", "Requests that no graph has served yet."),
    _gauge("flare_oldest_wait_seconds", "Age of the oldest request that no graph has served yet; 0 if none."),
    _counter(
        "flare_requests_total",
        "Requests by how they ended; refused ones never entered the queue.",
        labels=(("outcome", OUTCOMES),),
    ),
    _counter("flare_prompt_tokens_total", "Prompt tokens computed, counted as each graph completes."),
    _counter("flare_output_tokens_total", "Output tokens committed, stop tokens included, as each graph completes."),
    _gauge("flare_kv_pages_used", "KV pages that requests hold."),
    _gauge("flare_kv_pages_total", "KV pages in the pool."),
    _counter(
        "flare_prefix_cache_tokens_total",
        "Prompt tokens of admitted requests by whether the prefix cache had them.",
        labels=(("result", PREFIX_RESULTS),),
    ),
    _counter(
        "flare_speculative_rounds_total", "Lanes of graphs that had drafts, by where these came from.", labels=_SOURCE
    ),
    _counter(
        "flare_speculative_draft_tokens_total", "Drafts produced, by their place in the round.", labels=_SOURCE_DEPTH
    ),
    _counter(
        "flare_speculative_offered_tokens_total", "Drafts verified, by their place in the round.", labels=_SOURCE_DEPTH
    ),
    _counter(
        "flare_speculative_accepted_tokens_total",
        "Drafts that became output, by their place in the round.",
        labels=_SOURCE_DEPTH,
    ),
    _counter(
        "flare_speculative_target_rows_total",
        "Rows that verified drafts, the row of the pending token included.",
        labels=_SOURCE,
    ),
    _histogram(
        "flare_speculative_accepted_length",
        "Drafts that became output in one round of one request.",
        tuple(float(depth) for depth in range(MAX_DRAFT_TOKENS + 1)),
        labels=_SOURCE,
    ),
    _histogram(
        "flare_time_to_first_token_seconds",
        "HTTP arrival to publication of the first output.",
        LATENCY_BUCKETS,
        traced=True,
    ),
    _histogram("flare_inter_token_seconds", "Time between two publications of one request.", GAP_BUCKETS, traced=True),
    _histogram(
        "flare_request_seconds",
        "HTTP arrival to the end of each request that was not refused.",
        LATENCY_BUCKETS,
        traced=True,
    ),
    _histogram(
        "flare_queue_seconds",
        "HTTP arrival, less tokenizing, to the commit of the first graph.",
        LATENCY_BUCKETS,
        traced=True,
    ),
    _histogram(
        "gen_ai_server_request_duration_seconds",
        "HTTP arrival to the end of each request that was not refused, as the GenAI conventions define it.",
        GEN_AI_DURATION_BUCKETS,
        labels=(*_GEN_AI, _ERROR),
        served=_SERVED,
        traced=True,
    ),
    _histogram(
        "gen_ai_server_time_to_first_token_seconds",
        "HTTP arrival to publication of the first output, of requests that ended with stop or length.",
        GEN_AI_FIRST_TOKEN_BUCKETS,
        labels=_GEN_AI,
        served=_SERVED,
        traced=True,
    ),
    _histogram(
        "gen_ai_server_time_per_output_token_seconds",
        "First publication to the end, over the output tokens behind the first, of requests that ended with stop or "
        "length and have such tokens.",
        GEN_AI_PER_TOKEN_BUCKETS,
        labels=_GEN_AI,
        served=_SERVED,
        traced=True,
    ),
    _gauge("flare_device_busy_ratio", "Share of about the last ten seconds in which a program ran."),
    _gauge("flare_journal_bytes", "Bytes of the journal's files on disk."),
    _gauge("flare_journal_budget_bytes", "Bytes that the journal's files may take: --journal-budget."),
    _counter(
        "flare_journal_lost_records_total",
        "Records that will never be delivered because the journal could not keep them.",
        labels=(("cause", LOSSES),),
    ),
    _counter("flare_journal_sync_failures_total", "Failed syncs of the journal to disk."),
    _gauge(
        "flare_journal_trouble",
        "1 while the journal loses records, or cannot be synced, for this cause.",
        labels=(("cause", CAUSES),),
    ),
    _counter("flare_ipc_malformed_messages_total", "Messages to the engine that could not be decoded."),
    _counter(
        "flare_trace_records_total", "Journal records delivered to each sink.", owner=Owner.RECORDER, labels=_SINK
    ),
    _gauge("flare_trace_lag_seconds", "Age of the oldest undelivered record.", owner=Owner.RECORDER, labels=_SINK),
    _counter("flare_trace_lost_records_total", "Journal records that can never reach the store.", owner=Owner.RECORDER),
    _counter("flare_trace_lost_spans_total", "Spans that can never reach the OTLP collector.", owner=Owner.RECORDER),
    _gauge("flare_store_wal_bytes", "Size of the SQLite write-ahead log; 0 elsewhere.", owner=Owner.RECORDER),
    _histogram(
        "http_server_request_duration_seconds",
        "Time from a request's head to the last byte of its answer, by route template, method and status.",
        HTTP_BUCKETS,
        owner=Owner.SERVICE,
        labels=_HTTP,
    ),
    _counter(
        "flare_policy_guards_total",
        "Guarded policy changes by how they were decided.",
        owner=Owner.SERVICE,
        labels=(("outcome", GUARD_OUTCOMES),),
    ),
)
METRIC_BY_NAME = {metric.name: metric for metric in METRICS}
STORED = tuple(metric for metric in METRICS if metric.owner is not Owner.SERVICE)
"""The metrics in shared-memory files, in the order of their slots."""


def slot_offsets() -> dict[tuple[str, tuple[str, ...]], int]:
    """The first slot of every stored series, by metric name and label values."""
    return _offsets(lambda metric: metric.slots)


def exemplar_offsets() -> dict[tuple[str, tuple[str, ...]], int]:
    """The first word of the exemplars of every stored series; of those without any, where they would be."""
    return _offsets(lambda metric: metric.exemplar_words)


def _offsets(size: Callable[[Metric], int]) -> dict[tuple[str, tuple[str, ...]], int]:
    offsets = {}
    position = 0
    for metric in STORED:
        for values in metric.series():
            offsets[metric.name, values] = position
            position += size(metric)
    return offsets


SLOT_COUNT = sum(metric.slots for metric in STORED for _ in metric.series())
EXEMPLAR_WORD_COUNT = sum(metric.exemplar_words for metric in STORED for _ in metric.series())


@functools.cache
def table_digest() -> bytes:
    """32 bytes that identify the layout: names, types, labels, buckets and who has exemplars, in order."""
    layout = [(m.name, m.type.value, m.owner.value, m.labels, m.buckets, m.traced) for m in STORED]
    return hashlib.sha256(json.dumps(layout).encode()).digest()
