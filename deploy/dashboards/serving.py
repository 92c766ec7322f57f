"""Serving: what clients feel, how much is served, what waits, and what the caches give."""

from __future__ import annotations

import math

from grafana_foundation_sdk.builders import dashboard, timeseries

from deploy.dashboards import promql
from deploy.dashboards.board import Panel, board, instances
from deploy.dashboards.panels import AMBER, GREEN, RED, Steps, heat, number, timeline
from deploy.dashboards.targets import Target, ask, ask_buckets, ask_now


def latency(title: str, description: str, histogram: str, *, limits: Steps | None = None) -> timeseries.Panel:
    """A histogram of seconds: three quantiles and the mean, with exemplars that lead to traces."""
    targets: list[Target] = [
        ask(promql.quantile(q, histogram), f"p{100 * q:g}", exemplars=True) for q in (0.5, 0.95, 0.99)
    ]
    targets.append(ask(promql.mean(histogram), "mean"))
    return timeline(title, description, "s", *targets, limits=limits)


def serving() -> dashboard.Dashboard:
    """The dashboard."""
    rows = {
        "Now": [*now(), *shares()],
        "Latency": latencies(),
        "Throughput": throughput(),
        "Queue and cache": queue_and_cache(),
    }
    about = "What clients of the server feel: latency, throughput, queue and cache."
    return board("helios-serving", "Serving", about, rows, [instances()])


def now() -> list[Panel]:
    """One number each."""
    return [
        number(
            "Engine",
            "Whether an engine serves. Down for longer than a restart takes: read the server's log and /health/ready.",
            "none",
            ask_now(f"min({promql.gauge('flare_engine_up')})"),
            words={0: "down", 1: "up"},
            limits={-math.inf: RED, 1: GREEN},
        ),
        number(
            "Running",
            "Requests that at least one graph has served.",
            "none",
            ask(promql.added(promql.gauge("flare_requests_running"))),
        ),
        number(
            "Waiting",
            "Requests that no graph has served yet. Rising for minutes: more arrives than the device can serve.",
            "none",
            ask(promql.added(promql.gauge("flare_requests_waiting"))),
            limits={1: AMBER},
        ),
        number(
            "Oldest wait",
            "Age of the oldest request that no graph has served. Beyond 30 s an alert fires: see Queue and cache.",
            "s",
            ask(f"max({promql.gauge('flare_oldest_wait_seconds')})"),
            limits={5: AMBER, 30: RED},
        ),
        number(
            "Output",
            "Output tokens per second of all servers that are chosen above.",
            "short",
            ask(promql.rate("flare_output_tokens_total")),
            decimals=1,
        ),
    ]


def shares() -> list[Panel]:
    """One share each."""
    failed = promql.rate("flare_requests_total", 'outcome=~"error|refused"')
    return [
        number(
            "Device busy",
            "Share of about the last ten seconds in which a program ran, of the least busy server. Low while requests "
            "wait: the host is the limit; see Decisions for the time that planning takes.",
            "percentunit",
            ask(f"min({promql.gauge('flare_device_busy_ratio')})"),
            decimals=0,
        ),
        number(
            "KV pages held",
            "Share of the pool's pages that requests hold. Near 100 %: requests are preempted; --kv-pages gives more.",
            "percentunit",
            ask(
                promql.ratio(
                    promql.added(promql.gauge("flare_kv_pages_used")),
                    promql.added(promql.gauge("flare_kv_pages_total")),
                )
            ),
            limits={0.9: AMBER, 0.98: RED},
            decimals=0,
        ),
        number(
            "Failed",
            "Share of the requests that ended as errors or were refused. Errors are in requests.error; refusals mean "
            "that the queue is full.",
            "percentunit",
            ask(promql.ratio(failed, promql.rate("flare_requests_total"))),
            limits={0.01: AMBER, 0.05: RED},
            decimals=1,
        ),
    ]


def latencies() -> list[Panel]:
    """What clients wait for."""
    return [
        latency(
            "Time to first token",
            "HTTP arrival to the first output. High while the queue is empty: prompts are long or prefill starves; a "
            "dot is a request, and leads to its trace.",
            "flare_time_to_first_token_seconds",
            limits={5: AMBER},
        ),
        latency(
            "Time between outputs",
            "Between two publications of one request. A high p99 beside a low median: long prefills stand between "
            "decodes; raise decode_age_price. An alert fires where p99 stays above 0.5 s.",
            "flare_inter_token_seconds",
            limits={0.5: RED},
        ),
        latency(
            "Whole request",
            "HTTP arrival to the end. Follows the lengths of answers; compare it with itself.",
            "flare_request_seconds",
        ),
        latency(
            "Time in the queue",
            "HTTP arrival, less tokenizing, to the first graph's commit. High: more slots (--request-slots), or a "
            "second server.",
            "flare_queue_seconds",
            limits={5: AMBER},
        ),
        heat(
            "Times between outputs",
            "How many gaps had which length. Two bands: some streams are served beside prefills and some are not.",
            "s",
            ask_buckets(promql.buckets("flare_inter_token_seconds")),
            width=24,
        ),
    ]


def throughput() -> list[Panel]:
    """What is served."""
    return [
        timeline(
            "Tokens per second",
            "Prompt tokens computed and output tokens committed. Output falls when prompt rises: prefill and decode "
            "share the device.",
            "short",
            ask(promql.rate("flare_output_tokens_total"), "output"),
            ask(promql.rate("flare_prompt_tokens_total"), "prompt"),
        ),
        timeline(
            "Requests ended per second",
            "By how they ended. Aborts are clients that went away; refused ones found the queue full.",
            "short",
            ask(promql.rate("flare_requests_total", by=("outcome",)), "{{outcome}}"),
            stacked=True,
        ),
        timeline(
            "HTTP answers per second",
            "By status. 503: no engine, or the queue is full. 4xx: clients ask for what is not served; the answers say "
            "why.",
            "short",
            ask(
                promql.rate("http_server_request_duration_seconds_count", by=("http_response_status_code",)),
                "{{http_response_status_code}}",
            ),
            stacked=True,
        ),
        timeline(
            "Time of HTTP answers",
            "Mean from a request's head to the last byte of its answer, by route; that of a stream lasts as long as it "
            "does.",
            "s",
            ask(promql.mean("http_server_request_duration_seconds", by=("http_route",)), "{{http_route}}"),
        ),
        timeline(
            "Graphs per second",
            "Executed graphs by kind. Many small prefill graphs: prompts arrive in small pieces.",
            "short",
            ask(promql.rate("flare_graph_duration_seconds_count", by=("kind",)) + " > 0", "{{kind}}"),
            stacked=True,
        ),
        timeline(
            "Device time per graph",
            "Mean device time by kind. A step that stays: the machine changed; see Decisions for what was predicted.",
            "s",
            ask(promql.mean("flare_graph_duration_seconds", by=("kind",)), "{{kind}}"),
        ),
    ]


def queue_and_cache() -> list[Panel]:
    """What waits, and what need not be computed."""
    hit = promql.rate("flare_prefix_cache_tokens_total", 'result="hit"')
    return [
        timeline(
            "Requests",
            "Running and waiting. Waiting above 0 with a busy device: the server is full; shed load or add a server.",
            "short",
            ask(promql.added(promql.gauge("flare_requests_running")), "running"),
            ask(promql.added(promql.gauge("flare_requests_waiting")), "waiting"),
        ),
        timeline(
            "Device busy by server",
            "Share of about the last ten seconds in which a program ran. An alert fires where it stays below one half "
            "while requests wait.",
            "percentunit",
            ask(promql.gauge("flare_device_busy_ratio"), "{{instance}}"),
            limits={0.5: GREEN},
            largest=1,
        ),
        timeline(
            "Prompt tokens from the prefix cache",
            "Share of admitted prompt tokens that need not be computed. Low where prompts begin alike: raise "
            "--snapshot-rows.",
            "percentunit",
            ask(promql.ratio(hit, promql.rate("flare_prefix_cache_tokens_total")), "from the cache"),
            largest=1,
        ),
        timeline(
            "KV pages",
            "Pages that requests hold, and the pool. Held at the pool's size: requests are preempted; --kv-pages.",
            "short",
            ask(promql.added(promql.gauge("flare_kv_pages_used")), "held"),
            ask(promql.added(promql.gauge("flare_kv_pages_total")), "pool"),
        ),
    ]
