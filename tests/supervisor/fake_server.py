"""Runs the real supervisor over fake children. Argument: JSON with folder, port, behaviours and limits."""

from __future__ import annotations

import json
import pathlib
import sys
import threading

from service.process import install_stop_handler
from service.settings import Settings
from service.supervisor.data_dir import DataDir
from service.supervisor.errors import StoreRefused
from service.supervisor.report import Report
from service.supervisor.run import Supervisor
from service.supervisor.supervision import Limits, roles

arguments = json.loads(sys.argv[1])
folder = pathlib.Path(arguments["folder"])
settings = Settings(
    data_dir=str(folder / "data"), database=str(folder / "helios.db"), threads=1, port=arguments["port"]
)
commands = {
    role: (
        sys.executable,
        str(pathlib.Path(__file__).with_name("fake_child.py")),
        str(role),
        str(folder),
        json.dumps(arguments["behaviours"].get(str(role), {})),
    )
    for role in roles(1)
}
versions = iter(range(1, 1000))


def find_policy(_asked: Settings) -> tuple[int, dict[str, float | int | str]]:
    """The next version; while the folder has a file of that name the store is away, or does not answer."""
    if (folder / "store-hangs").exists():
        threading.Event().wait()
    if (folder / "store-away").exists():
        raise StoreRefused("the store is away")
    return next(versions), {"terminal_value": 256.0}


data_dir = DataDir(settings)
data_dir.make_socket_dir()
supervisor = Supervisor(
    settings,
    commands,
    find_policy,
    Report(settings, "a-model"),
    Limits(**arguments["limits"]),
)
supervisor.prepare()
install_stop_handler(supervisor.request_stop, 4.95)
sys.exit(supervisor.run())
