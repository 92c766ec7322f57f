"""The data sources, and one query to each: Prometheus through the SDK's builder, PostgreSQL through one of our own."""

from __future__ import annotations

import typing

from grafana_foundation_sdk.builders import prometheus as prometheus_builders
from grafana_foundation_sdk.cog import builder as cog_builder
from grafana_foundation_sdk.cog import variants
from grafana_foundation_sdk.models import dashboard, prometheus

PROMETHEUS_UID = "helios-prometheus"
POSTGRES_UID = "helios-postgres"
PROMETHEUS = dashboard.DataSourceRef(type_val="prometheus", uid=PROMETHEUS_UID)
POSTGRES = dashboard.DataSourceRef(type_val="grafana-postgresql-datasource", uid=POSTGRES_UID)

TABLE = "table"
TIME_SERIES = "time_series"


class Target(typing.Protocol):
    """A query's builder that can be named within its panel."""

    def ref_id(self, ref_id: str) -> typing.Self:
        """Name it."""

    def build(self) -> variants.Dataquery:
        """The query."""


def ask(expression: str, legend: str = "", *, exemplars: bool = False) -> prometheus_builders.Dataquery:
    """A PromQL query over the panel's time range. `exemplars`: also ask for those of its histogram."""
    query = prometheus_builders.Dataquery().expr(expression).legend_format(legend).datasource(PROMETHEUS)
    return query.editor_mode(prometheus.QueryEditorMode.CODE).range().exemplar(exemplars)


def ask_now(expression: str, legend: str = "") -> prometheus_builders.Dataquery:
    """A PromQL query at the end of the panel's time range."""
    return ask(expression, legend).instant()


def ask_buckets(expression: str) -> prometheus_builders.Dataquery:
    """A histogram's buckets, for a heat map."""
    return ask(expression, "{{le}}").format(prometheus.PromQueryFormat.HEATMAP)


class SqlQuery(variants.Dataquery):
    """A query to PostgreSQL as Grafana's data source keeps it. The SDK has no type for it."""

    def __init__(self, raw_sql: str, form: str, ref_id: str = "A") -> None:
        self.raw_sql = raw_sql
        self.form = form
        self.ref_id = ref_id

    def to_json(self) -> dict[str, object]:
        """What the dashboard's JSON holds."""
        return {
            "datasource": POSTGRES,
            "editorMode": "code",
            "format": self.form,
            "rawQuery": True,
            "rawSql": self.raw_sql,
            "refId": self.ref_id,
        }


class Sql(cog_builder.Builder[variants.Dataquery]):
    """Builds a query to PostgreSQL. `form`: TABLE, or TIME_SERIES with a column "time" and maybe a text "metric"."""

    def __init__(self, raw_sql: str, form: str = TIME_SERIES) -> None:
        self._query = SqlQuery(raw_sql.strip(), form)

    def ref_id(self, ref_id: str) -> typing.Self:
        """Name it within its panel."""
        self._query.ref_id = ref_id
        return self

    def build(self) -> SqlQuery:
        """The query."""
        return self._query
