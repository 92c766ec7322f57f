"""A preview's result for people: side by side, the simulator's error, the sweep, the notes."""

from __future__ import annotations

from typing import Any

import click

from service.cli.output import print_table

Figures = dict[str, Any]
SIDES = ("recorded", "running", "draft")
WITHIN = 0.1
"""How far the simulator may be from what happened before its error is pointed out."""


def print_preview(status: dict[str, Any]) -> None:
    """Everything of a preview that is done."""
    result, request = status["result"], status["request"]
    window = result["window"]
    click.echo(
        f"{result['requests']:,} requests of run {window['run_id']}, {window['since']} to {window['until']}; "
        f"{result['plans']:,} plans simulated in {result['seconds']:.1f} s"
    )
    changed = {n: v for n, v in request["draft"].items() if request["running"].get(n) != v}
    click.echo(
        "draft: " + (", ".join(f"{n} {request['running'][n]} -> {v}" for n, v in changed.items()) or "no change")
    )
    click.echo()
    print_table(("", "happened", "in force, simulated", "draft, simulated", "draft against in force"), _rows(result))
    click.echo()
    click.echo("The simulator beside what happened, both under the policy in force:")
    for error in result["simulator_error"]:
        if error["ratio"] is not None:
            far = abs(error["ratio"] - 1) > WITHIN
            click.echo(f"  {error['name']:<20} {error['ratio']:.2f} of it{'  more than 10 % off' if far else ''}")
    if result["sweep"]:
        click.echo()
        _print_sweep(result)
    for note in result["notes"]:
        click.echo(f"- {note}")


def figure_rows(sides: dict[str, Figures]) -> list[dict[str, object]]:
    """One row for each figure: its words, and what each side has."""
    return [
        {"": words, **{name: _number(find(figures), unit) for name, figures in sides.items()}}
        for words, unit, find in _figures()
    ]


def _rows(result: dict[str, Any]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for words, unit, find in _figures():
        recorded, running, draft = (find(result[side]) for side in SIDES)
        change = "" if not running or draft is None else f"{100 * (draft / running - 1):+.1f} %"
        values = [_number(value, unit) for value in (recorded, running, draft)]
        names = ("happened", "in force, simulated", "draft, simulated")
        rows.append({"": words, **dict(zip(names, values, strict=True)), "draft against in force": change})
    return rows


def _figures() -> list[tuple[str, str, Any]]:
    def quantile(name: str, share: float) -> Any:
        return lambda figures: next((value for at, value in figures[name] if at == share), None)

    def plain(name: str) -> Any:
        return lambda figures: figures[name]

    return [
        ("first token, p50 ms", "", quantile("ttft_ms", 0.5)),
        ("first token, p99 ms", "", quantile("ttft_ms", 0.99)),
        ("time per further token, p50 ms", "", quantile("time_per_token_ms", 0.5)),
        ("time per further token, p99 ms", "", quantile("time_per_token_ms", 0.99)),
        ("inter-token, p99 ms", "", quantile("inter_token_ms", 0.99)),
        ("longest gap, ms", "", plain("largest_gap_ms")),
        ("output tokens/s", "", plain("tokens_per_s")),
        ("prompt tokens/s", "", plain("prompt_tokens_per_s")),
        ("fairness over requests (Jain)", "", plain("fairness_requests")),
        ("exploration, of device time", "%", plain("exploration_share")),
        ("device busy", "%", plain("busy_share")),
        ("answers completed", "", plain("completed")),
    ]


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit:
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def _print_sweep(result: dict[str, Any]) -> None:
    axes = [axis["coefficient"] for axis in result["sweep_axes"]]
    shown = [figure for figure in _figures() if figure[0].startswith(("first token", "time per", "output"))]
    rows = []
    for point in result["sweep"]:
        values = dict(zip(axes, map(str, point["values"]), strict=True))
        found = {words: _number(find(point["figures"]), unit) for words, unit, find in shown}
        rows.append({**values, **found, " ": "the draft" if point["is_draft"] else ""})
    print_table((*axes, *(words for words, _, _ in shown), " "), rows)
    click.echo()
