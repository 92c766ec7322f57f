"""`helios serve`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import click
import msgspec

from scheduler.capacity import MIXED_BATCH_MAX, MIXED_BATCH_STEP, MIXED_PROMPT_ROWS_MAX, MIXED_PROMPT_STEP
from service.cli.output import Command, Function, fail
from service.cli.serve_checks import wrong_combination, wrong_measurements
from service.cli.values import ByteSize, CoefficientType, FiniteRange, HttpUrl, MultipleOf, PresetType, VerificationType
from service.control.start import START_COEFFICIENTS
from service.settings import Settings, default_data_dir, default_threads, process_environment
from service.store.database import database_url
from service.store.errors import InvalidDatabaseUrl
from service.supervisor.errors import StartRefused
from service.supervisor.start import serve_and_leave as supervise
from service.telemetry.exporter_settings import environment_problem
from service.telemetry.metric_table import MAX_DRAFT_TOKENS

SMALLEST_JOURNAL = 2 << 20
FILE = click.Path(exists=True, dir_okay=False, path_type=pathlib.Path)
FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}
DEFAULT_TEXTS = {
    "data_dir": "$HELIOS_DATA_DIR, else $XDG_DATA_HOME/helios, else ~/.local/share/helios",
    "database": "<data-dir>/helios.db",
    "threads": "all cores but one",
    "journal_budget": "1GiB",
    "retention_bytes": "10GiB",
    "mixed_prefill": None,
    "protect_metrics": None,
}
TYPES: dict[str, Any] = {
    "model": str,
    "host": str,
    "port": click.IntRange(1, 65535),
    "workers": click.IntRange(1, 32),
    "credentials_file": click.Path(path_type=pathlib.Path),
    "protect_metrics": bool,
    "data_dir": click.Path(path_type=pathlib.Path),
    "database": str,
    "device": click.Choice(["cpu", "cuda", "simulated"]),
    "catalog": FILE,
    "time_scale": FiniteRange(0, 1e6, min_open=True),
    "acceptance": FILE,
    "dtype": click.Choice(["float32", "bfloat16"]),
    "max_context": click.IntRange(2, 1 << 20),
    "kv_pages": click.IntRange(1, 1 << 30),
    "request_slots": click.IntRange(1, 4096),
    "threads": click.IntRange(1, 1024),
    "scheduler_policy": PresetType(),
    **{flag: CoefficientType(name) for flag, name in START_COEFFICIENTS.items()},
    "scheduler_checkpoint_extra_work_fraction": click.FloatRange(0.0, 1e9),
    "verification": VerificationType(),
    "draft_tokens": click.IntRange(0, MAX_DRAFT_TOKENS),
    "draft_head": str,
    "draft_allocation": click.Choice(["none", "host", "device"]),
    "speculative_token_capacity": click.IntRange(2, 1 << 16),
    "mixed_prefill": bool,
    "mixed_prompt_rows": click.IntRange(1, MIXED_PROMPT_ROWS_MAX),
    "mixed_batch_step": MultipleOf(MIXED_BATCH_STEP, MIXED_BATCH_MAX),
    "mixed_prompt_step": MultipleOf(MIXED_PROMPT_STEP, 1 << 16),
    "snapshot_rows": click.IntRange(0, 1 << 20),
    "otlp_endpoint": HttpUrl(),
    "otlp_backlog": ByteSize(0),
    "journal_budget": ByteSize(SMALLEST_JOURNAL),
    "journal_sync_ms": click.IntRange(1, 60_000),
    "retention_days": click.IntRange(0, 36_500),
    "retention_bytes": ByteSize(0),
}
"""Option types by field of Settings, in the order of the help text; internal fields have no option."""


def description(name: str) -> str:
    """The help text of a field of Settings."""
    meta = msgspec.inspect.type_info(Settings)
    assert isinstance(meta, msgspec.inspect.StructType)
    field = next(field for field in meta.fields if field.name == name)
    assert isinstance(field.type, msgspec.inspect.Metadata)
    return str((field.type.extra_json_schema or {})["description"])


def settings_options(function: Function) -> Function:
    """One option per field in TYPES. What was not given stays None, so that a flag differs from its default."""
    decorated: Callable[..., Any] = function
    for name in reversed(TYPES):
        default = DEFAULT_TEXTS.get(name, FIELDS[name].default)
        shown = f"  [default: {default}]" if default not in (None, msgspec.NODEFAULT) else ""
        flag = "--" + name.replace("_", "-")
        form = {"is_flag": True} if TYPES[name] is bool else {"type": TYPES[name]}
        decorated = click.option(flag, name, default=None, help=description(name) + shown, **form)(decorated)
    return decorated  # type: ignore[return-value]


def resolve_settings(given: dict[str, Any]) -> Settings:
    """Complete settings from the options that were given (None: not given). Raises InvalidDatabaseUrl."""
    chosen = {name: value for name, value in given.items() if value is not None}
    data_dir = chosen.pop("data_dir", None)
    chosen["data_dir"] = str(data_dir.expanduser().absolute() if data_dir is not None else default_data_dir())
    chosen.setdefault("threads", default_threads())
    if pathlib.Path(chosen.get("model", "")).is_dir() and "model" in chosen:
        chosen["model"] = str(pathlib.Path(chosen["model"]).absolute())
    if chosen.get("draft_head", "auto") not in ("auto", "none"):
        chosen["draft_head"] = str(pathlib.Path(chosen["draft_head"]).expanduser().absolute())
    for name in ("catalog", "acceptance", "credentials_file"):
        if name in chosen:
            chosen[name] = str(chosen[name].absolute())
    settings = Settings(database=chosen.pop("database", ""), **chosen)
    return msgspec.structs.replace(settings, database=database_url(settings))


@click.command(cls=Command, epilog="Example: helios serve --port 8123 --data-dir ./data --scheduler-policy throughput")
@settings_options
def serve(**given: Any) -> None:
    """Start the server and keep it running until Ctrl-C or SIGTERM.

    Exits 0 after an orderly stop, 1 when its processes keep failing, 2 when it cannot start as asked.
    """
    try:
        settings = resolve_settings(given)
        why = wrong_combination(settings) or wrong_measurements(settings) or environment_problem(process_environment())
        if why is not None:
            fail(why)
        supervise(settings)
    except (StartRefused, InvalidDatabaseUrl) as error:
        fail(str(error))
