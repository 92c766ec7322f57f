"""From options to Settings."""

from __future__ import annotations

import pathlib

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from service.cli.serve import TYPES, description, resolve_settings
from service.cli.values import ByteSize
from service.settings import Settings, default_data_dir

CATALOG = """kind,B,D,W,P,prefill_capacity,duration_ms
prefill,1,0,0,64,64,3
decode,1,0,1,1,0,5
decode,8,0,1,8,0,6
speculative,2,2,3,6,0,8
mixed,4,0,1,68,64,9
"""
ACCEPTANCE = "target,pos1,pos2\nany,0.7,0.5\n"


def given_options(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Settings:
    seen: list[Settings] = []
    monkeypatch.setattr("service.cli.serve.supervise", lambda settings: seen.append(settings) or 0)
    from service.cli import main

    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 0, result.output
    return seen[0]


def test_options_that_were_not_given_leave_the_defaults_and_the_policy_flags_unset(monkeypatch, tmp_path):
    settings = given_options(monkeypatch, "--data-dir", str(tmp_path))
    plain = Settings(data_dir=str(tmp_path), database=f"sqlite:///{tmp_path}/helios.db", threads=settings.threads)
    assert settings == plain
    assert settings.scheduler_policy is None
    assert settings.scheduler_terminal_value is None


def test_every_option_reaches_its_setting(monkeypatch, tmp_path):
    values = {
        "model": str(tmp_path / "a.gguf"), "host": "::1", "port": 8123, "workers": 2, "data_dir": str(tmp_path),
        "database": f"sqlite:///{tmp_path}/other.db", "device": "simulated", "dtype": "bfloat16", "max_context": 1024,
        "kv_pages": 77, "request_slots": 9, "threads": 3, "scheduler_policy": "throughput",
        "scheduler_terminal_value": 256.0, "scheduler_terminal_age_price": 0.0,
        "scheduler_prompt_wait_price": 1000.0, "scheduler_prompt_rank_age_ms": 30.0,
        "scheduler_decode_gap_weight": 0.7, "scheduler_decode_late_price": 300.0, "scheduler_decode_cadence": "on",
        "scheduler_token_budget": 512, "scheduler_acceptance_model": "pooled",
        "otlp_endpoint": "http://127.0.0.1:4318", "otlp_backlog": 512 << 20, "journal_budget": 8 << 30,
        "journal_sync_ms": 50,
        "mtp_adaptive_verification_alpha": 0.5, "scheduler_checkpoint_extra_work_fraction": 0.25,
        "verification": "fixed:3", "draft_tokens": 4, "draft_head": "auto", "catalog": str(tmp_path / "catalog.csv"),
        "time_scale": 0.5, "acceptance": str(tmp_path / "acceptance.csv"),
        "draft_allocation": "host", "speculative_token_capacity": 24, "mixed_prefill": True, "snapshot_rows": 0,
        "mixed_prompt_rows": 3, "mixed_batch_step": 16, "mixed_prompt_step": 128,
        "retention_days": 7, "retention_bytes": 0,
        "credentials_file": str(tmp_path / "credentials.json"), "protect_metrics": True,
    }  # fmt: skip
    assert set(values) == set(TYPES)
    monkeypatch.setattr("service.cli.serve.wrong_combination", lambda settings: None)  # no device takes all of them
    (tmp_path / "catalog.csv").write_text(CATALOG)
    (tmp_path / "acceptance.csv").write_text(ACCEPTANCE)
    arguments = []
    for name, value in values.items():
        if value is True:
            arguments.append("--" + name.replace("_", "-"))
            continue
        texts = {"journal_budget": "8GiB", "otlp_endpoint": "http://127.0.0.1:4318/", "otlp_backlog": "512MiB"}
        text = texts.get(name, str(value))
        arguments += ["--" + name.replace("_", "-"), text]
    settings = given_options(monkeypatch, *arguments)
    assert {name: getattr(settings, name) for name in values} == values


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--verification fixed:2", "--verification is for speculation"),
        ("--draft-allocation host", "--draft-allocation is for speculation"),
        ("--draft-head head.safetensors", "--draft-head is for speculation"),
        ("--draft-tokens 3 --verification fixed:5", "verifies 4 drafts per request and --draft-tokens is 3"),
        ("--draft-tokens 7 --verification fixed:8 --speculative-token-capacity 6", "needs 8 rows for one request"),
        ("--draft-tokens 3 --verification fixed:2 --draft-allocation device", "every request the same rows"),
        ("--draft-tokens 3 --draft-head none --draft-allocation device", "--draft-head is none"),
        ("--draft-tokens 3 --speculative-token-capacity 1", "1 is not in the range"),
        ("--draft-tokens 99", "99 is not in the range"),
        ("--verification sometimes", "write adaptive, or fixed:N"),
        ("--mtp-adaptive-verification-alpha 0", "above 0"),
        ("--scheduler-policy fast", "must be one of balanced, interactive, throughput, or budget:N with N from 1 to"),
        ("--scheduler-policy budget:0", "or budget:N with N from 1 to 1,048,576 tokens a step, not 'budget:0'"),
        ("--scheduler-decode-cadence maybe", "must be one of off, on"),
        ("--scheduler-token-budget 1.5", "must be a whole number"),
        ("--scheduler-acceptance-model geometric", "must be one of prefix, pooled"),
        ("--scheduler-checkpoint-extra-work-fraction -1", "-1"),
        ("--device tpu", "cuda"),
        ("--mixed-prompt-rows 2", "--mixed-prompt-rows is for programs that serve prompts beside decoding requests"),
        ("--mixed-batch-step 8", "add --mixed-prefill"),
        ("--mixed-prompt-step 64", "add --mixed-prefill"),
        ("--mixed-prefill --mixed-prompt-rows 5", "5 is not in the range 1<=x<=4"),
        ("--mixed-prefill --mixed-batch-step 10", "'10' is not a multiple of 4 from 4 to 64"),
        ("--mixed-prefill --mixed-batch-step x", "'x' is not a multiple of 4 from 4 to 64"),
        ("--mixed-prefill --mixed-prompt-step 96", "'96' is not a multiple of 64 from 64 to 65536"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_anything_starts(monkeypatch, arguments, why):
    started = []
    monkeypatch.setattr("service.cli.serve.supervise", started.append)
    from service.cli import main

    result = CliRunner().invoke(main, ["serve", *arguments.split()])
    assert (result.exit_code, started) == (2, [])
    assert why in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "files", "why"),
    [
        ("", {}, "give --catalog FILE"),
        ("--catalog c", {}, "'c' does not exist"),
        ("--catalog c", {"c": ""}, "--catalog: c is empty; it needs the columns kind, B,"),
        ("--catalog c", {"c": "kind,B\ndecode,1\n"}, "--catalog: c lacks the columns D, W, P,"),
        ("--catalog c", {"c": CATALOG.replace(",5", ",-5")}, "c, line 3: duration_ms is '-5'; it must be"),
        ("--catalog c", {"c": "\n".join(CATALOG.splitlines()[:2])}, "so nothing can be generated"),
        ("--catalog c", {"c": CATALOG.replace("prefill,1,0,0,64,64,3\n", "")}, "so no prompt can be read"),
        ("--catalog c --time-scale 0", {"c": CATALOG}, "0.0 is not in the range"),
        ("--catalog c --time-scale -1", {"c": CATALOG}, "-1.0 is not in the range"),
        ("--catalog c --time-scale nan", {"c": CATALOG}, "nan is not a finite number"),
        ("--catalog c --time-scale inf", {"c": CATALOG}, "inf is not in the range"),
        ("--catalog c --acceptance a", {"c": CATALOG, "a": ACCEPTANCE}, "--draft-tokens of at least 1 turns on"),
        ("--catalog c --draft-tokens 2", {"c": CATALOG}, "needs --acceptance FILE"),
        ("--catalog c --draft-tokens 1 --acceptance a", {"c": CATALOG, "a": ACCEPTANCE}, "at most 1 drafts"),
        ("--catalog c --draft-tokens 2 --acceptance a", {"c": CATALOG, "a": "x\n1\n"}, "--acceptance: a has neither"),
        ("--catalog c --draft-tokens 2 --draft-head h", {"c": CATALOG}, "a simulated device loads none"),
        ("--catalog c --draft-tokens 2 --draft-allocation device", {"c": CATALOG}, "--draft-allocation host, or none"),
        ("--catalog c --mixed-prefill --mixed-batch-step 8", {"c": CATALOG}, "has the graphs of --catalog"),
        ("--catalog c --mixed-prefill --mixed-prompt-step 64", {"c": CATALOG}, "has the graphs of --catalog"),
        ("--catalog c --snapshot-rows 3", {"c": CATALOG}, "a simulated device has none"),
        ("--catalog c --device cpu", {"c": CATALOG}, "--catalog is for --device simulated, and --device is cpu"),
        ("--time-scale 2 --device cpu", {}, "--time-scale is for --device simulated"),
    ],
)
def test_a_simulated_device_without_what_it_needs_is_refused_before_anything_starts(
    monkeypatch, tmp_path, arguments, files, why
):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        pathlib.Path(name).write_text(text)
    started = []
    monkeypatch.setattr("service.cli.serve.supervise", started.append)
    from service.cli import main

    result = CliRunner().invoke(main, ["serve", "--device", "simulated", *arguments.split()])
    assert (result.exit_code, started) == (2, [])
    assert why in " ".join(result.output.split())


@pytest.mark.parametrize(
    "arguments",
    ["--draft-tokens 3 --verification fixed:4", "--draft-tokens 3 --draft-head none", "--draft-head none"],
)
def test_options_that_go_together_start(monkeypatch, tmp_path, arguments):
    assert given_options(monkeypatch, "--data-dir", str(tmp_path), *arguments.split())


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_PROPAGATORS", "tracecontext,b4"), ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")]
)
def test_a_variable_that_the_sdk_cannot_start_with_is_refused_before_anything_starts(monkeypatch, name, value):
    started = []
    monkeypatch.setattr("service.cli.serve.supervise", started.append)
    monkeypatch.setenv(name, value)
    from service.cli import main

    result = CliRunner().invoke(main, ["serve"])
    assert (result.exit_code, started) == (2, [])
    assert name in result.output


def test_relative_paths_become_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("checkpoint").mkdir()
    settings = resolve_settings({"data_dir": pathlib.Path("data"), "model": "checkpoint", "database": "trace.db"})
    assert settings.data_dir == str(tmp_path / "data")
    assert settings.model == str(tmp_path / "checkpoint")
    assert settings.database == f"sqlite:///{tmp_path}/trace.db"


def test_the_data_directory_comes_from_the_environment_when_no_option_names_it(tmp_path):
    assert default_data_dir({"HELIOS_DATA_DIR": str(tmp_path), "XDG_DATA_HOME": "/elsewhere"}) == tmp_path
    assert default_data_dir({"XDG_DATA_HOME": str(tmp_path)}) == tmp_path / "helios"


def test_every_setting_has_an_option_or_is_marked_internal():
    info = msgspec.inspect.type_info(Settings)
    internal = {field.name for field in info.fields if field.type.extra["internal"]}
    assert set(TYPES).isdisjoint(internal)
    assert set(TYPES) | internal == {field.name for field in info.fields}
    assert all(description(field.name).endswith(".") for field in info.fields)


@given(st.integers(1, (1 << 62) - 1))
def test_a_plain_number_of_bytes_is_read_exactly(size):
    assert ByteSize().convert(str(size), None, None) == size


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 << 30), ("1.5 gb", 1_500_000_000), ("512MiB", 512 << 20), ("64kib", 64 << 10)]
)
def test_sizes_with_units_are_read(text, size):
    assert ByteSize().convert(text, None, None) == size
