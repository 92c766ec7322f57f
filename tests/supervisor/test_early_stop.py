"""A server that is refused, or told to stop, before its first process leaves nothing behind."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from service.settings import Settings
from service.supervisor import start
from service.supervisor.errors import ModelRefused, PortInUse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SLOW_START = """
import pathlib, socket, sys, threading
from service.settings import Settings
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
