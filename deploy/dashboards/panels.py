"""Panels in one style: a title, what it shows and what to do about it, a unit, thresholds and a legend with values.

Widths are columns of 24, heights rows of Grafana's grid; at 1,280 pixels a column is about 52 wide.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, stat, table, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models

from deploy.dashboards.targets import POSTGRES, PROMETHEUS, TABLE, Sql, Target

GREEN, AMBER, RED, BLUE = "green", "orange", "red", "blue"
LAST = "lastNotNull"

Steps = Mapping[float, str]
"""A colour from each value on; below the first it is green, unless -inf has a colour."""


def timeline(
    title: str,
    description: str,
    unit: str,
    *targets: Target,
    width: int = 12,
    limits: Steps | None = None,
    stacked: bool = False,
    bars: bool = False,
    largest: float | None = None,
    signed: bool = False,
    logarithmic: bool = False,
) -> timeseries.Panel:
    """Values over time. `limits` are drawn as lines; `largest`: the axis ends there. It begins at 0 unless `signed`."""
    panel = timeseries.Panel().title(title).description(description).unit(unit).datasource(_source(targets))
    panel.targets(_lettered(targets)).span(width).height(8)
    panel.color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC)).line_width(1).fill_opacity(
        60 if bars else 30 if stacked else 8
    )
    panel.show_points(common_models.VisibilityMode.AUTO)
    panel.draw_style(common_models.GraphDrawStyle.BARS if bars else common_models.GraphDrawStyle.LINE)
    panel.tooltip(
        common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING)
    )
    panel.legend(
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.TABLE)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([LAST, "max"])
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if not signed and not logarithmic:
        panel.min(0)
    if largest is not None:
        panel.max(largest)
    if logarithmic:
        panel.scale_distribution(common.ScaleDistributionConfig().type(common_models.ScaleDistribution.LOG).log(10))
    if limits:
        panel.thresholds(_thresholds(limits))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED))
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    target: Target,
    *,
    width: int = 3,
    limits: Steps | None = None,
    words: Mapping[float, str] | None = None,
    decimals: int | None = None,
) -> stat.Panel:
    """The newest value, large. `words`: what to show instead of a value."""
    panel = stat.Panel().title(title).description(description).unit(unit).datasource(_source([target]))
    panel.targets(_lettered([target])).span(width).height(4)
    panel.reduce_options(common.ReduceDataOptions().calcs([LAST]))
    panel.graph_mode(common_models.BigValueGraphMode.AREA).color_mode(common_models.BigValueColorMode.VALUE)
    panel.color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    panel.thresholds(_thresholds(limits or {}))
    if words:
        options = {f"{value:g}": models.ValueMappingResult(text=text) for value, text in words.items()}
        panel.mappings([models.ValueMap(options=options)])
    if decimals is not None:
        panel.decimals(decimals)
    return panel


def gauges(
    title: str, description: str, unit: str, target: Target, *, width: int = 12, largest: float | None = None
) -> bargauge.Panel:
    """One bar for each series' newest value."""
    panel = bargauge.Panel().title(title).description(description).unit(unit).datasource(_source([target]))
    panel.targets(_lettered([target])).span(width).height(8).min(0)
    panel.reduce_options(common.ReduceDataOptions().calcs([LAST]))
    panel.orientation(common_models.VizOrientation.HORIZONTAL).display_mode(common_models.BarGaugeDisplayMode.BASIC)
    panel.thresholds(_thresholds({}))
    if largest is not None:
        panel.max(largest)
    return panel


def heat(title: str, description: str, unit: str, target: Target, *, width: int = 12) -> heatmap.Panel:
    """A histogram over time; darker is more."""
    panel = heatmap.Panel().title(title).description(description).datasource(_source([target]))
    panel.targets(_lettered([target])).span(width).height(8).calculate(False)
    panel.y_axis(heatmap.YAxisConfig().unit(unit))
    panel.color(heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Blues").steps(64))
    return panel


def listing(
    title: str,
    description: str,
    query: str,
    *,
    width: int = 24,
    height: int = 9,
    units: Mapping[str, str] | None = None,
    widths: Mapping[str, int] | None = None,
    links: Mapping[str, tuple[str, str]] | None = None,
) -> table.Panel:
    """Rows of PostgreSQL. By column: `units`, `widths` in pixels, `links`: a title and a URL with `${__data.fields…}`.

    Columns without a width share what the others leave, 60 pixels each at least.
    """
    panel = table.Panel().title(title).description(description).datasource(POSTGRES)
    panel.targets(_lettered([Sql(query, TABLE)])).span(width).height(height).min_width(60)
    properties: dict[str, list[models.DynamicConfigValue]] = {}
    for column, unit in (units or {}).items():
        properties.setdefault(column, []).append(models.DynamicConfigValue(id_val="unit", value=unit))
    for column, pixels in (widths or {}).items():
        properties.setdefault(column, []).append(models.DynamicConfigValue(id_val="custom.width", value=pixels))
    for column, (text, url) in (links or {}).items():
        link = {"title": text, "url": url, "targetBlank": True}
        properties.setdefault(column, []).append(models.DynamicConfigValue(id_val="links", value=[link]))
    for column, values in properties.items():
        panel.override_by_name(column, values)
    return panel


def _lettered(targets: Sequence[Target]) -> list[Any]:
    """The targets, named A, B, ..."""
    return [target.ref_id(letter) for letter, target in zip(string.ascii_uppercase, targets, strict=False)]


def _source(targets: Sequence[Target]) -> models.DataSourceRef:
    return POSTGRES if isinstance(targets[0], Sql) else PROMETHEUS


def _thresholds(limits: Steps) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color=limits.get(-math.inf, GREEN))]
    steps += [models.Threshold(value=value, color=colour) for value, colour in limits.items() if value > -math.inf]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
