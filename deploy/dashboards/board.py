"""A whole dashboard: rows of panels, variables, links to the others, policy changes as annotations; and its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog import builder as cog_builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from deploy.dashboards.targets import POSTGRES, PROMETHEUS, TABLE, Sql
from scheduler.shapes import GraphKind
from service.telemetry.metric_table import DRAFT_SOURCES

TAG = "helios"
Panel = cog_builder.Builder[models.Panel]
Variable = cog_builder.Builder[models.VariableModel]

POLICY_CHANGES = """
SELECT a.applied_at AS "time",
       'Policy version ' || v.version || ' by ' || v.actor ||
           CASE WHEN v.note = '' THEN '' ELSE ': ' || v.note END AS text,
       'policy,' || coalesce(v.preset, 'own coefficients') AS tags
FROM policy_applications AS a
JOIN policy_versions AS v ON v.version = a.version
WHERE $__timeFilter(a.applied_at)
ORDER BY a.applied_at
"""
RUNS = """
SELECT run_id AS __value, to_char(started_at, 'MM-DD HH24:MI') || ' ' || run_id AS __text
FROM engine_runs
ORDER BY started_at DESC
LIMIT 100
"""
"""The newest runs: "All" means these."""


class PolicyChanges(cog_builder.Builder[models.AnnotationQuery]):
    """Each policy version that came into force, with who made it and why. The SDK's target is not one for SQL."""

    def build(self) -> models.AnnotationQuery:
        """The annotation."""
        made = dashboard.AnnotationQuery().name("Policy changes").datasource(POSTGRES).enable(True).icon_color("purple")
        query = made.build()
        query.target = Sql(POLICY_CHANGES, TABLE).ref_id("Anno").build()  # type: ignore[assignment]
        return query


def board(
    uid: str,
    title: str,
    description: str,
    rows: Mapping[str, Sequence[Panel]],
    variables: Sequence[Variable],
    *,
    annotated: bool = True,
    past: str = "now-1h",
    refresh: str = "10s",
) -> dashboard.Dashboard:
    """A dashboard. `past`: where its time range begins; `annotated`: with the policy's changes."""
    made = dashboard.Dashboard(f"Helios / {title}").uid(uid).description(description).tags([TAG]).readonly()
    made.time(past, "now").refresh(refresh).timezone("browser").tooltip(models.DashboardCursorSync.CROSSHAIR)
    made.link(
        dashboard.DashboardLink("Helios")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(False)
        .keep_time(True)
        .include_vars(True)
    )
    made.variables(list(variables))
    if annotated:
        made.annotation(PolicyChanges())
    for heading, panels in rows.items():
        made.with_row(dashboard.Row(heading))
        for panel in panels:
            made.with_panel(panel)
    return made


def instances() -> Variable:
    """Which servers, by the address that Prometheus scrapes."""
    made = dashboard.QueryVariable("instance").label("Server").query("label_values(flare_engine_up, instance)")
    return _all_of(made.datasource(PROMETHEUS).refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED))


def runs() -> Variable:
    """Which runs of the engine, newest first."""
    made = dashboard.QueryVariable("run").label("Run").query(RUNS.strip()).datasource(POSTGRES)
    return _all_of(made.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED))


def kinds() -> Variable:
    """Which kinds of graph."""
    return _all_of(_choices("kind", "Kind", (kind.value for kind in GraphKind)))


def sources() -> Variable:
    """Where drafts come from."""
    return _all_of(_choices("source", "Drafts from", DRAFT_SOURCES))


def server() -> Variable:
    """Where the reader's browser reaches the server, for links into the control room."""
    address = "http://127.0.0.1:8000"
    made = dashboard.TextBoxVariable("server").label("Control room at").default_value(address)
    return made.current(models.VariableOption(selected=True, text=address, value=address))


def to_json(made: dashboard.Dashboard) -> str:
    """The file's text. Panels are numbered in their order, so that links to one stay right while it stays in place."""
    built = made.build()
    for number, panel in enumerate(built.panels or (), start=1):
        panel.id_val = number
    content: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(built))
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _choices(name: str, label: str, values: Iterable[str]) -> dashboard.CustomVariable:
    return dashboard.CustomVariable(name).label(label).values(",".join(values))


def _all_of(variable: Any) -> Variable:
    every = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    made: Variable = variable.multi(True).include_all(True).current(every)
    return made
