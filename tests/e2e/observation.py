"""What a stretch of serving did, in the server's counters and in SQL, checked against what the clients received."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
import statistics
from collections.abc import Iterator

from waiting import wait_until

from tests.e2e.byte_server import Answer
from tests.e2e.helios_server import HeliosServer

_SAMPLE = re.compile(r"(flare_\w+)(?:\{(.*)\})? (\S+)")
_COUNTED = re.compile(r"(_total|_count|_sum)$")
_REST_SECONDS = 30.0

Row = dict[str, object]


@dataclasses.dataclass(frozen=True, slots=True)
class Counters:
    """Counters, counts and sums of histograms, and how many requests run and wait; by (name, labels as written)."""

    values: dict[tuple[str, str], float]

    @classmethod
    def of(cls, helios: HeliosServer) -> Counters:
        """What /metrics shows now."""
        found = {}
        for line in helios.http.get("/metrics").text.splitlines():
            sample = _SAMPLE.fullmatch(line)
            if sample and (_COUNTED.search(sample[1]) or sample[1].startswith("flare_requests_")):
                found[sample[1], sample[2] or ""] = float(sample[3])
        return cls(found)

    def since(self, before: Counters) -> Counters:
        """How far each has moved."""
        return Counters({key: value - before.values.get(key, 0.0) for key, value in self.values.items()})

    def total(self, name: str, *labels: str) -> float:
        """The sum over the series of `name` whose labels contain each of `labels`, such as source="copy"."""
        assert any(known == name for known, _ in self.values), f"no counter {name}"
        return sum(v for (n, text), v in self.values.items() if n == name and all(part in text for part in labels))


@dataclasses.dataclass(slots=True)
class Observation:
    """Answers are noted while serving; the rest is there once the server is at rest again."""

    title: str
    answers: list[Answer] = dataclasses.field(default_factory=list)
    counters: Counters = dataclasses.field(default_factory=lambda: Counters({}))
    requests: dict[str, Row] = dataclasses.field(default_factory=dict)
    plans: list[Row] = dataclasses.field(default_factory=list)
    lanes: list[Row] = dataclasses.field(default_factory=list)

    def note(self, *answers: Answer) -> None:
        """These came from the server."""
        self.answers += answers

    def lanes_of(self, answer: Answer, *roles: str) -> list[Row]:
        """The answer's lanes in order, of all roles or of some."""
        return [
            lane
            for lane in self.lanes
            if lane["request_id"] == answer.request_id and (not roles or lane["role"] in roles)
        ]


@contextlib.contextmanager
def observed(helios: HeliosServer, title: str, report: list[str]) -> Iterator[Observation]:
    """Serving within; at its end waits for rest, checks that all counts agree and adds lines to the report."""
    wait_until(lambda: at_rest(helios), "the server to be at rest before", _REST_SECONDS)
    before = Counters.of(helios)
    fence = helios.rows("SELECT COALESCE(MAX(fence), -1) AS fence FROM plans")[0]["fence"]
    known = {row["request_id"] for row in helios.rows("SELECT request_id FROM requests")}
    seen = Observation(title)
    yield seen
    wait_until(lambda: at_rest(helios), "the server to be at rest again", _REST_SECONDS)
    seen.counters = Counters.of(helios).since(before)
    rows = helios.rows("SELECT * FROM requests")
    seen.requests = {row["request_id"]: row for row in rows if row["request_id"] not in known}
    seen.plans = helios.rows("SELECT * FROM plans WHERE fence > :f ORDER BY fence", f=fence)
    seen.lanes = helios.rows("SELECT * FROM plan_lanes WHERE fence > :f ORDER BY fence, lane", f=fence)
    report += _lines(seen)
    assert {plan["outcome"] for plan in seen.plans} == {"completed"}
    check_clients(seen)
    check_counters(seen)
    check_speculation(seen)


def at_rest(helios: HeliosServer) -> bool:
    """Nothing runs or waits, and every request's end and every plan is in SQL."""
    counters = Counters.of(helios)
    if counters.total("flare_requests_running") or counters.total("flare_requests_waiting"):
        return False
    plans = {
        row["outcome"]: row["n"] for row in helios.rows("SELECT outcome, COUNT(*) AS n FROM plans GROUP BY outcome")
    }
    ends = helios.rows("SELECT COUNT(*) AS n FROM requests WHERE finished_at IS NOT NULL")[0]["n"]
    executed = counters.total("flare_scheduler_executions_total")
    ended = counters.total("flare_requests_total") - counters.total("flare_requests_total", 'outcome="refused"')
    return "in_flight" not in plans and sum(plans.values()) == executed and ends == ended


def check_clients(seen: Observation) -> None:
    """SQL has exactly the clients' requests, with their tokens, each of them committed by a plan."""
    committed: collections.Counter[object] = collections.Counter()
    for lane in seen.lanes:
        committed[lane["request_id"]] += lane["committed_tokens"]
    assert {answer.request_id for answer in seen.answers} == set(seen.requests)
    for answer in seen.answers:
        row = seen.requests[answer.request_id]
        assert row["output_tokens"] == committed[answer.request_id]
        if answer.output_tokens is None:
            assert row["finish_reason"] == "abort"
            assert row["output_tokens"] >= len(answer.text)  # a token is a byte, and the text is ASCII
        else:
            assert (row["prompt_tokens"], row["output_tokens"]) == (answer.prompt_tokens, answer.output_tokens)
            assert row["output_tokens"] == len(answer.text) == row["max_tokens"]
            assert (row["finish_reason"], answer.finish_reason) == ("length", "length")


def check_counters(seen: Observation) -> None:
    """Counters moved by what SQL holds."""
    count, rows, plans = seen.counters.total, list(seen.requests.values()), seen.plans

    def in_sql(name: str, table: list[Row]) -> int:
        return sum(int(row[name]) for row in table)

    assert count("flare_output_tokens_total") == in_sql("output_tokens", rows) == in_sql("output_tokens", plans)
    assert count("flare_prompt_tokens_total") == in_sql("prompt_tokens", plans)
    for outcome in ("stop", "length", "abort", "error"):
        ended = sum(row["finish_reason"] == outcome for row in rows)
        assert count("flare_requests_total", f'outcome="{outcome}"') == ended
    assert count("flare_time_to_first_token_seconds_count") == sum(row["first_output_at"] is not None for row in rows)
    if in_sql("preemptions", rows):
        return  # a request that resumes reads its own output too, and finds some of it in the cache
    assert count("flare_prefix_cache_tokens_total", 'result="hit"') == in_sql("cached_tokens", rows)
    if not any(row["finish_reason"] == "abort" for row in rows):
        consumed = in_sql("prompt_tokens", rows) - in_sql("cached_tokens", rows)
        assert count("flare_prompt_tokens_total") == consumed
        assert count("flare_prefix_cache_tokens_total", 'result="miss"') == consumed


def check_speculation(seen: Observation) -> None:
    """Rounds, drafts, offers and accepted drafts in the counters are those of the lanes and the plans."""
    rounds = [lane for lane in seen.lanes if lane["proposal_source"] is not None]
    for column in ("offered_tokens", "draft_tokens", "accepted_tokens"):
        in_plans = sum(int(plan[column]) for plan in seen.plans)
        name = column.removesuffix("_tokens")
        assert seen.counters.total(f"flare_speculative_{name}_tokens_total") == in_plans
        if column != "draft_tokens":
            assert sum(int(lane[column]) for lane in seen.lanes) == in_plans
    assert seen.counters.total("flare_speculative_accepted_length_count") == seen.counters.total(
        "flare_speculative_rounds_total"
    )
    assert seen.counters.total("flare_speculative_rounds_total") <= len(rounds)
    for lane in rounds:
        assert lane["accepted_tokens"] <= lane["offered_tokens"]
        assert lane["committed_tokens"] <= lane["accepted_tokens"] + 1


def _lines(seen: Observation) -> list[str]:
    tokens = ", ".join(f"{a.prompt_tokens or '?'}+{a.output_tokens or f'{len(a.text)}…'}" for a in seen.answers)
    gaps = sorted(gap for answer in seen.answers for gap in answer.gaps_ms)
    kinds = collections.Counter(str(plan["kind"]) for plan in seen.plans)
    lines = [
        f"{seen.title}",
        f"  tokens (prompt+output): {tokens}",
        f"  SSE gaps: {len(gaps)}, median {statistics.median(gaps):.1f} ms, largest {gaps[-1]:.1f} ms" if gaps else "",
        f"  plans: {', '.join(f'{kind} {number}' for kind, number in sorted(kinds.items()))}",
    ]
    moved = collections.Counter[str]()
    for (name, labels), value in seen.counters.values.items():
        kept = re.sub(r',?depth="\d+"', "", labels).strip(",")
        if name.endswith("_total") and not name.startswith(("flare_trace", "flare_journal")):
            moved[f"{name.removeprefix('flare_').removesuffix('_total')}{{{kept}}}".replace("{}", "")] += value
    lines.append("  counters: " + ", ".join(f"{name} +{value:.0f}" for name, value in moved.items() if value))
    return [line for line in lines if line]
