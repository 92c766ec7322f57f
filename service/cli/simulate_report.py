"""What `helios simulate` shows and writes: tables, JSON and a CSV of requests."""

from __future__ import annotations

import csv
import hashlib
import json
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from scheduler.policy import PolicyConfig
from scheduler.simulation.acceptance import Survival
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.results import Outcome
from service.cli.output import print_table

SHOWN_DEPTH = 8
QUANTITIES = {
    "ttft_ms": "time to first token, ms",
    "gap_ms": "gap between outputs, ms",
    "time_per_output_token_ms": "time per output token, ms",
    "queue_ms": "wait for a slot, ms",
}
REQUEST_COLUMNS = (
    "index", "client", "prompt_tokens", "cached_tokens", "output_tokens", "arrived_ns", "admitted_ns", "first_ns",
    "finished_ns", "largest_gap_ns",
)  # fmt: skip


def file_identity(path: pathlib.Path) -> dict[str, str]:
    """Name and digest of an input file."""
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def survival_inputs(survival: Survival) -> dict[str, Any]:
    """The acceptance curve that was used, and how much of it the file states."""
    curve = [round(value, 6) for value in survival.to_depth(SHOWN_DEPTH)]
    return {"source": survival.source, "measured_depth": survival.measured_depth, "probabilities": curve}


def prepare_folder(folder: pathlib.Path) -> None:
    """Makes `folder` and tries to write there, so that a long run does not end in vain. Raises SimulationError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SimulationError(f"--out {folder} cannot be written to: {error.strerror}") from None


def write_results(folder: pathlib.Path, document: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    """`simulation.json` and `requests.csv` in `folder`."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "simulation.json").write_text(text + "\n", encoding="utf-8")
    with (folder / "requests.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(REQUEST_COLUMNS)
        for outcome in outcomes:
            writer.writerow([getattr(outcome, column) for column in REQUEST_COLUMNS])


def print_report(document: dict[str, Any], wall_s: float) -> None:
    """The figures for people; wall time is shown here only, so that the JSON stays the same."""
    results = document["results"]
    click.echo(f"policy: {policy_words(document['inputs']['policy'])}")
    click.echo(f"limits: {_limits(document)}\n")
    shares = ("p50", "p90", "p99", "max")
    rows = [
        {"": words, **{share: _number(results[name][share]) for share in shares}} for name, words in QUANTITIES.items()
    ]
    print_table(("", *shares), rows)
    click.echo()
    print_table(("", "value"), [{"": name, "value": value} for name, value in _single_figures(results)])
    click.echo()
    for title, part in (("kind", "launches"), ("reason", "reasons")):
        columns = (title, "launches", "device s")
        rows = [dict(zip(columns, _tally_row(*item), strict=True)) for item in results[part].items()]
        print_table(columns, rows)
        click.echo()
    for line in _notes(document):
        click.echo(line)
    plans = results["plans"]
    click.echo(f"{plans:,} plans in {wall_s:.1f} s of wall time: {plans / wall_s:,.0f} a second")


def policy_words(policy: str | Mapping[str, Any]) -> str:
    """A policy of a document's inputs by its name, or by what it has otherwise than `balanced`."""
    if isinstance(policy, str):
        return f"{policy}, a baseline"
    config = PolicyConfig().merged(policy)
    usual = PolicyConfig().as_dict()
    changed = ", ".join(f"{name}={value}" for name, value in config.as_dict().items() if value != usual[name])
    return config.preset_name or f"balanced with {changed}"


def _limits(document: dict[str, Any]) -> str:
    """What bounded the machine, and what a good request has to keep to."""
    inputs, goodput = document["inputs"], document["results"]["goodput"]
    depth = 1 if isinstance(inputs["policy"], str) else inputs["queue_depth"]
    words = [f"{inputs['slots']:,} request slots", f"{depth} frame{'s' * (depth > 1)} in flight"]
    words.append(f"{inputs['max_context']:,} tokens of context")
    if inputs["draft_tokens"]:
        words.append(f"{inputs['draft_tokens']} draft tokens")
    for name, what in (("ttft_limit_ms", "first token"), ("gap_limit_ms", "gaps")):
        if goodput[name] is not None:
            words.append(f"{what} within {goodput[name]:g} ms")
    return ", ".join(words)


def _single_figures(results: dict[str, Any]) -> list[tuple[str, str]]:
    requests, throughput, goodput = results["requests"], results["throughput"], results["goodput"]
    figures = [
        ("requests finished", f"{requests['finished']:,}"),
        ("refused, truncated, left", f"{requests['refused']:,}, {requests['truncated']:,}, {requests['left']:,}"),
        ("simulated time, s", _number(results["span_ms"] / 1e3)),
        ("prompt tokens/s", _number(throughput["prompt_tokens_per_s"])),
        ("of these computed", _number(throughput["computed_prompt_tokens_per_s"])),
        ("output tokens/s", _number(throughput["output_tokens_per_s"])),
        ("requests/s", _number(throughput["requests_per_s"])),
        ("device busy", _percent(results["busy_share"])),
        ("exploration, of device time", _percent(results["exploration_share"])),
        ("lanes per plan", _number(results["lanes_per_plan"])),
        ("fairness over requests (Jain)", _number(results["fairness"]["requests"])),
    ]
    if results["fairness"]["clients"] is not None:
        figures.append(("fairness over clients (Jain)", _number(results["fairness"]["clients"])))
    if goodput["ttft_limit_ms"] is not None or goodput["gap_limit_ms"] is not None:
        figures.append(("good requests/s", f"{_number(goodput['requests_per_s'])} ({_percent(goodput['share'])})"))
    if results["speculation"]["offered_tokens"]:
        figures.append(("drafts accepted", _percent(results["speculation"]["accepted_share"])))
    return figures


def _notes(document: dict[str, Any]) -> Iterator[str]:
    rows, survival = document["catalog_rows"], document["inputs"]["survival"]
    if rows is not None:
        yield (
            f"catalog: {rows['loaded']} graphs loaded; left out: {rows['other_mode']} of another mode or depth, "
            f"{rows['tree_verification']} for trees, {rows['single_mixed']} mixed with one row, {rows['beyond_slots']} "
            f"beyond the slots; {rows['mixed_counts_one_more']} mixed graphs were measured with one decoder more"
        )
    if survival is not None and survival["measured_depth"]:
        yield f"acceptance: {survival['source']}; measured to depth {survival['measured_depth']}, extended beyond"
    elif survival is not None:
        yield f"acceptance: {survival['source']}; a fitted curve"
    if document["empty_outputs_raised"]:
        yield f"{document['empty_outputs_raised']} requests for no output token were given one"


def _tally_row(name: str, tally: dict[str, Any]) -> tuple[str, str, str]:
    return name, f"{tally['launches']:,}", _number(tally["device_ms"] / 1e3)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
