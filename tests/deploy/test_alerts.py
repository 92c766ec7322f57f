"""deploy/prometheus/rules: Prometheus' own tool reads them, and each alert fires when it should and only then."""

from __future__ import annotations

import copy
import pathlib
import re
import subprocess

import pytest
import yaml
from needs import program
from promtool import INSTRUCTION

from service.telemetry.metric_table import METRIC_BY_NAME

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules" / "helios.yml"
CASES = ROOT / "tests" / "deploy" / "alerts" / "helios.yml"
CONTENT = yaml.safe_load(RULES.read_text(encoding="utf-8"))
PLACES = [(g, r) for g, group in enumerate(CONTENT["groups"]) for r in range(len(group["rules"]))]


def rule_at(place, content=CONTENT):
    group, rule = place
    return content["groups"][group]["rules"][rule]


def name_of(place):
    rule = rule_at(place)
    return "-".join([rule["alert"], *(value for label, value in rule["labels"].items() if label != "severity")])


every_rule = pytest.mark.parametrize("place", PLACES, ids=[f"{name_of(p)}-{p[0]}{p[1]}" for p in PLACES])


def promtool(*words):
    """Its exit code and what it says."""
    tool = program("promtool", instruction=INSTRUCTION)
    done = subprocess.run([tool, *map(str, words)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.prometheus
def test_promtool_finds_nothing_wrong():
    code, said = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert code == 0, said
    assert f"{len(PLACES)} rules found" in said


@pytest.mark.prometheus
def test_every_case_is_as_expected():
    code, said = promtool("test", "rules", CASES)
    assert code == 0, said


@pytest.mark.prometheus
def test_the_cases_notice_every_rule_that_never_fires(tmp_path):
    content = copy.deepcopy(CONTENT)
    for place in PLACES:
        rule_at(place, content)["expr"] = "vector(0) > 1"
    code, said = run_cases(content, tmp_path)
    assert code == 1
    for place in PLACES:
        rule = rule_at(place)
        wanted = {"alertname": rule["alert"], **rule["labels"]}
        missed = [line for line in said.splitlines() if all(f'{k}="{v}"' in line for k, v in wanted.items())]
        assert missed, f"no case in which {name_of(place)} fires"


@pytest.mark.prometheus
@every_rule
def test_the_cases_notice_a_rule_that_always_fires(place, tmp_path):
    content = copy.deepcopy(CONTENT)
    rule_at(place, content)["expr"] = "vector(1)"
    alert = rule_at(place)["alert"]
    for group in content["groups"]:  # the others would only take time
        group["rules"] = [rule for rule in group["rules"] if rule["alert"] == alert]
    content["groups"] = [group for group in content["groups"] if group["rules"]]
    code, said = run_cases(content, tmp_path, alert)
    assert code == 1, said
    assert alert in said


def run_cases(content, folder, alert=None):
    """promtool over the cases, of one alert if it is named, with other rules."""
    (folder / "rules.yml").write_text(yaml.safe_dump(content))
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    cases["rule_files"] = ["rules.yml"]
    for case in cases["tests"]:
        case["alert_rule_test"] = [one for one in case["alert_rule_test"] if alert in (None, one["alertname"])]
    cases["tests"] = [case for case in cases["tests"] if case["alert_rule_test"]]
    (folder / "cases.yml").write_text(yaml.safe_dump(cases))
    return promtool("test", "rules", folder / "cases.yml")


@every_rule
def test_a_rule_says_how_bad_it_is_and_what_to_do(place):
    rule = rule_at(place)
    assert rule["labels"]["severity"] in ("critical", "warning")
    words = rule["annotations"]
    assert set(words) == {"summary", "description", "runbook_url"}
    assert "{{ $labels.instance }}" in words["summary"]
    assert "{{ $value" in words["description"]
    assert words["runbook_url"] == f"docs/observability.md#{rule['alert'].lower()}"


def test_every_runbook_is_there():
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    headings = {line.lstrip("# ").strip().lower() for line in page.splitlines() if line.startswith("#")}
    assert {rule_at(place)["alert"].lower() for place in PLACES} <= headings


@every_rule
def test_a_rule_asks_for_metrics_and_labels_that_the_server_has(place):
    expression = rule_at(place)["expr"]
    for name, matchers in re.findall(r"\b(flare_[a-z_]+)(?:\{([^}]*)\})?", expression):
        metric = METRIC_BY_NAME.get(name) or METRIC_BY_NAME[re.sub("_(bucket|count|sum)$", "", name)]
        for label, value in re.findall(r'(\w+)!?="([^"]*)"', matchers):
            known = dict(metric.labels) | {"le": tuple(repr(bound) for bound in metric.buckets)}
            assert value in known[label], (name, label, value)
