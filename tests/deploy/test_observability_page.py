"""docs/observability.md and the code tell of the same metrics, spans, tables and alerts: none missing, none extra."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import msgspec
import pytest
import sqlalchemy as sa
import yaml
from otlp_receiver import plain

from scheduler.policy import PolicyConfig
from service.api.control_spans import CALL_ATTRIBUTES
from service.control.policy import PROPOSAL_ATTRIBUTES, PROPOSAL_SPAN
from service.journal.records import (
    PlanCommitted,
    PlanCompleted,
    PolicyApplied,
    RequestAdmitted,
    RequestArrived,
    RequestOptions,
)
from service.journal.records import RequestFinished as Finished
from service.store.database import open_database, read_transaction
from service.telemetry import otlp
from service.telemetry.metric_table import METRICS
from tests.deploy.stack_files import ROOT
from tests.house.test_contract_scheduler_and_spans import HEX, filled

PAGE = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
UNITS = (  # by the names' own words: the first that fits
    (r"_nanoseconds(_total)?$", "ns"),
    (r"_milliseconds$", "ms"),
    (r"_seconds$", "s"),
    (r"_bytes$", "bytes"),
    (r"_ratio$", "1"),
    (r"_(tokens_total|accepted_length)$", "tokens"),
    (r"_pages_(used|total)$", "pages"),
    (r"_requests_(running|waiting|total)$", "requests"),
    (r"_executions_total$", "executions"),
    (r"_records_total$", "records"),
    (r"_spans_total$", "spans"),
    (r"_rounds_total$", "rounds"),
    (r"_rows_total$", "rows"),
    (r"_messages_total$", "messages"),
    (r"_failures_total$", "failures"),
    (r"_guards_total$", "changes"),
    (r"_estimates$", "graphs"),
    (r"_(up|trouble|policy_info)$", "0 or 1"),
    (r"_policy_version$", "version"),
    (r"_policy$", "its own"),
)


def sections(text: str, level: int) -> dict[str, str]:
    """Heading to what is under it, up to the next of its level."""
    parts = re.split(rf"^{'#' * level} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table_rows(text: str) -> list[list[str]]:
    """The cells of every table's rows, heads and rules left out."""
    lines = re.findall(r"^\|.*\|$", text, flags=re.MULTILINE)
    split = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [cells for cells in split if cells[0].startswith("`")]


def codes(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


TOP = sections(PAGE, 2)
METRIC_PARTS = sections(TOP["Metrics"], 3)
METRIC_ROWS = [row for name, part in METRIC_PARTS.items() if name != "Label values" for row in table_rows(part)]


def test_every_metric_is_told_with_its_labels_type_and_unit():
    told = {(codes(name)[0], kind, unit) for name, kind, unit, *_ in METRIC_ROWS}
    made = set()
    for metric in METRICS:
        labels = "{" + ",".join(metric.label_names) + "}" if metric.label_names else ""
        unit = next(unit for pattern, unit in UNITS if re.search(pattern, metric.name))
        made.add((metric.name + labels, metric.type.value, unit))
    assert told == made
    assert len(METRIC_ROWS) == len(METRICS)


def test_every_metric_says_what_it_means_and_what_to_do():
    for row in METRIC_ROWS:
        assert len(row) == 5, row
        assert len(row[3]) > 10, row
        assert len(row[4]) > 10, row


def test_every_label_is_told_with_its_values():
    told = {}
    for name, values in table_rows(METRIC_PARTS["Label values"]):
        label, *metric = codes(name)
        told[label, *metric] = (*([""] if values.startswith("empty") else []), *codes(values))
    by_label: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for metric in METRICS:
        for label, values in metric.labels:
            by_label[label][metric.name] = values
        by_label.update({label: {metric.name: ()} for label in metric.served})
    made = {}
    for label, metrics in by_label.items():
        if len(set(metrics.values())) == 1:
            made[(label,)] = next(iter(metrics.values()))
        else:
            made.update({(label, name): values for name, values in metrics.items()})
    assert told == made


def test_the_histograms_with_exemplars_are_named():
    named = [name for name in codes(METRIC_PARTS["Exemplars"]) if "_" in name]
    assert set(named) == {metric.name for metric in METRICS if metric.traced}


def kind_of(value: object) -> str:
    """As the page names the types of attributes."""
    if isinstance(value, list):
        return "string[]"
    return {bool: "bool", int: "int", float: "double", str: "string"}[type(value)]


def unit_of(attribute: str) -> str | None:
    """What an attribute's name says of its unit; None where it says nothing."""
    if attribute.endswith("time_to_first_chunk"):
        return "s"
    for suffix in ("_ms", "_ns"):
        if attribute.endswith(suffix):
            return suffix[1:]
    return "tokens" if attribute.endswith("tokens") else None


def built() -> tuple[set[tuple[str, str, str]], set[tuple[str, str, str]]]:
    """Attributes of every span and of every event as the code builds them: (span or event, attribute, type)."""

    def wall(at_ns: int) -> int:
        return at_ns

    options = msgspec.structs.replace(filled(RequestOptions), choices=2)
    arrived = filled(RequestArrived, model="a-model", operation="an-operation", options=options, **HEX)
    story = otlp.RequestStory(arrived, filled(RequestAdmitted), 1)
    plan, coefficients = filled(PlanCommitted), PolicyConfig().as_dict()
    made = [
        otlp.plan_span("run", plan, filled(PlanCompleted, outcome="completed"), 1, [], wall),
        otlp.plan_span("run", plan, None, 1, [], wall),
        otlp.request_span("run", story, filled(Finished, finish_reason="stop"), 1, wall),
        otlp.request_span("run", story, None, 1, wall),
        otlp.policy_span("run", filled(PolicyApplied, coefficients=coefficients), wall),
    ]
    spans = types_of("Resource", otlp.resource("run", otlp.about_run("v", "host", "model", "cpu")))
    events: set[tuple[str, str, str]] = set()
    for span in made:
        spans |= types_of(span.name.replace(f"{arrived.operation} {arrived.model}", "{operation} {model}"), span)
        for event in span.events:
            events |= types_of(event.name, event) or {(event.name, "", "")}
    return spans, events


def types_of(name: str, item) -> set[tuple[str, str, str]]:
    return {(name, one.key, kind_of(plain(one.value))) for one in item.attributes}


SPANS = {name.replace("`", ""): part for name, part in sections(TOP["Spans"], 3).items()}


def attribute_rows(part: str) -> list[list[str]]:
    return [row for row in table_rows(part.partition("\nEvents:")[0]) if len(row) == 4]


def test_every_span_is_told_with_its_attributes_and_their_types():
    told = {(name, codes(row[0])[0], row[1]) for name, part in SPANS.items() for row in attribute_rows(part)}
    of_sdk = {entry for entry in told if entry[0] in ("{method} {route}", PROPOSAL_SPAN)}
    assert told - of_sdk == built()[0]
    made = {("{method} {route}", name) for name in CALL_ATTRIBUTES}
    assert {entry[:2] for entry in of_sdk} == made | {(PROPOSAL_SPAN, name) for name in PROPOSAL_ATTRIBUTES}


def test_every_event_is_told_with_its_attributes():
    rows = [row for part in SPANS.values() for row in table_rows(part.partition("\nEvents:")[2])]
    assert {(codes(row[0])[0], row[1].strip("`"), row[2]) for row in rows} == built()[1]


def test_the_units_of_attributes_are_those_of_their_names():
    for part in SPANS.values():
        for attribute, _, unit, meaning in attribute_rows(part):
            expected = unit_of(codes(attribute)[0])
            assert meaning
            assert unit == expected if expected is not None else unit not in ("s", "ms", "us", "ns")


TABLE_ROWS = {codes(row[0])[0]: row for row in table_rows(TOP["Tables and views"])}


@pytest.fixture
def database(store_url):
    engine = open_database(store_url, readonly=True)
    yield engine
    engine.dispose()


def test_every_table_and_view_is_told(database):
    inspector = sa.inspect(database)
    made = {*inspector.get_table_names(), *inspector.get_view_names()} - {"alembic_version"}
    partitions = {name for name in made if re.search(r"_(p?\d{6,8}|default)$", name)}
    assert set(TABLE_ROWS) == made - partitions


def questions(text: str) -> list[str]:
    return [" ".join(code.split()) for code in codes(text) if code.startswith("SELECT")]


def test_every_table_has_a_question_and_every_question_of_the_page_runs(database):
    for name, row in TABLE_ROWS.items():
        assert any(re.search(rf"\b{name}\b", question) for question in questions(row[2])), name
    asked = questions(PAGE)
    assert len(asked) > len(TABLE_ROWS)
    for question in asked:
        with read_transaction(database) as connection:
            connection.exec_driver_sql(question.replace("%", "%%")).all()


def rules() -> list[Mapping[str, object]]:
    files = sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    groups = [group for file in files for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_every_alert_has_the_section_that_its_rule_leads_to():
    told = sections(TOP["Alerts"], 3)
    assert set(told) == {rule["alert"] for rule in rules()}
    assert all(len(text.split()) > 20 for text in told.values())
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"docs/observability.md#{str(rule['alert']).lower()}"


def test_what_alerts_distinguish_by_a_label_is_told():
    told = sections(TOP["Alerts"], 3)
    for rule in rules():
        for label, value in rule["labels"].items():
            if label not in ("severity", "sink"):
                assert value in codes(told[rule["alert"]]), (rule["alert"], label, value)


def test_links_within_the_page_lead_to_its_headings():
    headings = re.findall(r"^#{2,3} (.+)$", PAGE, flags=re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(#([^)]+)\)", PAGE)
    assert links
    assert set(links) <= anchors
