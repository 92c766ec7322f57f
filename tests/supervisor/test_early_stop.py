"""A server that is refused, or told to stop, before its first process leaves nothing behind."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from service.settings import SUPERVISOR_PID, Settings
from service.supervisor import start
from service.supervisor.errors import ModelRefused, PortInUse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SLOW_START = """
import pathlib, socket, sys, threading
from service.settings import SUPERVISOR_PID, Settings
from service.supervisor import preparation, start

def waits(settings):
    print("preparing", flush=True)
    threading.Event().wait()

setattr(preparation, sys.argv[2], waits)
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
folder = pathlib.Path(sys.argv[1])
settings = Settings(data_dir=str(folder), database=f"sqlite:///{folder}/helios.db", threads=1, port=port)
sys.exit(start.serve(settings))
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
@pytest.mark.parametrize("step", ["check_model", "prepare_store", "first_policy"])
def test_a_stop_while_it_prepares_ends_with_0_and_leaves_no_run_files(tmp_path, signum, step):
    folder = tmp_path / "data"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_START, str(folder), step], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "preparing\n"
    assert (folder / "lock").exists()
    process.send_signal(signum)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "  helios | stopped before anything was started\n")
    kept = {path.name for path in tmp_path.rglob("*") if not path.name.startswith("helios.db")}
    assert kept == ({"data"} if step == "first_policy" else set())


def test_a_refused_start_removes_what_it_made_and_gives_the_signals_back(tmp_path):
    before = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port = listener.getsockname()[1]
        settings = Settings(data_dir=str(tmp_path / "d"), database=str(tmp_path / "d" / "x.db"), threads=1, port=port)
        with pytest.raises(PortInUse):
            start.serve(settings)
    with pytest.raises(ModelRefused):
        start.serve(Settings(data_dir=str(tmp_path / "d"), database="", threads=1, port=port, model="gpt-17"))
    assert list(tmp_path.iterdir()) == []
    assert [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


HELD_IMPORT = """
import runpy, signal, sys, threading
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever started the tests: under nohup it would be ignored

class Waits:
    def find_spec(self, name, path=None, target=None):
        if name == held:
            print("importing", flush=True)
            threading.Event().wait()

held, module = sys.argv[1:3]
del sys.argv[1:3]
sys.meta_path.insert(0, Waits())
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def held_in_import(held: str, module: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`python -m MODULE ARGUMENTS`, which waits for ever where it imports `held`."""
    return subprocess.Popen(
        [sys.executable, "-c", HELD_IMPORT, held, module, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda s: s.name)
def test_a_stop_while_the_command_is_still_importing_ends_with_0(signum):
    process = held_in_import("service.cli.tree", "service.cli", "serve")
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signum)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "  helios | stopped before anything was started\n")


@pytest.mark.parametrize(
    ("module", "held"),
    [("service.engine", "torch"), ("service.recorder", "sqlalchemy"), ("service.app", "sqlalchemy")],
)
def test_a_child_whose_supervisor_is_gone_ends_before_its_heavy_imports(module, held):
    process = held_in_import(held, module, "nothing.json", **{SUPERVISOR_PID: str(2**22 + 1)})
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (-signal.SIGTERM, "")
