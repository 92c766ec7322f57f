"""Who was served instead: each long wait of one request, what ran meanwhile and for whom."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboard.formatting import capital, count, milliseconds, words
from dashboard.markup import aria
from dashboard.pages.requests import ids
from dashboard.palette import kind_colour
from dashboard.queries.life import MAX_PLANS_PER_WAIT, Life, Meanwhile
from dashboard.routing import TIMELINE_PATH, path_with, plan_path, request_path
from dashboard.score import Row
from dashboard.stalls import cause
from dashboard.waits import FIRST, OPEN, PROMPT, RESUMED, Wait, threshold_ms

HEADINGS = {
    FIRST: "before its first plan",
    PROMPT: "between two chunks of its prompt",
    RESUMED: "set aside in the middle of its answer",
    OPEN: "without an end so far",
}


def waits_section(life: Life) -> list[Any]:
    """The heading and a card for each wait."""
    shortest = milliseconds(threshold_ms(life.lanes))
    if not life.waits:
        text = f"It never waited {shortest} or longer, which is as long as one of its own plans takes."
        return [html.H2("Who was served instead"), html.P(text, id=ids.WAITS, className="muted")]
    note = f"Times of {shortest} or longer on the device without a plan of its own"
    if life.all_waits > len(life.waits):
        note += f": the {len(life.waits)} longest of {life.all_waits:,}, in their order"
    cards = [_card(life, found) for found in life.waits]
    return [
        html.H2("Who was served instead while it waited"),
        html.P(f"{note}.", className="muted table-note"),
        html.Div(cards, id=ids.WAITS, className="wait-cards"),
    ]


def _card(life: Life, found: Meanwhile) -> Any:
    wait = found.wait
    return html.Section(
        [
            html.H3(f"{milliseconds(wait.ms)} {_place(life, wait)}", className="wait-heading"),
            html.P(capital(cause(life, found)) + "."),
            *([_groups(found)] if found.groups else []),
            *([_served(life.request["run_id"], found)] if found.served else []),
            html.P(_links(life.request["run_id"], found), className="wait-links"),
        ],
        className="card",
    )


def _place(life: Life, wait: Wait) -> str:
    if wait.kind == OPEN and life.request["finished_at"] is not None:
        return "until it ended"
    return HEADINGS.get(wait.kind, "between two rounds of its answer")


def _groups(found: Meanwhile) -> Any:
    rows = [
        html.Tr(
            [
                html.Th(
                    [
                        html.Span(className="dot", style={"background": kind_colour(row["kind"])}),
                        f" {words(row['kind'])}",
                    ],
                    scope="row",
                ),
                html.Td(words(row["reason"])),
                html.Td(count(row["plans"])),
                html.Td(milliseconds(row["ms"])),
                html.Td(_tokens(row["prompt_tokens"], row["output_tokens"])),
            ]
        )
        for row in found.groups
    ]
    rows += [_idle(found)] if found.idle_ms > 0 else []
    return _table(("What ran", "Reason", "Plans", "Time", "Tokens"), rows, "What ran meanwhile")


def _idle(found: Meanwhile) -> Any:
    """The rest of the wait."""
    name = html.Th("no plan that is counted" if found.capped else "no plan", scope="row", className="muted")
    return html.Tr([name, html.Td(), html.Td(), html.Td(milliseconds(found.idle_ms)), html.Td()], className="wait-idle")


def _served(run_id: str, found: Meanwhile) -> Any:
    rows = [
        html.Tr(
            [
                html.Th(
                    dcc.Link(row["request_id"], href=request_path(run_id, row["request_id"])),
                    scope="row",
                    className="wait-request",
                ),
                html.Td(words(row["role"])),
                html.Td(count(row["plans"])),
                html.Td(milliseconds(row["ms"])),
                html.Td(_tokens(row["prompt_tokens"], row["committed_tokens"])),
            ]
        )
        for row in found.served
    ]
    table = _table(("Who was served", "As", "Plans", "Time", "Tokens"), rows, "Requests that were served meanwhile")
    if not found.others:
        return table
    return html.Div([table, html.P(f"and {found.others:,} more", className="muted")])


def _tokens(prompt: int, output: int) -> str:
    parts = [f"{prompt:,} prompt"] if prompt else []
    return " + ".join([*parts, *([f"{output:,} output"] if output or not parts else [])])


def _table(headings: tuple[str, ...], rows: list[Any], label: str) -> Any:
    head = html.Thead(html.Tr([html.Th(heading, scope="col") for heading in headings]))
    table = html.Table([head, html.Tbody(rows)], className="wait-table digits", **aria(label=label))
    return html.Div(table, className="wide-frame")


def _links(run_id: str, found: Meanwhile) -> list[Any]:
    wait, parts = found.wait, []
    if wait.after is not None:
        parts += ["From the end of ", dcc.Link(f"plan {wait.after:,}", href=plan_path(run_id, wait.after)), " "]
    if wait.before is not None:
        parts += [f"{'to' if parts else 'To'} ", dcc.Link(f"plan {wait.before:,}", href=plan_path(run_id, wait.before))]
    span = {"since": wait.begins.isoformat(), "until": wait.ends.isoformat(), "run": run_id}
    parts += [" · " if parts else "", dcc.Link("the timeline of this wait", href=path_with(TIMELINE_PATH, **span))]
    parts += _rivals(run_id, found)
    if found.capped:
        parts.append(f" · only the first {MAX_PLANS_PER_WAIT:,} plans are counted")
    return parts


def _rivals(run_id: str, found: Meanwhile) -> list[Any]:
    """The decision in which serving this request lost against the plan that took the longest."""
    if not found.rivals:
        return []
    row: Row = max(found.rivals, key=lambda rival: rival["ms"])
    text = f" · among the runner-ups of {len(found.rivals):,} of {found.plans:,} plans, for example of "
    return [text, dcc.Link(f"plan {row['fence']:,}", href=plan_path(run_id, row["fence"]))]
