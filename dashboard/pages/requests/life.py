"""One request's page: why it waited, its phases, its plans, its gaps, and who was served meanwhile.

It is complete when it is sent.
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from dashboard.figures.requests import gaps_figure, life_figure, phases_of
from dashboard.formatting import count, milliseconds, shape_words, utc, words
from dashboard.grids import grid, number, text
from dashboard.markup import aria
from dashboard.pages.requests import ids
from dashboard.pages.requests.listing import FINISH_WORDS
from dashboard.pages.requests.waits import waits_section
from dashboard.palette import kind_colour
from dashboard.queries.life import MAX_LANES, Life
from dashboard.queries.requests import elapsed_ms
from dashboard.routing import POLICY_PATH, REQUESTS_PATH, TIMELINE_PATH, path_with, plan_path, timeline_path
from dashboard.score import Row
from dashboard.stalls import output_gaps, stall_sentence
from dashboard.waits import FIRST, OPEN
from service.store.queries import RUNNING

GRAPH_CONFIG: Any = {"displayModeBar": False, "responsive": True, "showSendToCloud": False, "plotlyServerURL": ""}
MAX_ROWS = 2000
GAPS_NOTE = (
    "From one hand-over of output to the next, as a reader of its stream sees it: a plan of its own and whatever came "
    "before it. The waits above are shorter: they are times on the device between two plans of its own."
)
GRID_HEIGHT_PX = 420
MAX_GRID_ROWS = 12
COLUMNS = [
    text("plan", "Plan", width=86, cellRenderer="PlanLink", cellClass="digits", tooltip="Fence; opens the plan"),
    text("shape", "Graph", width=204, cellRenderer="KindCell"),
    text("role", "Role", width=84),
    number("at_ms", "Started after", "milliseconds", width=116, tooltip="Arrival to its start on the device"),
    number("gap_ms", "Gap before", "milliseconds", width=108, tooltip="Since this request's plan before it ended"),
    number("device_ms", "Device", "milliseconds", width=92, tooltip="Device time, shared by all lanes"),
    number("prompt_tokens", "Prompt", "count", width=84, tooltip="Prompt tokens consumed for this request"),
    number("committed_tokens", "Output", "count", width=84, tooltip="Output tokens committed to this request"),
    number("accepted_tokens", "Accepted", "count", width=96, tooltip="Drafts that were right, of those verified"),
    number("active_rows", "Lanes", "count", width=78, tooltip="Requests that shared the graph"),
    text("reason", "Reason", width=108),
    text("outcome", "Outcome", width=106),
    number("policy_version", "Policy", "count", width=78, tooltip="Policy version in force"),
]


def life_page(life: Life) -> Any:
    """The page of one request."""
    request = life.request
    return html.Article(
        [
            dcc.Store(id=ids.OPENED),
            _title(request),
            html.P(stall_sentence(life), id=ids.SENTENCE, className="headline"),
            *_notes(life),
            html.H2("Where its time went"),
            html.Section([_phase_list(request), *_picture(life)], className="card"),
            *waits_section(life),
            *_gaps(life),
            html.H2("The plans that served it"),
            *_plans(life),
            html.H2("All numbers"),
            html.Div([_group(*group) for group in number_groups(life)], className="number-groups"),
        ]
    )


def _title(request: Row) -> Any:
    end = request["finished_at"]
    finish = FINISH_WORDS.get(request["finish_reason"] or RUNNING, str(request["finish_reason"]))
    whole_ms = elapsed_ms(request["arrived_at"], end)
    subtitle = f"arrived {utc(request['arrived_at'])} · {finish}"
    subtitle += f" after {milliseconds(whole_ms)}" if whole_ms is not None else ""
    around = {
        "since": (request["arrived_at"] - dt.timedelta(milliseconds=100)).isoformat(),
        "until": ((end or dt.datetime.now(dt.UTC)) + dt.timedelta(milliseconds=100)).isoformat(),
    }
    return html.Div(
        [
            html.Div(
                [
                    html.Div(
                        [dcc.Link("Requests", href=REQUESTS_PATH), f" / run {request['run_id']}"], className="crumbs"
                    ),
                    html.H1(f"Request {request['request_id']}", className="request-name"),
                    html.Div(subtitle, className="subtitle"),
                ]
            ),
            html.Div(className="spacer"),
            html.Nav(
                [
                    dcc.Link(
                        "Its plans in the timeline", href=timeline_path(request=request["request_id"]), className="step"
                    ),
                    dcc.Link("The timeline of that time", href=path_with(TIMELINE_PATH, **around), className="step"),
                ],
                className="steps request-links",
                **aria(label="The request in the timeline"),
            ),
        ],
        className="title-row",
    )


def _notes(life: Life) -> list[Any]:
    request, notes = life.request, []
    if request["error"]:
        notes.append(f"It failed: {request['error']}")
    if request["preemptions"]:
        times = "once" if request["preemptions"] == 1 else f"{request['preemptions']:,} times"
        notes.append(f"It was set aside {times}: others needed its memory, and it was read in again later.")
    if request["cached_tokens"]:
        notes.append(
            f"{request['cached_tokens']:,} of its {request['prompt_tokens']:,} prompt tokens were in the prefix cache."
        )
    if life.more_lanes:
        notes.append(f"More than {MAX_LANES:,} plans served it; only the first {MAX_LANES:,} are looked at here.")
    return [html.P(note, className="aside") for note in notes]


def _phase_list(request: Row) -> Any:
    """The phases as words beside their colours: what the picture shows, for whoever cannot see it."""
    found = phases_of(request)
    if not found:
        return html.P(
            "Its phases are recorded when it ends. What has happened so far is below.", id=ids.PHASES, className="muted"
        )
    total = sum(length for _, _, length in found)
    entries = []
    for name, colour, length in found:
        share = f" ({length / total * 100:.0f} %)" if total else ""
        dot = html.Span(className="dot", style={"background": colour})
        entries.append(html.Li([dot, html.Span(name, className="muted"), f" {milliseconds(length)}{share}"]))
    return html.Ul(entries, id=ids.PHASES, className="phase-list digits", **aria(label="Phases of the request"))


def _picture(life: Life) -> list[Any]:
    if not life.lanes and not life.waits:
        return []
    spans = [
        (
            (found.wait.start_ns - life.arrived_ns) / 1e6,
            found.wait.ms,
            f"waited {milliseconds(found.wait.ms)}" + ("" if found.wait.kind not in (FIRST, OPEN) else " to be served"),
        )
        for found in life.waits
    ]
    figure = life_figure(life.request, life.lanes, spans, life.arrived_ns)
    label = f"Phases of the request, {len(life.lanes):,} plans that served it and its longest waits, over time"
    return [
        html.Div(
            dcc.Graph(id=ids.LIFE, figure=figure, config=GRAPH_CONFIG, className="timeline-graph"),
            role="img",
            **aria(label=label),
        ),
        html.P(
            "Select a bar of its plans to open the plan; drag to zoom, double-click to see all of it.",
            className="legend-note",
        ),
    ]


def _gaps(life: Life) -> list[Any]:
    gaps = output_gaps(life.lanes)
    if not gaps:
        return []
    lane, worst_ms = max(gaps, key=lambda gap: gap[1])
    middle = statistics.median(gap for _, gap in gaps)
    points = [((one["published_ns"] - life.arrived_ns) / 1e6, gap, one["fence"]) for one, gap in gaps]
    told = (
        f"{count(len(gaps))} gaps between outputs, half of them up to {milliseconds(middle)}; the worst, "
        f"{milliseconds(worst_ms)}, came before the output of "
    )
    link = dcc.Link(f"plan {lane['fence']:,}", href=plan_path(lane["run_id"], lane["fence"]))
    graph = dcc.Graph(id=ids.GAPS, figure=gaps_figure(points), config=GRAPH_CONFIG)
    return [
        html.H2("Gaps between its outputs"),
        html.P(GAPS_NOTE, className="muted table-note"),
        html.Section(
            [html.P([told, link, "."]), html.Div(graph, role="img", **aria(label=f"{told}plan {lane['fence']}"))],
            className="card",
        ),
    ]


def _plans(life: Life) -> list[Any]:
    if not life.lanes:
        return [html.P("No plan that served it is stored: it was not served, or its plans were pruned.", id=ids.PLANS)]
    rows = plan_rows(life)
    height = None if len(rows) <= MAX_GRID_ROWS else GRID_HEIGHT_PX
    note = f"The first {MAX_ROWS:,} of {len(life.lanes):,} plans." if len(life.lanes) > MAX_ROWS else None
    table = grid(ids.PLANS, COLUMNS, rows[:MAX_ROWS], height_px=height, row_id="id", label="Plans that served it")
    return [table] if note is None else [html.P(note, className="muted table-note"), table]


def plan_rows(life: Life) -> list[dict[str, Any]]:
    """Rows of the table, one for each lane, in the order of their plans."""
    rows: list[dict[str, Any]] = []
    free_ns = None
    for lane in life.lanes:
        start_ns = lane["started_ns"] if lane["started_ns"] is not None else lane["committed_ns"]
        rows.append(
            {
                "id": f"{lane['fence']}/{lane['lane']}",
                "plan": f"{lane['fence']:,}",
                "href": plan_path(lane["run_id"], lane["fence"]),
                "shape": shape_words(lane),
                "colour": kind_colour(lane["kind"]),
                "at_ms": (start_ns - life.arrived_ns) / 1e6,
                "gap_ms": None if free_ns is None else max(0.0, (start_ns - free_ns) / 1e6),
                "reason": words(lane["reason"]),
                "outcome": words(lane["outcome"]),
                "accepted_tokens": lane["accepted_tokens"] if lane["offered_tokens"] else None,
                **{
                    name: lane[name]
                    for name in (
                        *("role", "device_ms", "prompt_tokens", "committed_tokens", "active_rows"),
                        "policy_version",
                    )
                },
            }
        )
        if lane["completed_ns"] is not None:
            free_ns = lane["completed_ns"]
    return rows


def number_groups(life: Life) -> list[tuple[str, list[tuple[str, Any]]]]:
    """(heading, [(name, value)]) of the request."""
    request = life.request
    versions = sorted({lane["policy_version"] for lane in life.lanes})
    policy: Any = "–"
    if versions:
        shown = ", ".join(str(version) for version in versions[:6]) + (" and more" if len(versions) > 6 else "")
        policy = dcc.Link(shown, href=POLICY_PATH)
    return [
        (
            "Request",
            [
                ("Model", request["model"]),
                ("Prompt tokens", count(request["prompt_tokens"])),
                ("Found in the prefix cache", count(request["cached_tokens"])),
                ("Output tokens", count(request["output_tokens"])),
                ("Most output tokens", count(request["max_tokens"])),
                ("Set aside", f"{request['preemptions']:,} ×"),
            ],
        ),
        (
            "Times",
            [
                ("Arrived", utc(request["arrived_at"])),
                ("Let in after", milliseconds(elapsed_ms(request["arrived_at"], request["admitted_at"]))),
                ("First output after", milliseconds(elapsed_ms(request["arrived_at"], request["first_output_at"]))),
                ("Ended after", milliseconds(elapsed_ms(request["arrived_at"], request["finished_at"]))),
            ],
        ),
        (
            "Names",
            [
                ("Policy versions in force", policy),
                ("Trace id", request["trace_id"] or "–"),
                ("Prefix key", request["prefix_key"] or "–"),
            ],
        ),
    ]


def _group(heading: str, pairs: Sequence[tuple[str, Any]]) -> Any:
    items = [html.Div([html.Dt(name), html.Dd(value)]) for name, value in pairs]
    return html.Section([html.H3(heading), html.Dl(items)], className="card number-group")
