"""Dashboards as Grafana reads them: their panels and queries, and what it replaces in a query before it asks."""

from __future__ import annotations

import datetime
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
BOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}

VARIABLE = re.compile(r"\$(?:\{(\w+)(?::(\w+))?\}|(\w+))")
"""$name, ${name} and ${name:format}; Grafana's own begin with two underscores, and `${__data.fields…}` is no match."""


class Query(NamedTuple):
    """One target of one panel."""

    board: str
    panel: dict
    target: dict

    @property
    def name(self) -> str:
        return f"{self.board}: {self.panel['title']} {self.target['refId']}"

    @property
    def sql(self) -> bool:
        return "rawSql" in self.target

    @property
    def text(self) -> str:
        return self.target["rawSql"] if self.sql else self.target["expr"]


def panels(board: dict) -> list[dict]:
    """Without the headings of rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> Iterator[Query]:
    for name, board in BOARDS.items():
        for panel in panels(board):
            for target in panel["targets"]:
                yield Query(name, panel, target)


def data_sources() -> dict[str, dict]:
    """The provisioned ones by uid."""
    text = (PROVISIONING / "datasources" / "helios.yml").read_text(encoding="utf-8")
    return {source["uid"]: source for source in yaml.safe_load(text)["datasources"]}


def variables(board: dict) -> dict[str, dict]:
    return {variable["name"]: variable for variable in board.get("templating", {}).get("list", ())}


def used_variables(text: str) -> set[str]:
    """Names of a dashboard's own variables that a text asks for."""
    names = {match[1] or match[3] for match in VARIABLE.finditer(text)}
    return {name for name in names if not name.startswith("__") and not name.isdigit()}


def expand_promql(text: str, chosen: Mapping[str, Sequence[str]], window: str, time_range: str) -> str:
    """A PromQL query with Grafana's replacements: an alternative for each value of a variable."""
    for macro, value in (("$__rate_interval", window), ("$__range", time_range), ("$__interval", "1s")):
        text = text.replace(macro, value)
    return VARIABLE.sub(lambda m: "(" + "|".join(map(_escaped, chosen[m[1] or m[3]])) + ")", text)


def _escaped(value: str) -> str:
    """For a regular expression within a string of PromQL, where a backslash is written twice."""
    return re.escape(value).replace("\\", "\\\\")


def expand_sql(text: str, chosen: Mapping[str, Sequence[str]], start: float, end: float, interval: str) -> str:
    """A query to PostgreSQL with the replacements of Grafana's data source."""
    begin, until = (f"'{_utc(at)}'" for at in (start, end))
    text = re.sub(r"\$__timeFilter\(([^)]+)\)", lambda m: f"{m[1]} BETWEEN {begin} AND {until}", text)
    text = text.replace("$__timeFrom()", begin).replace("$__timeTo()", until).replace("$__interval", interval)
    text = re.sub(r"\$__timeGroupAlias\(([^,]+),\s*([^)]+)\)", lambda m: f'{_group(m)} AS "time"', text)
    text = re.sub(r"\$__timeGroup\(([^,]+),\s*([^)]+)\)", _group, text)
    return VARIABLE.sub(lambda m: _quoted(m, chosen), text)


def _utc(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _group(match: re.Match[str]) -> str:
    seconds = {"s": 1, "m": 60, "h": 3600}[match[2][-1]] * int(match[2][:-1])
    return f"floor(extract(epoch from {match[1]})/{seconds})*{seconds}"


def _quoted(match: re.Match[str], chosen: Mapping[str, Sequence[str]]) -> str:
    assert match[2] == "sqlstring", f"{match[0]}: values in SQL must be quoted, ${{name:sqlstring}}"
    return ",".join("'" + value.replace("'", "''") + "'" for value in chosen[match[1]])
