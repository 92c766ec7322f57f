"""Plans aggregated by the database into bins of time, with the longest plan and the longest gap of each bin."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dashboard.bins import Bin, Binned, Extreme, at_most, greatest, width_for
from dashboard.queries.timeline_filters import RunRange, conditions, padded, policy_periods, whole
from dashboard.timeline_records import Filters, Span, from_us, to_us
from service.store.epoch import micros
from service.store.partitions import RECORDED_ON, UNNAMED_DAY, has_days, utc_day
from service.store.tables import plan_minutes, plans

MOST_BINS = 300
MOST_MARKS = 4000
MINUTE_US = 60_000_000
IDLE = "idle"
NAMED_EXTREMES = 20
MAX_PERIODS = 50
_FILTERED = ("run_id", "kind", "reason", "outcome", "policy_version")


def by_plans(connection: sa.Connection, ranges: Sequence[RunRange], span: Span, filters: Filters, by: str) -> Binned:
    """The plans of these ranges that were committed within the span. `by`: kind or reason."""
    since_us, until_us = to_us(span[0]), to_us(span[1])
    width = width_for(until_us - since_us, MOST_BINS)
    bins: dict[tuple[int, int | None, str], tuple[int, int]] = {}
    longest, gaps = [], []
    for part in ranges:
        for row in connection.execute(_bins_of(connection, part, (since_us, until_us), width, filters, by)):
            key = (int(row.number), int(row.frame_slot), str(row.label))
            count, busy = bins.get(key, (0, 0))
            bins[key] = (count + int(row.plans), busy + int(row.busy_ns))
            longest.append(_extreme(key, row.longest, part.run_id))
            if row.gap is not None:
                gaps.append(_extreme((key[0], None, key[2]), row.gap, part.run_id))
    found = [Bin(*key, *values) for key, values in sorted(bins.items())]
    return at_most(Binned(width, found, greatest(longest), greatest(gaps)), MOST_MARKS)


def _bins_of(
    connection: sa.Connection, part: RunRange, span_us: tuple[int, int], width_us: int, filters: Filters, by: str
) -> sa.Select[Any]:
    of_run = _with_lengths(connection, part, span_us)
    columns = of_run.c
    number = columns.at_us // width_us
    who = sa.literal(" ").concat(sa.cast(columns.at_us, sa.Text)).concat(" ").concat(sa.cast(columns.fence, sa.Text))
    gap = sa.case((columns.gap_ns > 0, padded(connection, columns.gap_ns).concat(who)))
    query = sa.select(
        number.label("number"),
        columns.frame_slot,
        columns[by].label("label"),
        sa.func.count().label("plans"),
        sa.func.sum(columns.length_ns).label("busy_ns"),
        sa.func.max(padded(connection, columns.length_ns).concat(who)).label("longest"),
        sa.func.max(gap).label("gap"),
    )
    query = query.where(columns.at_us >= span_us[0], columns.at_us < span_us[1], *conditions(columns, filters))
    return query.group_by(number, columns.frame_slot, columns[by])


def _with_lengths(connection: sa.Connection, part: RunRange, span_us: tuple[int, int]) -> sa.Subquery:
    """The run's plans in the order of its key, each with its length and the gap before it, in ns.

    One plan before the range is read too, or the first gap would not be known.
    """
    p = plans.c
    begun = sa.func.coalesce(p.started_ns, p.committed_ns)
    length = sa.case((p.completed_ns > begun, p.completed_ns - begun), else_=0)
    before = sa.func.lag(p.completed_ns).over(order_by=p.fence)
    query = sa.select(
        p.fence,
        p.frame_slot,
        *(p[name] for name in _FILTERED),
        micros(connection, p.committed_at).label("at_us"),
        whole(length).label("length_ns"),
        (p.started_ns - before).label("gap_ns"),
    )
    query = query.where(p.run_id == part.run_id, p.fence.between(part.first - 1, part.last))
    if has_days(connection):
        first, last = (utc_day(from_us(at)) for at in span_us)
        days = RECORDED_ON.between(first - dt.timedelta(days=1), last)
        query = query.where(sa.or_(days, RECORDED_ON == UNNAMED_DAY))
    return query.subquery("of_run")


def _extreme(key: tuple[int, int | None, str], text: str, run_id: str) -> Extreme:
    """Of a text of length, commit and fence."""
    length_ns, at_us, fence = (int(number) for number in text.split(" "))
    return Extreme(*key, length_ns, at_us, run_id, fence)


def by_minutes(connection: sa.Connection, span: Span, filters: Filters, by: str) -> Binned:
    """The whole minutes of the span, from the roll-up; gaps are stretches of minutes without any plan.

    Of a policy version the minutes in which it was in force.
    """
    since_us, until_us = to_us(span[0]), to_us(span[1])
    width = width_for(until_us - since_us, MOST_BINS, MINUTE_US)
    query = _minutes_in_bins(connection, _in_minutes(connection, span, filters), width, by)
    bins, extremes = [], []
    for row in connection.execute(query):
        key = (int(row.number), None, str(row.label))
        bins.append(Bin(*key, int(row.plans), round(float(row.busy_ms) * 1e6)))
        length_ns, at_us = (int(part) for part in row.longest.split(" "))
        extremes.append(Extreme(*key, length_ns, at_us))
    idle = _idle_minutes(connection, span, filters, width)
    found = Binned(width, sorted(bins, key=lambda one: (one.number, one.group)), greatest(extremes), idle)
    return _named(connection, at_most(found, MOST_MARKS), filters, by)


def _minutes_in_bins(
    connection: sa.Connection, chosen: Sequence[sa.ColumnElement[bool]], width_us: int, by: str
) -> sa.Select[Any]:
    """Sums of the roll-up, first of each minute, so that its times are converted once and not for every graph."""
    c = plan_minutes.c
    minutes = (
        sa.select(
            c.minute,
            c[by].label("label"),
            sa.func.sum(c.plans).label("plans"),
            sa.func.sum(c.device_ms_sum).label("busy_ms"),
            sa.func.max(c.device_ms_max).label("longest_ms"),
        )
        .where(*chosen)
        .group_by(c.minute, c[by])
        .subquery("minutes")
    )
    at_us = micros(connection, minutes.c.minute)
    number = whole(at_us) // width_us
    longest = padded(connection, whole(minutes.c.longest_ms * 1_000_000))
    return sa.select(
        number.label("number"),
        minutes.c.label,
        sa.func.sum(minutes.c.plans).label("plans"),
        sa.func.sum(minutes.c.busy_ms).label("busy_ms"),
        sa.func.max(longest.concat(" ").concat(sa.cast(at_us, sa.Text))).label("longest"),
    ).group_by(number, minutes.c.label)


def _idle_minutes(connection: sa.Connection, span: Span, filters: Filters, width_us: int) -> list[Extreme]:
    """Stretches of whole minutes without any plan, the longest of each bin; of one kind or reason nobody can tell."""
    if filters.kind is not None or filters.reason is not None:
        return []
    minute = plan_minutes.c.minute
    busy = sa.select(minute).distinct().where(*_in_minutes(connection, span, filters)).subquery("busy")
    at_us = sa.select(micros(connection, busy.c.minute).label("at_us")).subquery("times").c.at_us
    both = sa.select(at_us, sa.func.lag(at_us).over(order_by=at_us).label("before_us")).subquery("both")
    query = sa.select(both).where(both.c.at_us - both.c.before_us > MINUTE_US)
    marks = []
    for row in connection.execute(query):
        idle_ns = (int(row.at_us) - int(row.before_us) - MINUTE_US) * 1000
        marks.append(Extreme(int(row.at_us) // width_us, None, IDLE, idle_ns, int(row.at_us)))
    return greatest(marks)


def _in_minutes(connection: sa.Connection, span: Span, filters: Filters) -> list[sa.ColumnElement[bool]]:
    minutes = plan_minutes.c
    wanted = {"run_id": filters.run, "kind": filters.kind, "reason": filters.reason}
    found = [minutes[name] == value for name, value in wanted.items() if value is not None]
    found += [minutes.minute >= span[0], minutes.minute < span[1]]
    if filters.policy_version is None:
        return found
    periods = policy_periods(connection, filters.policy_version, filters.run)[-MAX_PERIODS:]
    whole_minute = dt.timedelta(minutes=1)
    in_force = [
        sa.and_(
            minutes.run_id == period.run_id,
            minutes.minute >= period.since.replace(second=0, microsecond=0),
            *([] if period.until is None else [minutes.minute < period.until + whole_minute]),
        )
        for period in periods
    ]
    return [*found, sa.or_(sa.false(), *in_force)]


def _named(connection: sa.Connection, binned: Binned, filters: Filters, by: str) -> Binned:
    """The same, with run and fence of the NAMED_EXTREMES longest plans, each looked for in its minute."""
    ordered = sorted(range(len(binned.longest)), key=lambda index: -binned.longest[index].length_ns)
    marks = list(binned.longest)
    for index in ordered[:NAMED_EXTREMES]:
        marks[index] = _look_for(connection, marks[index], filters, by)
    return Binned(binned.width_us, binned.bins, marks, binned.gaps)


def _look_for(connection: sa.Connection, mark: Extreme, filters: Filters, by: str) -> Extreme:
    """The plan that was completed in the mark's minute and took as long, or the mark as it was."""
    p = plans.c
    length = dt.timedelta(microseconds=mark.length_ns // 1000)
    since, until = from_us(mark.at_us), from_us(mark.at_us + MINUTE_US)
    query = sa.select(p.run_id, p.fence, p.frame_slot, p.committed_at, p.device_ms)
    query = query.where(p.committed_at >= since - length - dt.timedelta(seconds=1), p.committed_at < until)
    query = query.where(p[by] == mark.group, p.device_ms >= mark.length_ns / 1e6 - 0.001)
    query = query.where(*conditions(p, filters)).order_by(p.device_ms.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    if row is None:
        return mark
    return Extreme(
        mark.number, None, mark.group, round(row.device_ms * 1e6), to_us(row.committed_at), row.run_id, int(row.fence)
    )
