"""`helios explain`, `audit` and `bundle` on a store, on a copy of its file, and on a bundle."""

from __future__ import annotations

import datetime as dt
import json
import pathlib
import shutil
import zipfile
import zlib

import pytest
from click.testing import CliRunner

from scheduler.policy import COEFFICIENTS, PolicyConfig
from service.cli import main
from service.engine.commands import use_policy
from service.store.database import open_database, upgrade
from service.store.decision_log import pack_calls
from service.store.engines import write_transaction
from service.store.tables import decision_log, engine_runs, plans, policy_versions, requests, trace_gaps
from tests.engine.conftest import Rig
from tests.why.recording import RUN, stored, tee

MS = 1_000_000
NOTICED = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A store of a run with rounds, cached states, a cancel, preemptions and a change of the policy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.engine.worker.TICK_NS", 10 * MS)
        patch.setattr("service.engine.worker.CHECKPOINT_NS", 60 * MS)
        folder = tmp_path_factory.mktemp("recorded")
        rig = Rig(folder / "rig", drafts=3, states=True, pages=20, rows=2, slots=6)
        journal = tee(rig, folder / "journal")
        for number in range(10):
            rig.submit(f"r{number}", prompt=30 + number, output=90, first=20 + number)
            rig.step(3)
        rig.cancel("r3")
        use_policy(rig.core, 2, PolicyConfig.throughput())
        rig.settle(20_000)
        stored(journal, f"sqlite:///{folder}/helios.db").dispose()
        assert sum(rig.ending(f"r{number}").preemptions for number in range(10))
    return folder / "helios.db"


@pytest.fixture
def copy(recorded, tmp_path) -> pathlib.Path:
    """The database's file alone, in a folder of its own."""
    folder = tmp_path / "copied"
    folder.mkdir()
    return pathlib.Path(shutil.copy(recorded, folder / "helios.db"))


def helios(*arguments, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(map(str, arguments)), prog_name="helios")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def change(path, statement) -> None:
    engine = open_database(str(path))
    with write_transaction(engine) as connection:
        connection.execute(statement)
    engine.dispose()


def last_fence(path) -> int:
    engine = open_database(str(path))
    with engine.connect() as connection:
        fence = connection.exec_driver_sql("SELECT max(fence) FROM plans").scalar_one()
    engine.dispose()
    return fence


def test_a_decision_is_explained_from_a_copied_file(copy):
    text = helios("explain", f"{RUN}/40", "--database", copy)
    assert f"{RUN}/40" in text
    for part in ("Score: ", "Runner-ups", "lost by", "Lanes", "token price", "Ledgers in ms", "Duration: predicted"):
        assert part in text
    assert "Re-executed: the same, bit for bit" in text
    assert "observed 1.00 ms on the device" in text
    assert [path.name for path in copy.parent.iterdir() if path.suffix == ".zip"] == []


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (PolicyConfig(token_budget=512), " (budget:512)"),
        (PolicyConfig(token_budget=96, token_fairness=3), " (token_budget 96)"),
        (PolicyConfig.interactive(), " (interactive)"),
        (PolicyConfig(token_fairness=3), ""),
        (None, ""),
    ],
)
def test_the_policy_is_named_with_its_budget_where_the_store_knows_it(copy, tmp_path, config, named):
    version = json.loads(helios("explain", f"{RUN}/40", "--database", copy, "--json"))["plan"]["policy_version"]
    if config is not None:
        row = {"version": version, "created_at": NOTICED, "state": "applied", "actor": "anna", "note": ""}
        change(copy, policy_versions.insert().values(**row, preset=config.preset_name, **config.as_dict()))
    first, *_ = helios("explain", f"{RUN}/40", "--database", copy).splitlines()
    assert first.endswith(f"policy version {version}{named}")
    helios("bundle", "--around", f"{RUN}/40", "--out", tmp_path / "one.zip", "--database", copy)
    assert helios("explain", f"{RUN}/40", "--bundle", tmp_path / "one.zip").splitlines()[0] == first


def test_every_decision_is_explained_in_json(copy):
    results = set()
    for fence in range(1, last_fence(copy) + 1, 17):
        found = json.loads(helios("explain", f"{RUN}/{fence}", "--database", copy, "--json"))
        results.add(found["replay"]["result"])
        assert found["plan"]["fence"] == fence
        assert set(found["ledgers_before"]) == set(found["ledgers_after"])
        assert found["ledgers_after"]["timing_ordinary_ms"] >= found["ledgers_before"]["timing_ordinary_ms"]
        assert len(found["lanes"]) == found["plan"]["active_rows"]
    assert results == {"same"}


def test_a_decision_that_was_altered_comes_out_differently(copy):
    change(copy, plans.update().where(plans.c.fence == 40).values(value_rate=plans.c.value_rate + 0.5))
    text = helios("explain", f"{RUN}/40", "--database", copy)
    assert "IT CAME OUT DIFFERENTLY" in text
    assert "value_rate: " in text
    told = helios("audit", f"{RUN}/30..60", "--database", copy, code=1)
    assert f"{RUN}/40: the rows and the replay differ" in told
    assert "10 decisions" in told
    found = json.loads(helios("audit", RUN, "--database", copy, "--json", code=1))
    assert found["difference"]["fence"] == 40
    assert helios("audit", f"{RUN}/41..60", "--database", copy).startswith("20 decisions")


def test_a_range_a_limit_and_a_time_are_audited(copy):
    assert helios("audit", f"{RUN}/10..29", "--database", copy).startswith("20 decisions")
    assert helios("audit", RUN, "--limit", "7", "--database", copy).startswith("7 decisions")
    every = json.loads(helios("audit", "--database", copy, "--since", "2001-01-01T00:00:00Z", "--json"))
    assert every["decisions"] == last_fence(copy)
    assert every["checkpoints"] > 2
    helios("audit", "--until", "2001-01-01T00:00:00Z", "--database", copy, code=2)


def test_an_audit_that_met_no_rows_does_not_say_that_they_agree(copy):
    change(copy, plans.delete().where(plans.c.fence < 30))
    told = helios("audit", f"{RUN}/10..19", "--database", copy)
    assert "10 decisions are in the log alone" in told
    assert "no plan's rows were compared" in told
    assert "agree" not in told


def test_a_graph_that_was_never_measured_has_no_prediction_to_compare_with(copy):
    text = helios("explain", f"{RUN}/1", "--database", copy)
    assert "Duration: no prediction, as the graph was never measured; observed 1.00 ms on the device" in text
    assert "–." not in text


def test_what_is_not_there_is_said(copy, tmp_path):
    assert "here, only fences 1 to" in helios("explain", f"{RUN}/99999", "--database", copy, code=2)
    assert "no plan of a run other" in helios("explain", "other/1", "--database", copy, code=2)
    assert "no plan of this run" in helios("audit", "other", "--database", copy, code=2)
    assert "there is no trace store here" in helios("explain", f"{RUN}/1", "--data-dir", tmp_path, code=2)
    assert "names no plan" in helios("explain", RUN, code=2)
    assert "names no range" in helios("audit", f"{RUN}/9..3", code=2)
    assert "choose one" in helios("audit", RUN, "--since", "2026-01-01", code=2)


NOT_REPLAYABLE = {
    "no log": (decision_log.delete(), "has no decision log"),
    "pruned": (decision_log.delete().where(decision_log.c.last_fence < 60), "was pruned or lost; decisions from fence"),
    "nested too deep": (
        decision_log.update().where(~decision_log.c.is_checkpoint).values(blob=pack_calls([b"\x91" * 200_000])),
        "is damaged",
    ),
    "damaged": (decision_log.update().values(blob=b"nothing"), "is damaged"),
    "another version": (
        decision_log.update().where(decision_log.c.is_checkpoint).values(blob=zlib.compress(b"helios of old")),
        "Use the version of Helios that recorded the run",
    ),
    "ended before": (decision_log.delete().where(decision_log.c.last_fence > 25), "ends before fence 40"),
}


@pytest.mark.parametrize("what", NOT_REPLAYABLE)
def test_a_decision_that_cannot_be_replayed_is_explained_all_the_same(copy, what):
    statement, words = NOT_REPLAYABLE[what]
    change(copy, statement)
    text = helios("explain", f"{RUN}/40", "--database", copy)
    assert "Score: " in text
    assert "only known from a replay" in text
    assert words in next(line for line in text.splitlines() if line.startswith("Not re-executed: "))
    told = helios("audit", f"{RUN}/38..42", "--database", copy)
    assert "skipped" in told
    assert "0 decisions" in told


def test_another_version_of_the_program_is_named(copy):
    change(copy, engine_runs.update().values(version="0.0.7"))
    assert "Recorded by version 0.0.7, replayed by " in helios("explain", f"{RUN}/40", "--database", copy)


def test_a_log_of_another_catalog_is_named(copy):
    change(copy, engine_runs.update().values(catalog_digest="0123456789abcdef"))
    text = helios("explain", f"{RUN}/40", "--database", copy)
    assert "Not re-executed: the run had the catalog 0123456789ab, and its decision log is of catalog" in text


def test_an_older_store_says_what_to_do(tmp_path):
    url = f"sqlite:///{tmp_path}/helios.db"
    upgrade(url)
    engine = open_database(url)
    with write_transaction(engine) as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0002'")
    engine.dispose()
    assert "helios db upgrade" in helios("explain", f"{RUN}/1", "--database", url, code=2)


def test_a_bundle_is_explained_and_audited_without_the_store(copy, tmp_path):
    out = tmp_path / "bug.zip"
    text = helios("bundle", "--around", f"{RUN}/40", "--out", out, "--fences", 10, "--database", copy)
    assert "Re-executed: the same" in text
    assert "exists already" in helios("bundle", "--around", f"{RUN}/40", "--out", out, "--database", copy, code=2)
    copy.unlink()
    again = helios("explain", f"{RUN}/40", "--bundle", out)
    assert "Re-executed: the same, bit for bit" in again
    with zipfile.ZipFile(out) as bundle:
        assert bundle.read("explain.txt").decode() == again
        assert json.loads(bundle.read("manifest.json"))["decision_log"] == "whole"
        shapes = json.loads(bundle.read("catalog.json"))["shapes"]
        assert "speculative:B4:D3:W4:P16" in shapes
    assert helios("audit", f"{RUN}/30..50", "--bundle", out).startswith("21 decisions")
    assert "here, only fences 30 to 50" in helios("explain", f"{RUN}/9", "--bundle", out, code=2)
    assert "give one of them" in helios("explain", f"{RUN}/9", "--bundle", out, "--data-dir", tmp_path, code=2)


def test_a_bundle_of_a_version_with_fewer_preferences_is_read_with_those_off(copy, tmp_path):
    out, older = tmp_path / "bug.zip", tmp_path / "older.zip"
    helios("bundle", "--around", f"{RUN}/40", "--out", out, "--fences", 2, "--database", copy)
    later = {"prompt_rows", "prompt_wait_relief", "decode_late_relief", *[c.name for c in COEFFICIENTS[-7:]]}
    with zipfile.ZipFile(out) as bundle, zipfile.ZipFile(older, "w") as made:
        for name in bundle.namelist():
            data = bundle.read(name)
            if name.startswith("rows/"):
                rows = [{key: value for key, value in row.items() if key not in later} for row in json.loads(data)]
                data = json.dumps(rows).encode()
            made.writestr(name, data)
    assert "Re-executed: the same, bit for bit" in helios("explain", f"{RUN}/40", "--bundle", older)


@pytest.mark.parametrize("content", [b"", b"no zip", None])
def test_what_is_no_bundle_is_refused(tmp_path, content):
    path = tmp_path / "bug.zip"
    if content is None:
        with zipfile.ZipFile(path, "w") as bundle:
            bundle.writestr("manifest.json", "{}")
    else:
        path.write_bytes(content)
    assert "no bundle of helios bundle" in helios("explain", f"{RUN}/1", "--bundle", path, code=2)
    assert "cannot be read" in helios("explain", f"{RUN}/1", "--bundle", tmp_path / "none.zip", code=2)


@pytest.mark.parametrize("blob", ["'text'", "5000000000"])
def test_a_log_that_holds_no_bytes_is_bundled_as_it_is(copy, tmp_path, blob):
    engine = open_database(f"sqlite:///{copy}")
    with write_transaction(engine) as connection:
        connection.exec_driver_sql(f"UPDATE decision_log SET blob = {blob}")
    engine.dispose()
    out = tmp_path / "bundle.zip"
    helios("bundle", "--around", f"{RUN}/40", "--out", out, "--database", copy)
    with zipfile.ZipFile(out) as bundle:
        assert "damaged" in json.loads(bundle.read("manifest.json"))["decision_log"]


def test_free_text_of_the_store_is_not_in_a_bundle(copy, tmp_path):
    """Whatever an error, a note, a path or a refused value says."""
    secret = "correct-horse"
    change(copy, requests.update().values(error=secret, prefix_key=secret, trace_id=secret, model=f"/home/{secret}/m"))
    change(copy, trace_gaps.insert().values(run_id=RUN, noticed_at=NOTICED, reason=f"a record: {secret}"))
    settings = {"model": f"/home/{secret}", "credentials_file": secret, "database": secret, "port": 8000}
    change(copy, engine_runs.update().values(host=secret, model=f"{secret}/model", settings=settings))
    out = tmp_path / "bug.zip"
    helios("bundle", "--around", f"{RUN}/40", "--out", out, "--database", copy)
    with zipfile.ZipFile(out) as bundle:
        for name in bundle.namelist():
            assert secret.encode() not in bundle.read(name), name
        assert json.loads(bundle.read("settings.json"))["port"] == 8000
        log = [name for name in bundle.namelist() if name.startswith("log/")]
        assert log
        assert all(secret.encode() not in zlib.decompress(bundle.read(name)) for name in log)
