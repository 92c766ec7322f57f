"""Whether a decision comes out the same again: a button, its verdict in words, and the ledgers behind the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from dashboard.formatting import count, milliseconds
from dashboard.pages.plan import ids
from dashboard.score import Row
from service.why.verdicts import DIFFERENT, NOT_REPLAYABLE, SAME, Verdict

ASK = "Re-execute this decision"
WORKING = (
    "Re-executing from the checkpoint before this plan, in a process that gives way to the server. "
    "This takes some seconds…"
)
LEDGER_NAMES = {
    "timing_credit_ms": "Timing: credit",
    "timing_spent_ms": "Timing: spent",
    "timing_ordinary_ms": "Timing: ordinary time",
    "acceptance_credit_ms": "Acceptance: credit",
    "acceptance_spent_ms": "Acceptance: spent",
    "acceptance_ordinary_ms": "Acceptance: ordinary time",
    "discovery_ms": "Discovery so far",
}


def section(plan: Row) -> list[Any]:
    """What is there before anybody asks."""
    return [
        html.H2("Does it come out the same?"),
        html.Div(
            [
                dcc.Store(id=ids.KEY, data={"run_id": plan["run_id"], "fence": plan["fence"]}),
                html.Div(
                    [
                        html.Button(ASK, id=ids.REEXECUTE, type="button", className="plan-button"),
                        html.Span(id=ids.WORKING, className="muted", role="status"),
                    ],
                    className="plan-ask",
                ),
                html.Div(
                    html.P(
                        "The scheduler is a pure state machine, and the trace holds every call that changed it. "
                        "Re-executing makes the decision again from them and compares every number.",
                        className="muted",
                    ),
                    id=ids.VERDICT,
                    role="status",
                ),
            ],
            className="card plan-verdict",
        ),
    ]


def verdict_lines(verdict: Verdict, before: Mapping[str, float | None]) -> list[Any]:
    """The verdict in words; `before`: the plan's own ledger columns."""
    if verdict.result == SAME:
        text = (
            "Re-executed: the same decision, bit for bit (shape, lanes, score, runner-ups), from the checkpoint behind "
            f"plan {count(verdict.from_fence)}; {_decisions(verdict)}.{_versions(verdict)}"
        )
        return [html.P(text, className="verdict good"), *_ledgers(verdict, before)]
    if verdict.result == DIFFERENT:
        more = verdict.difference_count - len(verdict.differences)
        lines = [*verdict.differences, *([f"and {more} more"] if more > 0 else [])]
        text = (
            f"Re-executed: it came out differently, from the checkpoint behind plan {count(verdict.from_fence)}; "
            f"{_decisions(verdict)}.{_versions(verdict)}"
        )
        return [html.P(text, className="verdict bad"), html.Ul([html.Li(line) for line in lines])]
    told = "cannot be re-executed" if verdict.result == NOT_REPLAYABLE else "was not re-executed"
    return [html.P(f"It {told}: {verdict.why}.{_versions(verdict)}", className="verdict unknown")]


def _decisions(verdict: Verdict) -> str:
    return f"{count(verdict.plans)} decision{' was' if verdict.plans == 1 else 's were'} replayed"


def _versions(verdict: Verdict) -> str:
    if not verdict.recorded_by or verdict.recorded_by == verdict.replayed_by:
        return ""
    return f" Recorded by version {verdict.recorded_by}, replayed by {verdict.replayed_by}."


def _ledgers(verdict: Verdict, before: Mapping[str, float | None]) -> list[Any]:
    after = verdict.ledgers_after
    if after is None:
        return [html.P("The ledgers behind its completion are not known yet.", className="muted")]
    known = {
        name: (before.get(column), after[column])
        for column, name in LEDGER_NAMES.items()
        if column in after and (after[column] or before.get(column))
    }
    if not known:
        return [html.P("The exploration ledgers are empty before and behind it.", className="muted")]
    rows = [
        html.Tr([html.Th(name, scope="row"), *(html.Td(milliseconds(value)) for value in values)])
        for name, values in known.items()
    ]
    head = html.Tr([html.Th(text, scope="col") for text in ("Exploration ledgers", "before", "behind it")])
    return [html.Table([html.Thead(head), html.Tbody(rows)], className="plan-ledgers digits")]
