"""`helios simulate`."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from scheduler.capacity import MIXED_PROMPT_ROWS_MAX
from scheduler.errors import InvalidPolicy, SchedulerError
from scheduler.policy import NEWCOMER_MEMORIES, PRESET_FORMS, PRESETS, PolicyConfig
from scheduler.shapes import Allocation
from scheduler.simulation.acceptance import parse_acceptance
from scheduler.simulation.baselines.naming import Baseline
from scheduler.simulation.durations import Disturbance, HostCosts
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.experiment import (
    BASELINES,
    Experiment,
    Finished,
    deepest_drafts,
    policy_by_name,
    policy_from_document,
)
from scheduler.simulation.grid import GraphGrid
from scheduler.simulation.machine import MachineSettings
from scheduler.simulation.measured import MeasuredTable, parse_catalog
from scheduler.simulation.metrics import Limits, summary
from scheduler.simulation.workload import Workload, parse_arrivals
from service.cli.output import Command, Function, fail, json_option, prepare_kernels, print_json, progress_bar
from service.cli.simulate_recorded import check_options, print_recorded, recorded_options, simulate_recorded
from service.cli.simulate_report import (
    file_identity,
    prepare_folder,
    print_report,
    survival_inputs,
    write_results,
)
from service.cli.values import FiniteRange

FILE = click.Path(exists=True, dir_okay=False, path_type=pathlib.Path)
HOST_MS = FiniteRange(0, 1e6)
LIMIT_MS = FiniteRange(0)
NEED_ACCEPTANCE = ("acceptance_row", "allocation", "heterogeneity", "confidence_spread")


def input_options(function: Function) -> Function:
    """What is simulated."""
    for option in reversed(
        (
            click.option(
                "--arrivals", type=FILE, help="CSV: time_s, prompt_tokens, output_tokens; also patience_s, ..."
            ),
            click.option("--catalog", type=FILE, help="CSV of measured graphs: kind, B, D, W, P, ..."),
            click.option("--acceptance", type=FILE, help="CSV with pos1, pos2, ... or fit_p1 and fit_q."),
            click.option("--acceptance-row", default="", metavar="WORDS", help="Take its first row with these words."),
            click.option(
                "--policy",
                default="balanced",
                show_default=True,
                help=f"{', '.join(sorted(PRESETS))}; a baseline: {BASELINES}; or a JSON file of coefficients.",
            ),
            click.option("--newcomer-memory", type=click.Choice(NEWCOMER_MEMORIES), help="Overrides the policy's."),
            click.option("--rate-scale", type=float, default=1.0, show_default=True, help="2: twice the arrival rate."),
            click.option("--requests", type=click.IntRange(1), help="Only the first so many requests."),
            click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of all luck."),
        )
    ):
        function = option(function)
    return function


def machine_options(function: Function) -> Function:
    """What it is simulated on."""
    for option in reversed(
        (
            click.option("--slots", type=click.IntRange(1, 4096), default=64, show_default=True, help="Request slots."),
            click.option("--queue-depth", type=click.IntRange(1, 2), default=2, show_default=True, help="Frame slots."),
            click.option("--draft-tokens", type=click.IntRange(0, 63), help="Deepest draft.  [default: the catalog's]"),
            click.option(
                "--allocation",
                type=click.Choice(["host", "device"]),
                default="host",
                show_default=True,
                help="Who divides draft rows.",
            ),
            click.option(
                "--measured/--cold",
                default=True,
                show_default=True,
                help="Start with every graph measured once, or none.",
            ),
            click.option("--unpadded", is_flag=True, help="Steps take the time of their exact size, interpolated."),
            click.option(
                "--max-context", type=click.IntRange(2), default=131_072, show_default=True, help="In tokens."
            ),
            click.option(
                "--prefix-cache", type=click.IntRange(0), help="Tokens of finished requests to keep.  [default: all]"
            ),
            click.option("--host-ms", type=HOST_MS, default=0.25, show_default=True, help="Host time of a step."),
            click.option(
                "--draft-host-ms",
                type=HOST_MS,
                default=0.9,
                show_default=True,
                help="Of a step with drafts, instead.",
            ),
            click.option(
                "--draft-token-host-ms", type=HOST_MS, default=0.14, show_default=True, help="More for each draft."
            ),
            click.option("--noise", type=FiniteRange(0, 2), default=0.0, help="Standard deviation of log durations."),
            click.option(
                "--drift", type=FiniteRange(0, 0.9), default=0.0, help="Slow change of durations, as a share."
            ),
            click.option(
                "--wrong-capture", default="", metavar="SHAPE", help="First read 1.6 times, e.g. prefill:B1:C64."
            ),
            click.option(
                "--heterogeneity", type=FiniteRange(0, 2), default=0.0, help="Spread of acceptance over requests."
            ),
            click.option("--confidence-spread", type=FiniteRange(0, 1), default=0.0, help="Of a round's own survival."),
        )
    ):
        function = option(function)
    return function


def graph_options(function: Function) -> Function:
    """Which graphs are prepared between the measured ones."""
    for option in reversed(
        (
            click.option(
                "--mixed-prompt-rows",
                type=click.IntRange(1, MIXED_PROMPT_ROWS_MAX),
                default=1,
                show_default=True,
                help="Prompts that may share a mixed graph.",
            ),
            click.option(
                "--mixed-batch-step",
                type=click.IntRange(0),
                default=0,
                help="Prepare batches in its multiples too (4, 8, ...), at interpolated times.",
            ),
            click.option(
                "--mixed-prompt-step",
                type=click.IntRange(0),
                default=0,
                help="Prepare mixed prompt capacities in its multiples too (64, 128, ...), at interpolated times.",
            ),
            click.option("--mixed-prompt-halves", is_flag=True, help="Or capacities half-way between measured ones."),
            click.option("--every-batch", is_flag=True, help="Prepare a graph to decode for every number of requests."),
        )
    ):
        function = option(function)
    return function


@click.command(
    cls=Command,
    epilog="Example: helios simulate --arrivals azure.csv --catalog h100.csv --policy balanced --rate-scale 2 --json",
)
@input_options
@recorded_options
@machine_options
@graph_options
@click.option("--ttft-limit-ms", type=LIMIT_MS, help="Goodput: time to first token at most this.")
@click.option("--gap-limit-ms", type=LIMIT_MS, help="Goodput: every gap between outputs at most this.")
@click.option("--out", type=click.Path(file_okay=False, path_type=pathlib.Path), help="Write the results here too.")
@json_option
def simulate(
    ttft_limit_ms: float | None, gap_limit_ms: float | None, out: pathlib.Path | None, as_json: bool,
    from_database: str | None, since: str | None, until: str | None, run_id: str | None, **given: Any,
) -> None:  # fmt: skip
    """Replay an arrival trace against a measured catalog, under a policy or a baseline.

    The same inputs and seed give the same JSON, byte for byte. With a catalog by context length (`ctx`) durations
    follow the context. Prompts that leave no room for an output token in the context are refused and counted; answers
    are cut where it ends. Memory for the keys and values of running requests is not limited. A baseline has one frame
    in flight and no measurements: it takes no notice of --queue-depth, --draft-tokens, --allocation, --cold and
    --wrong-capture.

    With --from-database recorded traffic is replayed in place of files: requests, prepared graphs, what they took and
    how many drafts were accepted come from the trace store, and the figures stand beside what happened. budget:N is
    then the preset of a server, which plans by that rule on its own graphs, and not the baseline.
    """
    try:
        check_options(from_database)
        if from_database is not None:
            _replay(from_database, (since, until, run_id), given, as_json)
            return
        experiment, workload, table = _inputs(**given)
        if out is not None:
            prepare_folder(out)
        if isinstance(experiment.policy, PolicyConfig):
            prepare_kernels()
        began = time.perf_counter()
        with progress_bar("simulating", len(workload.arrivals)) as show:
            finished = experiment.run(workload, table, lambda ended, _total: show(ended))
        wall_s = time.perf_counter() - began
        document = _document(given, experiment, workload, finished, Limits(ttft_limit_ms, gap_limit_ms))
        if out is not None:
            write_results(out, document, finished.result.outcomes)
    except (SchedulerError, OSError) as error:
        fail(str(error))
    if as_json:
        print_json(document)
    else:
        print_report(document, wall_s)


def _replay(
    database: str, window: tuple[str | None, str | None, str | None], given: dict[str, Any], as_json: bool
) -> None:
    """Recorded traffic. Raises SchedulerError or OSError."""
    policy = _own_policy(given["policy"], given["newcomer_memory"])
    document = simulate_recorded(database, *window, policy, given["seed"])
    if as_json:
        print_json(document)
    else:
        print_recorded(document)


def _inputs(
    arrivals: pathlib.Path, catalog: pathlib.Path, acceptance: pathlib.Path | None, acceptance_row: str, policy: str,
    newcomer_memory: str | None, rate_scale: float, requests: int | None, draft_tokens: int | None, **given: Any,
) -> tuple[Experiment, Workload, MeasuredTable]:  # fmt: skip
    """Files and options, read and checked. Raises SchedulerError or OSError."""
    _check_acceptance_options(acceptance)
    chosen = _policy(policy, newcomer_memory)
    workload = parse_arrivals(_text(arrivals), arrivals.name, rate_scale, requests)
    table = parse_catalog(_text(catalog), catalog.name)
    survival = None if acceptance is None else parse_acceptance(_text(acceptance), acceptance.name, acceptance_row)
    if draft_tokens is None:
        draft_tokens = 0 if survival is None else deepest_drafts(table)
    experiment = Experiment(
        policy=chosen,
        machine=MachineSettings(
            request_slots=given["slots"],
            context_capacity=given["max_context"],
            queue_depth=given["queue_depth"],
            host=HostCosts(given["host_ms"], given["draft_host_ms"], given["draft_token_host_ms"]),
            prefix_cache_tokens=given["prefix_cache"],
        ),
        disturbance=Disturbance(given["noise"], given["drift"], wrong_capture=given["wrong_capture"]),
        survival=survival,
        draft_tokens=draft_tokens,
        allocation=Allocation(given["allocation"]),
        grid=GraphGrid(
            given["mixed_prompt_rows"],
            given["mixed_batch_step"],
            given["mixed_prompt_step"],
            given["mixed_prompt_halves"],
            given["every_batch"],
        ),
        measured=given["measured"],
        unpadded=given["unpadded"],
        heterogeneity=given["heterogeneity"],
        confidence_spread=given["confidence_spread"],
        seed=given["seed"],
    )
    return experiment, workload, table


def _check_acceptance_options(acceptance: pathlib.Path | None) -> None:
    """Raises SimulationError for an option that says how drafts are accepted when nothing says that they are."""
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if acceptance is None and given and option.name in NEED_ACCEPTANCE:
            raise SimulationError(f"{option.opts[0]} is about drafts, which need --acceptance FILE")


def _own_policy(name: str, newcomer_memory: str | None) -> PolicyConfig:
    """A server's preset, as `budget:N` is one, or the coefficients of a file. Raises SchedulerError or OSError."""
    try:
        found = PolicyConfig.preset(name)
    except InvalidPolicy:
        if not pathlib.Path(name).is_file():
            raise SimulationError(
                f"{name!r} is no policy of a server and no file; recorded traffic is replayed under {PRESET_FORMS}, or "
                "a JSON file of coefficients; other baselines need --arrivals and --catalog"
            ) from None
        found = _policy_in(pathlib.Path(name))
    return found if newcomer_memory is None else dataclasses.replace(found, newcomer_memory=newcomer_memory)


def _policy(name: str, newcomer_memory: str | None) -> PolicyConfig | Baseline:
    """A preset, a baseline or the coefficients of a file. Raises SchedulerError or OSError."""
    found = policy_by_name(name)
    if found is None:
        path = pathlib.Path(name)
        if not path.is_file():
            raise SimulationError(
                f"{name!r} is no policy and no file; policies are {', '.join(sorted(PRESETS))}, {BASELINES}"
            )
        found = _policy_in(path)
    if newcomer_memory is None:
        return found
    if isinstance(found, Baseline):
        raise SimulationError(f"{name} keeps no service history; --newcomer-memory is for Helios' own policies")
    return dataclasses.replace(found, newcomer_memory=newcomer_memory)


def _policy_in(path: pathlib.Path) -> PolicyConfig:
    """The coefficients of a file. Raises SchedulerError or OSError."""
    try:
        return policy_from_document(msgspec.json.decode(_text(path)))
    except msgspec.DecodeError as error:
        raise SimulationError(f"{path.name} is no JSON: {error}") from None


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SimulationError(f"{path.name} is not UTF-8 text") from None


def _document(
    given: dict[str, Any], experiment: Experiment, workload: Workload, finished: Finished, limits: Limits
) -> dict[str, Any]:
    """Inputs and figures. Files by name and digest, so that it does not depend on where they lie."""
    files = {name: given[name] for name in ("arrivals", "catalog", "acceptance")}
    policy = experiment.policy
    return {
        "inputs": {
            **{name: None if path is None else file_identity(path) for name, path in files.items()},
            "policy": policy.name if isinstance(policy, Baseline) else policy.as_dict(),
            "survival": None if experiment.survival is None else survival_inputs(experiment.survival),
            # Sorted, since click passes options in the order in which they were given.
            **{name: given[name] for name in sorted(given) if name not in (*files, "policy", "newcomer_memory")},
            "draft_tokens": experiment.draft_depth,
        },
        "catalog_rows": None if finished.report is None else dataclasses.asdict(finished.report),
        "empty_outputs_raised": workload.empty_outputs,
        "results": summary(finished.result, limits),
    }
