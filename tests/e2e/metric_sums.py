"""What the counters and histograms of one engine run must say, by the rows that its requests and plans left in SQL."""

from __future__ import annotations

import collections
import datetime as dt
import itertools
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.helios_server import HeliosServer

ROUNDING = 2e-6
"""Of a duration, in seconds: both its ends are stored as whole microseconds."""


class Sample(NamedTuple):
    """A sample's name and its labels, sorted."""

    name: str
    labels: tuple[tuple[str, str], ...]


class Expected(NamedTuple):
    """A number, and how far from it rounding may lead."""

    value: float
    tolerance: float = 0.0


def sample(name: str, **labels: str) -> Sample:
    return Sample(name, tuple(sorted(labels.items())))


def scrape(helios: HeliosServer) -> dict[Sample, float]:
    """Everything that /metrics shows now."""
    text = helios.http.get("/metrics").text
    return {
        sample(found.name, **found.labels): found.value
        for family in text_string_to_metric_families(text)
        for found in family.samples
    }


def seconds(text: object) -> float:
    """Unix time of a stored time."""
    return dt.datetime.fromisoformat(str(text)).replace(tzinfo=dt.UTC).timestamp()


class Sums(dict[Sample, Expected]):
    """Expected samples by their names."""

    def histogram(self, name: str, values: list[float], tolerance: float = ROUNDING, **labels: str) -> None:
        """Count and sum of these observations, each of which may be off by `tolerance`."""
        self[sample(name + "_count", **labels)] = Expected(len(values))
        self[sample(name + "_sum", **labels)] = Expected(sum(values), (len(values) + 1) * tolerance)

    def counter(self, name: str, value: float, tolerance: float = 0.0, **labels: str) -> None:
        self[sample(name, **labels)] = Expected(value, tolerance)


def sums_in_sql(helios: HeliosServer, model: str) -> Sums:
    """Over everything in the store, which must be of one run at rest."""
    sums = Sums()
    requests = helios.rows("SELECT * FROM requests")
    plans = helios.rows("SELECT * FROM plans")
    lanes = helios.rows("SELECT * FROM plan_lanes ORDER BY fence, lane")
    _requests(sums, requests, lanes, helios.rows("SELECT * FROM engine_runs"))
    _gen_ai(sums, requests, lanes, helios.rows("SELECT * FROM engine_runs"), model)
    _plans(sums, plans)
    _rounds(sums, plans, lanes)
    return sums


def _published(lanes: list[dict], runs: list[dict]) -> dict[object, list[float]]:
    """When output of each request was handed over, Unix times in order."""
    (run,) = runs
    offset_ns = run["started_wall_ns"] - run["started_monotonic_ns"]
    times: dict[object, list[float]] = collections.defaultdict(list)
    for lane in lanes:
        if lane["published_ns"] is not None:
            times[lane["request_id"]].append((lane["published_ns"] + offset_ns) / 1e9)
    return times


def _requests(sums: Sums, requests: list[dict], lanes: list[dict], runs: list[dict]) -> None:
    for outcome in ("stop", "length", "abort", "error"):
        sums.counter("flare_requests_total", sum(row["finish_reason"] == outcome for row in requests), outcome=outcome)
    sums.counter("flare_prefix_cache_tokens_total", sum(row["cached_tokens"] for row in requests), result="hit")
    admitted = [row for row in requests if row["admitted_at"] is not None]
    misses = sum(row["prompt_tokens"] - row["cached_tokens"] for row in admitted)
    sums.counter("flare_prefix_cache_tokens_total", misses, result="miss")
    whole = [seconds(row["finished_at"]) - seconds(row["arrived_at"]) for row in requests]
    sums.histogram("flare_request_seconds", whole)
    started = {lane["request_id"] for lane in lanes}
    queued = [row["queue_ms"] / 1e3 for row in requests if row["request_id"] in started]
    sums.histogram("flare_queue_seconds", queued)
    published, arrived = _published(lanes, runs), {row["request_id"]: seconds(row["arrived_at"]) for row in requests}
    first = [times[0] - arrived[request] for request, times in published.items()]
    assert len(first) == sum(row["first_output_at"] is not None for row in requests)
    sums.histogram("flare_time_to_first_token_seconds", first)
    gaps = [later - earlier for times in published.values() for earlier, later in itertools.pairwise(times)]
    sums.histogram("flare_inter_token_seconds", gaps)


def _gen_ai(sums: Sums, requests: list[dict], lanes: list[dict], runs: list[dict], model: str) -> None:
    published = _published(lanes, runs)
    for operation, prefix in (("chat", "chatcmpl-"), ("text_completion", "cmpl-")):
        labels = {
            "gen_ai_operation_name": operation,
            "gen_ai_provider_name": "helios",
            "gen_ai_request_model": model,
            "gen_ai_response_model": model,
        }
        own = [row for row in requests if str(row["request_id"]).startswith(prefix)]
        for error in ("", "error"):
            whole = [
                seconds(row["finished_at"]) - seconds(row["arrived_at"])
                for row in own
                if (row["finish_reason"] == "error") == (error == "error")
            ]
            sums.histogram("gen_ai_server_request_duration_seconds", whole, error_type=error, **labels)
        good = [row for row in own if row["finish_reason"] in ("stop", "length")]
        first = [published[row["request_id"]][0] - seconds(row["arrived_at"]) for row in good]
        sums.histogram("gen_ai_server_time_to_first_token_seconds", first, **labels)
        pace = [
            (seconds(row["finished_at"]) - published[row["request_id"]][0]) / (row["output_tokens"] - 1)
            for row in good
            if row["output_tokens"] > 1
        ]
        sums.histogram("gen_ai_server_time_per_output_token_seconds", pace, **labels)


def _plans(sums: Sums, plans: list[dict]) -> None:
    done = [plan for plan in plans if plan["outcome"] in ("completed", "failed")]
    for name in ("ordinary", "discovery", "timing_refresh", "acceptance_learning", "token_budget"):
        own = [plan for plan in done if plan["reason"].replace("solo_prefill", "ordinary") == name]
        sums.counter("flare_scheduler_executions_total", len(own), **{"class": name})
        spent_ns = sum(plan["device_ms"] for plan in own) * 1e6
        sums.counter("flare_scheduler_execution_nanoseconds_total", spent_ns, 1.0, **{"class": name})
    sums.counter("flare_prompt_tokens_total", sum(plan["prompt_tokens"] for plan in done))
    sums.counter("flare_output_tokens_total", sum(plan["output_tokens"] for plan in done))
    sums.histogram("flare_scheduler_plan_seconds", [plan["plan_us"] / 1e6 for plan in plans])
    sums.histogram("flare_scheduler_margin_ratio", [plan["margin"] for plan in plans if plan["margin"] is not None])
    for kind in {plan["kind"] for plan in done}:
        own = [plan for plan in done if plan["kind"] == kind and plan["device_ms"]]
        sums.histogram("flare_graph_duration_seconds", [plan["device_ms"] / 1e3 for plan in own], kind=kind)
        errors = [
            abs(plan["device_ms"] - plan["selected_cost_ms"]) / plan["selected_cost_ms"]
            for plan in own
            if plan["selected_cost_ms"]
        ]
        sums.histogram("flare_graph_cost_error_ratio", errors, kind=kind)


def _rounds(sums: Sums, plans: list[dict], lanes: list[dict]) -> None:
    """A lane whose request went away while its graph ran has nothing offered in SQL and is no round in the counters."""
    fates = {(plan["run_id"], plan["fence"]): plan for plan in plans}
    for source in ("learned", "copy"):
        own = [
            lane
            for lane in lanes
            if lane["proposal_source"] == source and fates[lane["run_id"], lane["fence"]]["draft_depth"]
        ]
        for depth in range(1, 16):
            for column in ("offered", "accepted"):
                reached = sum(lane[f"{column}_tokens"] >= depth for lane in own)
                name = f"flare_speculative_{column}_tokens_total"
                sums.counter(name, reached, source=source, depth=str(depth))
