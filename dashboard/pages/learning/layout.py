"""What the Learning page consists of."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboard.figures.learning import credit_figure, depth_figure, exploring_figure, reliability_figure, spent_figure
from dashboard.formatting import milliseconds, percent, shape_words, utc, words
from dashboard.grids import grid, number, text
from dashboard.learned import Bound, bounds, by_depth, reliability
from dashboard.markup import aria
from dashboard.pages.learning import ids
from dashboard.pages.learning.words import (
    LEDGER_AIMS,
    LEDGER_WORDS,
    acceptance_words,
    bound_words,
    depth_words,
    discovery_words,
    reliability_words,
    timing_words,
)
from dashboard.palette import kind_colour
from dashboard.queries.learning import EXPLORING, MAX_EPISODES, Learning
from dashboard.routing import COSTS_PATH, LEARNING_PATH, TIMELINE_PATH, path_with, plan_path
from dashboard.run_select import run_select
from dashboard.score import Row
from dashboard.span import Span
from dashboard.span_picker import span_picker

GRAPH_CONFIG: Any = {"displayModeBar": False, "responsive": True, "showSendToCloud": False, "plotlyServerURL": ""}
MAX_GRID_ROWS = 12
GRAPH_COLUMNS = [
    text("shape", "Graph", width=220, cellRenderer="CostLink", tooltip="Opens its costs"),
    text("at", "Discovered, UTC", width=168, cellClass="digits", tooltip="The minute of its first measurement"),
    number("discovery_ms", "It took", "milliseconds", width=100, tooltip="Device time of its discovery"),
    number("plans", "Ordinary plans", "count", width=142, tooltip="Chosen for ordinary work in this span"),
    number("ordinary_ms", "Ordinary time", "milliseconds", width=132),
    number("share", "Of all ordinary", "percent", width=138, tooltip="Its share of the ordinary device time"),
]
EPISODE_COLUMNS = [
    text("plan", "Plan", width=92, cellRenderer="PlanLink", cellClass="digits", tooltip="Fence; opens the plan"),
    text("opened", "Opened, UTC", width=168, cellClass="digits"),
    text("ledger", "Ledger", width=150),
    text("shape", "Graph", width=180, cellRenderer="KindCell"),
    number("credit_ms", "Credit before", "milliseconds", width=116),
    number("charged_ms", "Charged", "milliseconds", width=98, tooltip="What its ledger paid; empty: not closed yet"),
    number("selected_cost_ms", "Predicted", "milliseconds", width=100),
    number("device_ms", "Observed", "milliseconds", width=98),
    number("offered_tokens", "Drafts", "count", width=84, tooltip="Drafts verified"),
    number("accepted_tokens", "Right", "count", width=78, tooltip="Drafts that were right"),
    text("outcome", "Outcome", width=106),
]


def layout(found: Learning, span: Span, search: str) -> Any:
    """The page for what was read."""
    chosen = None if found.run is None else found.run["run_id"]
    title = html.Div(
        [
            html.Div([html.H1("Learning"), html.Div(_subtitle(found), className="subtitle")]),
            html.Div(className="spacer"),
            span_picker(span, LEARNING_PATH, search),
        ],
        className="title-row",
    )
    runs = run_select(ids.RUN, ids.RUN_ASKED, found.runs, chosen, "Ledgers and estimates begin anew with each run")
    if found.newest is None:
        return html.Div([title, *runs, _empty(found, span)])
    return html.Div(
        [
            title,
            *runs,
            *_drafts(found, span),
            *_ledgers(found),
            *_cost(found, span),
            *_bought(found, span),
            *_episodes(found),
        ]
    )


def _subtitle(found: Learning) -> str:
    if found.run is None:
        return "How drafts fare, what exploration costs, and what it bought"
    return f"{found.run['model']} on {found.run['device']}"


def _empty(found: Learning, span: Span) -> Any:
    if found.run is None:
        told = f"No engine had run before the end of {span.words}, so nothing has been learned yet."
    else:
        told = "This run has made no plan yet. It learns from plans: send a request, and this page fills."
    return html.Section(
        [html.P(told), html.P(dcc.Link("Go to the timeline", href=TIMELINE_PATH))],
        id=ids.EMPTY,
        className="card",
        role="status",
    )


def _drafts(found: Learning, span: Span) -> list[Any]:
    heading = html.H2("How often drafts are right")
    if not found.rounds:
        told = (
            f"No drafts were verified in {span.words}. Speculation is off unless the server is started with "
            "--draft-tokens, and drafts are left out where they do not pay."
        )
        return [heading, html.Section(html.P(told), className="card", id=ids.DEPTH)]
    return [
        heading,
        html.Div(
            [
                _card("Acceptance by depth", depth_words(found), depth_figure(by_depth(found.rounds)), ids.DEPTH),
                _card(
                    "Forecast against verified",
                    reliability_words(found),
                    reliability_figure(reliability(found.rounds)),
                    ids.RELIABILITY,
                ),
            ],
            className="learning-pair",
        ),
    ]


def _card(title: str, told: str, figure: dict[str, Any], graph_id: str) -> Any:
    graph = dcc.Graph(id=graph_id, figure=figure, config=GRAPH_CONFIG)
    return html.Section(
        [
            html.H3(title),
            html.P(told, className="digits"),
            html.Div(graph, role="img", **aria(label=f"{title}. {told}")),
        ],
        className="card",
    )


def _ledgers(found: Learning) -> list[Any]:
    limits = bounds(found.newest, found.episodes)
    parts: list[Any] = [
        html.H2("What exploration may cost"),
        html.P(
            "Each ledger earns a fixed share of ordinary device time, and a full one may pay for one probe. So what it "
            "has been charged since the run began stays within its share and one probe. A probe is charged the larger "
            "of its device time and its wall time, so charges add up to more than the device time under “What it did "
            "cost”.",
            className="muted table-note",
        ),
        html.Div([_meter(bound) for bound in limits], id=ids.BOUNDS, className="learning-pair"),
    ]
    if found.points:
        charts = [
            _card(
                "Charged against the bound",
                "Solid: charged, the larger of device and wall time of each probe. Dotted: the share of ordinary time "
                "so far, and the largest probe.",
                spent_figure(found.points, limits),
                ids.SPENT,
            ),
            _card(
                "Credit",
                "What each ledger could pay with at the time; below zero it pays off its last probe.",
                credit_figure(found.points),
                ids.CREDIT,
            ),
        ]
        parts.append(html.Div(charts, className="learning-pair learning-below"))
    return parts


def _meter(bound: Bound) -> Any:
    share = min(1.0, bound.used)
    bar = html.Div(
        html.Div(className=f"meter-fill ledger-{bound.ledger}", style={"width": f"{share * 100:.1f}%"}),
        className="meter",
        role="meter",
        **aria(
            label=f"{LEDGER_WORDS[bound.ledger]}: charged of what is allowed",
            valuemin="0",
            valuemax="100",
            valuenow=f"{share * 100:.0f}",
        ),
    )
    head = html.Div(
        [html.H3(LEDGER_WORDS[bound.ledger]), html.Span(f"{percent(bound.used)} of its bound", className="digits")],
        className="meter-head",
    )
    over = " This is above the bound: probes before this span, which may have been larger, are not looked at."
    told = bound_words(bound) + (over if bound.used > 1 else "")
    aim = html.P(f"It {LEDGER_AIMS[bound.ledger]}.", className="muted")
    return html.Section([head, bar, html.P(told, className="digits"), aim], className="card")


def _cost(found: Learning, span: Span) -> list[Any]:
    total = sum(row["ms"] for row in found.minutes)
    if not total:
        return []
    spent = {reason: sum(row["ms"] for row in found.minutes if row["reason"] == reason) for reason in EXPLORING}
    parts = [f"{words(reason)} {milliseconds(ms)} ({percent(ms / total)})" for reason, ms in spent.items() if ms]
    told = f"Of {milliseconds(total)} of device time (wall time is not counted here) in {span.words}: "
    told += (", ".join(parts) or "nothing") + "."
    if not parts:
        return [html.H2("What it did cost"), html.Section(html.P(told), className="card", id=ids.EXPLORING)]
    minutes = f"Each bar is {found.bin_s / 60:.0f} min" if found.bin_s >= 90 else "Each bar is a minute"
    return [
        html.H2("What it did cost"),
        _card(
            "Share of device time that exploring took",
            f"{told} {minutes}.",
            exploring_figure(found.minutes),
            ids.EXPLORING,
        ),
    ]


def _bought(found: Learning, span: Span) -> list[Any]:
    items = [
        ("Discovery", discovery_words(found)),
        ("Timing refresh", timing_words(found.episodes)),
        ("Acceptance learning", acceptance_words(found.episodes)),
    ]
    told: list[Any] = [
        html.Dl([html.Div([html.Dt(name), html.Dd(words_)]) for name, words_ in items], className="bought digits")
    ]
    if len(found.episodes) >= MAX_EPISODES:
        note = f"Refreshes and learning are counted over the newest {MAX_EPISODES} probes of this span."
        told.append(html.P(note, className="muted table-note"))
    parts: list[Any] = [html.H2("What it bought"), html.Section(told, id=ids.BOUGHT, className="card")]
    if found.graphs:
        rows = [graph_row(row, found, span) for row in found.graphs]
        height = 420 if len(rows) > MAX_GRID_ROWS else None
        label = "Graphs that were discovered, by their ordinary time"
        parts += [html.H3("Graphs that were discovered", className="learning-heading")]
        parts += [grid(ids.GRAPHS, GRAPH_COLUMNS, rows, height_px=height, row_id="id", label=label)]
    return parts


def graph_row(row: Row, found: Learning, span: Span) -> dict[str, Any]:
    """A row of the table of discovered graphs."""
    run = None if found.run is None else found.run["run_id"]
    return {
        "id": f"{row['shape']}/{row['allocation']}/{row['speculation_enabled']}",
        "shape": row["shape"],
        "colour": kind_colour(row["kind"]),
        "href": path_with(COSTS_PATH, run=run, graph=row["shape"], **span.query),
        "at": utc(row["at"]).removesuffix(":00 UTC"),
        "share": row["ordinary_ms"] / found.ordinary_ms if found.ordinary_ms else None,
        **{name: row[name] for name in ("discovery_ms", "plans", "ordinary_ms")},
    }


def _episodes(found: Learning) -> list[Any]:
    heading = html.H2("Probes")
    if not found.episodes:
        told = "No probe was paid for in this span: no ledger was full while there was something to learn."
        return [heading, html.P(told, className="muted", id=ids.EPISODES)]
    rows = [episode_row(row) for row in found.episodes]
    height = 420 if len(rows) > MAX_GRID_ROWS else None
    note = f"The newest {MAX_EPISODES}." if len(rows) >= MAX_EPISODES else f"{len(rows):,}, newest first."
    table = grid(ids.EPISODES, EPISODE_COLUMNS, rows, height_px=height, row_id="id", label="Probes, newest first")
    return [heading, html.P(note, className="muted table-note"), table]


def episode_row(row: Row) -> dict[str, Any]:
    """A row of the table of probes."""
    fields = ("charged_ms", "selected_cost_ms", "device_ms", "outcome")
    drafts = {name: row[name] if row["offered_tokens"] else None for name in ("offered_tokens", "accepted_tokens")}
    return {
        "id": f"{row['run_id']}/{row['fence']}",
        "plan": f"{row['fence']:,}",
        "href": plan_path(row["run_id"], row["fence"]),
        "opened": utc(row["committed_at"]).removesuffix(" UTC"),
        "ledger": LEDGER_WORDS[row["ledger"]],
        "shape": shape_words(row),
        "colour": kind_colour(row["kind"]),
        "credit_ms": row["exploration_credit_ms"],
        **drafts,
        **{name: row[name] for name in fields},
    }
