"""deploy/setup_environment.py without installing anything."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
import types

import pytest


@pytest.fixture
def setup(root, tmp_path, monkeypatch) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("setup_environment", root / "deploy" / "setup_environment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "PYTHON", pathlib.Path(sys.executable))
    monkeypatch.setattr(module, "STAMP", tmp_path / "stamp.json")
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    return module


def test_an_old_python_is_told_what_to_install(setup, monkeypatch, capsys):
    monkeypatch.setattr(setup.sys, "version_info", (3, 9, 2))
    assert setup.main() == 1
    assert capsys.readouterr().err.startswith("\nsetup: Python 3.11 or newer is needed")


def test_a_python_without_venv_is_told_the_package(setup, monkeypatch, capsys):
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None)
    assert setup.main() == 1
    assert "-venv" in capsys.readouterr().err


def test_a_full_disk_is_said_before_anything_is_fetched(setup, monkeypatch, capsys):
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=10 << 20))
    monkeypatch.setattr(setup, "pip", pytest.fail)
    assert setup.main() == 1
    assert "make room" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("free", "said", "words"),
    [
        (1 << 20, "", "disk"),
        (1 << 40, "Retrying after connection broken by NewConnectionError", "cannot reach the package index"),
        (1 << 40, "No matching distribution found", "its lines above say why"),
    ],
)
def test_a_failed_pip_is_explained_by_what_can_be_seen(setup, monkeypatch, free, said, words):
    run = setup.run_quietly
    code = f"import sys; print({said!r}, file=sys.stderr); sys.exit(1)"
    monkeypatch.setattr(setup, "run_quietly", lambda command: run([sys.executable, "-c", code]))
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=free))
    with pytest.raises(setup.SetupFailed, match=words):
        setup.pip("anything")


def test_pips_words_about_missing_places_are_left_out_and_its_others_are_kept(setup, capfd):
    lines = ["WARNING: Location '/mnt/wheels' is ignored: it is either a non-existing path or lacks a specific scheme."]
    lines = [*lines * 3, "ERROR: No matching distribution found", "WARNING: Retrying"]
    code = f"import sys; print('bar'); print({chr(10).join(lines)!r}, file=sys.stderr); sys.exit(3)"
    assert setup.run_quietly([sys.executable, "-c", code]) == (3, False)
    assert tuple(capfd.readouterr()) == ("bar\n", "ERROR: No matching distribution found\nWARNING: Retrying\n")


@pytest.fixture
def steps(setup, monkeypatch) -> list[tuple[str, ...]]:
    """What pip was asked, with nothing installed."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup, "make_environment", lambda: setup.VENV.mkdir(exist_ok=True))
    monkeypatch.setattr(setup, "pip", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(setup, "compile_kernels", lambda: setup.step(6, "kernels"))
    return asked


def test_a_second_run_does_nothing(setup, steps, capsys):
    assert setup.main() == 0
    assert len(steps) == 4
    assert "[6/6]" in capsys.readouterr().out
    assert setup.main() == 0
    assert len(steps) == 4
    assert capsys.readouterr().out == ""


def test_a_changed_input_or_a_set_up_that_was_cut_short_runs_again(setup, steps, monkeypatch, tmp_path):
    setup.main()
    changed = tmp_path / "lock.txt"
    changed.write_bytes(setup.LOCK.read_bytes() + b"\n")
    monkeypatch.setattr(setup, "INPUTS", (changed, *setup.INPUTS[1:]))
    setup.main()
    assert len(steps) == 8
    setup.STAMP.write_text("{")
    setup.main()
    assert len(steps) == 12


def test_another_torch_index_replaces_torch_and_later_runs_keep_it(setup, steps, monkeypatch):
    setup.main()
    monkeypatch.setenv("TORCH_INDEX", "https://example.org/whl/cpu")
    setup.main()
    torch = [arguments for arguments in steps if any(word.startswith("torch==") for word in arguments)]
    assert "--index-url" not in torch[0]
    assert torch[1][:3] == ("--index-url", "https://example.org/whl/cpu", "--force-reinstall")
    monkeypatch.delenv("TORCH_INDEX")
    setup.main()
    assert len(steps) == 8
    assert json.loads(setup.STAMP.read_text())["torch_index"] == "https://example.org/whl/cpu"


def test_torch_is_held_to_what_the_lock_installed(setup, steps):
    setup.main()
    pins = (setup.VENV / "constraints.txt").read_text().splitlines()
    assert "sympy" in {pin.split("==")[0] for pin in pins}
    assert all("==" in pin and "hash" not in pin for pin in pins)
