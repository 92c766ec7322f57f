"""One plan's page. It is complete when it is sent, but for the verdict of a re-execution."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from dash import dcc, html

from dashboard.context import ControlRoom
from dashboard.figures.parts import parts_figure
from dashboard.formatting import capital, milliseconds, quantity, shape_words, utc, words
from dashboard.glossary import TERMS, meaning
from dashboard.grids import grid
from dashboard.markup import aria
from dashboard.pages.plan import ids, verdict
from dashboard.pages.plan.meters import duration_meters
from dashboard.pages.plan.numbers import number_groups
from dashboard.pages.plan.tables import LANE_COLUMNS, alternative_rows, lane_rows, shown_columns
from dashboard.palette import kind_colour
from dashboard.routing import TIMELINE_PATH, path_with, plan_path
from dashboard.score import Row, bars, is_rate
from dashboard.sentences import OUTCOME_WORDS, headline, how_it_lost, recorded_words
from dashboard.shell import message_page
from dashboard.span import Span
from service.store.queries import get_plan, plan_neighbours

GRAPH_CONFIG: Any = {"displayModeBar": False, "responsive": True}
MAX_ROWS_WITHOUT_SCROLL = 18
AROUND = 12


async def page(room: ControlRoom, run_id: str, fence: int) -> Any:
    """The page of one plan, or one that says that there is no such plan. Raises what ControlRoom.read does."""

    def query(engine: sa.Engine) -> tuple[Any, tuple[int | None, int | None]]:
        return get_plan(engine, run_id, fence), plan_neighbours(engine, run_id, fence)

    detail, (before, behind) = await room.read(query)
    if detail is None:
        return _unknown(run_id, fence, before, behind)
    return layout(detail.plan, detail.lanes, detail.alternatives, before, behind)


def layout(plan: Row, lanes: Sequence[Row], alternatives: Sequence[Row], before: int | None, behind: int | None) -> Any:
    """The page for rows of `plans`, `plan_lanes` and `plan_alternatives`; `before` and `behind` are fences."""
    return html.Article(
        [
            _title(plan, before, behind),
            html.P(headline(plan, alternatives), id=ids.HEADLINE, className="headline"),
            *_asides(plan),
            html.H2("What each candidate was worth"),
            html.Div(_parts(plan, alternatives), className="card"),
            html.H2("Predicted and observed"),
            html.Div(duration_meters(plan), className="card"),
            html.H2("Runner-ups"),
            *_alternatives(plan, alternatives),
            html.H2("Requests in this plan"),
            _table(ids.LANES, LANE_COLUMNS, lane_rows(lanes), "Requests in this plan"),
            *verdict.section(plan),
            html.H2("All numbers"),
            html.Div(
                [_group(heading, pairs) for heading, pairs in number_groups(plan, alternatives)],
                className="number-groups",
            ),
            _glossary(),
        ]
    )


def _title(plan: Row, before: int | None, behind: int | None) -> Any:
    run_id = plan["run_id"]
    return html.Div(
        [
            html.Div(
                [
                    html.Div([dcc.Link("Timeline", href=TIMELINE_PATH), f" / run {run_id}"], className="crumbs"),
                    html.H1(
                        [
                            html.Span(className="dot", style={"background": kind_colour(plan["kind"])}),
                            f" Plan {plan['fence']:,}: {shape_words(plan)}",
                        ]
                    ),
                    html.Div(
                        f"{utc(plan['committed_at'])} · {words(plan['reason'])} · {words(plan['outcome'])}"
                        + (f" · {milliseconds(plan['device_ms'])}" if plan["device_ms"] is not None else ""),
                        className="subtitle",
                    ),
                ]
            ),
            html.Div(className="spacer"),
            html.Nav(
                [_step("previous", run_id, before), _step("next", run_id, behind), _in_time(plan)],
                className="steps",
                **aria(label="Neighbouring plans"),
            ),
        ],
        className="title-row",
    )


STEPS: dict[str, tuple[list[Any], str]] = {
    "previous": (["← Previous ", html.Kbd("[")], "["),
    "next": ([html.Kbd("]"), " Next →"], "]"),
}


def _step(which: str, run_id: str, fence: int | None) -> Any:
    """A link to a neighbour; assets/plan.js follows it at its key."""
    label, key = STEPS[which]
    if fence is None:
        return html.Span(label, className="step disabled", **aria(disabled="true"))
    title = f"Plan {fence:,}, key {key}"
    return dcc.Link(label, href=plan_path(run_id, fence), className=f"step {which}", title=title)


def _in_time(plan: Row) -> Any:
    """A link to the timeline around the plan."""
    length = dt.timedelta(milliseconds=max(plan["device_ms"] or 0.0, plan["selected_cost_ms"], 10.0))
    since, until = plan["committed_at"] - AROUND * length, plan["committed_at"] + (AROUND + 1) * length
    query = {**Span(since, until).query, "run": plan["run_id"]}
    return dcc.Link("In time", href=path_with(TIMELINE_PATH, **query), className="step", title="Plans around it")


def _asides(plan: Row) -> list[Any]:
    notes = [OUTCOME_WORDS.get(plan["outcome"], words(plan["outcome"]))]
    if plan["log_scale"]:
        notes.append(
            "All values of this decision are shown scaled by one common factor "
            f"(its natural logarithm is {quantity(plan['log_scale'])}); it changes no comparison within the decision."
        )
    return [html.P(note, className="aside") for note in notes if note]


def _parts(plan: Row, alternatives: Sequence[Row]) -> list[Any]:
    other_unit = [row for row in alternatives if row["score_kind"] != plan["score_kind"]]
    notes = (
        "The diamond is the score: what adds to it is drawn to the right of zero, what it costs to the left. "
        "Faint bars were barred."
    )
    if other_unit:
        unit = "per ms" if is_rate(plan) else "undivided"
        names = ", ".join(dict.fromkeys(shape_words(row) for row in other_unit))
        notes += f" Not drawn, since their score is not {unit}: {names}."
    graph = dcc.Graph(
        id=ids.PARTS, figure=parts_figure(plan, alternatives), config=GRAPH_CONFIG, className="parts-graph"
    )
    barred = [row for row in alternatives if row["barred_by"] != "none"]
    told = aria(label=_parts_words(plan, alternatives))
    names_of_barred = [html.Li(f"{row['rank']}. {shape_words(row)}: {how_it_lost(plan, row)}") for row in barred]
    return [
        html.Div(graph, className="parts-frame", tabIndex="0", role="group", **told),
        html.P(notes, className="legend-note"),
        *([html.Ul(names_of_barred, id=ids.BARRED, className="plan-barred")] if names_of_barred else []),
    ]


def _parts_words(plan: Row, alternatives: Sequence[Row]) -> str:
    """The chart in words."""
    rows = bars(plan, alternatives)
    scores = ", ".join(f"{shape_words(row)} {quantity(row['value_rate'])}" for row in rows[:6])
    return f"Scores, the winner first: {scores}. The table of runner-ups has their parts."


def _alternatives(plan: Row, alternatives: Sequence[Row]) -> list[Any]:
    if not alternatives:
        text = "There was no other candidate." if plan["candidates"] <= 1 else f"{capital(recorded_words(plan, []))}."
        return [html.P(text, id=ids.ALTERNATIVES, className="muted")]
    rows = alternative_rows(plan, alternatives)
    note = (
        f"{capital(recorded_words(plan, alternatives))}, here by score. Rank 1 on are the best of every other kind, "
        "then the best that remain. Behind and ahead are against the winner."
    )
    return [
        html.P(note, className="muted table-note"),
        _table(ids.ALTERNATIVES, shown_columns(rows), rows, "Runner-ups"),
    ]


def _table(grid_id: str, columns: list[dict[str, Any]], rows: list[dict[str, Any]], label: str) -> Any:
    height = 420 if len(rows) > MAX_ROWS_WITHOUT_SCROLL else None
    return grid(grid_id, columns, rows, height_px=height, row_id="id", label=label)


def _group(heading: str, pairs: list[tuple[str, str]]) -> Any:
    items = [html.Div([_term(name), html.Dd(value)]) for name, value in pairs]
    return html.Section([html.H3(heading), html.Dl(items)], className="card number-group")


def _term(name: str) -> Any:
    explained = meaning(name)
    return html.Dt(name) if explained is None else html.Dt(name, title=explained, className="explained")


def _glossary() -> Any:
    """Every term, for whoever has no pointer to hover with."""
    items = [html.Div([html.Dt(term), html.Dd(text)]) for term, text in TERMS.items()]
    return html.Details(
        [html.Summary("What the terms mean"), html.Dl(items)], className="card glossary", id=ids.GLOSSARY
    )


def _unknown(run_id: str, fence: int, before: int | None, behind: int | None) -> Any:
    text = f"Run {run_id} has no plan {fence:,} in the trace store."
    if before is not None and behind is not None:
        text += " Its neighbours are there, so the record of this one was lost or has been pruned."
    elif before is None and behind is None:
        text += " No plan of this run is stored; it may be mistyped, pruned, or from another server."
    else:
        nearest = before if before is not None else behind
        return message_page(
            "No such plan", text, link=(f"Go to plan {nearest:,} of this run", plan_path(run_id, nearest or 0))
        )
    return message_page("No such plan", text, link=("Go to the timeline", TIMELINE_PATH))
