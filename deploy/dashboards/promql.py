"""PromQL over the server's metrics. A name or label that the metric table lacks is an error when a dashboard is made.

An average is always the rate of a sum over the rate of its count, and a share always one sum over another: neither can
be had by averaging or adding what is already divided.
"""

from __future__ import annotations

import re

from service.telemetry.metric_table import METRIC_BY_NAME, Metric, MetricType

INSTANCE = 'instance=~"$instance"'
WINDOW = "$__rate_interval"
_PARTS = ("_bucket", "_count", "_sum")


class UnknownSeries(ValueError):
    """A dashboard asks for a metric, label or use of a metric that the server does not have."""


def gauge(name: str, *matchers: str) -> str:
    """A gauge's series as they are. `matchers` such as `kind=~"$kind"`. Raises UnknownSeries."""
    _check(name, matchers, (), {MetricType.GAUGE, MetricType.INFO})
    return _select(name, matchers)


def total(name: str, *matchers: str) -> str:
    """A counter's series as they are: totals since its process began. Raises UnknownSeries."""
    _check(name, matchers, (), {MetricType.COUNTER})
    return _select(name, matchers)


def added(expression: str, *labels: str) -> str:
    """The sum of an expression's series over everything but `labels`; never of ratios."""
    return f"sum{_by(labels)} ({expression})"


def rate(name: str, *matchers: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Per second: a counter, or a histogram's `_count` or `_sum`, added over all labels but `by`.

    Raises UnknownSeries.
    """
    _check(name, matchers, by, {MetricType.COUNTER, MetricType.HISTOGRAM})
    return added(f"rate({_select(name, matchers)}[{window}])", *by)


def increase(name: str, *matchers: str, by: tuple[str, ...] = (), window: str = "$__range") -> str:
    """How much it grew over the dashboard's time range, added over all labels but `by`. Raises UnknownSeries."""
    _check(name, matchers, by, {MetricType.COUNTER, MetricType.HISTOGRAM})
    return added(f"increase({_select(name, matchers)}[{window}])", *by)


def mean(histogram: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """A histogram's mean. Raises UnknownSeries."""
    return ratio(rate(f"{histogram}_sum", *matchers, by=by), rate(f"{histogram}_count", *matchers, by=by))


def quantile(q: float, histogram: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """A histogram's quantile, from its buckets. Raises UnknownSeries."""
    return f"histogram_quantile({q:g}, {buckets(histogram, *matchers, by=by)})"


def buckets(histogram: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """Observations per second in each bucket and those below it. Raises UnknownSeries."""
    return rate(f"{histogram}_bucket", *matchers, by=("le", *by))


def share_within(bound: float, histogram: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """The share of observations up to a bucket's bound. Raises UnknownSeries, also where no bucket ends there."""
    if bound not in _metric(histogram).buckets:
        raise UnknownSeries(f"{histogram} has no bucket that ends at {bound}")
    below = rate(f"{histogram}_bucket", f'le="{bound!r}"', *matchers, by=by)
    return ratio(below, rate(f"{histogram}_count", *matchers, by=by))


def ratio(part: str, whole: str) -> str:
    """One expression over another with the same labels."""
    return f"{part} / {whole}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _select(name: str, matchers: tuple[str, ...]) -> str:
    return f"{name}{{{','.join((INSTANCE, *matchers))}}}"


def _check(name: str, matchers: tuple[str, ...], by: tuple[str, ...], types: set[MetricType]) -> None:
    metric = _metric(name)
    if metric.type not in types or (metric.type is MetricType.HISTOGRAM) != name.endswith(_PARTS):
        raise UnknownSeries(f"{name} is a {metric.type.value} and cannot be asked like this")
    asked = {re.split("[=!]", matcher, maxsplit=1)[0] for matcher in matchers} | set(by)
    known = {*metric.label_names, "instance", *(("le",) if name.endswith("_bucket") else ())}
    if not asked <= known:
        raise UnknownSeries(f"{name} has no label {', '.join(sorted(asked - known))}")


def _metric(name: str) -> Metric:
    for end in ("", *_PARTS):
        if name.endswith(end) and (found := METRIC_BY_NAME.get(name.removesuffix(end))) is not None:
            return found
    raise UnknownSeries(f"the server has no metric {name}")
