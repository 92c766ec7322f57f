"""A child for tests: ROLE FOLDER BEHAVIOUR SETTINGS. It guards itself and stops as the real ones do.

BEHAVIOUR (JSON): `exit`: exit code to end with at once, `times`: how often (for ever without it),
`stubborn`: ignore SIGTERM, `unready`: answer 503, `beats`: an engine with a heartbeat, and with the policy version
`changes_to` where that is given.
"""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import pathlib
import signal
import sys
import threading
import time

from service.process import guard_child, install_stop_handler
from service.telemetry.shared import MetricsWriter

guard_child()
role, folder, behaviour, path = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
alive = (folder / f"{role}.alive").open("w")
fcntl.flock(alive, fcntl.LOCK_EX)


def note(text: str) -> None:
    with (folder / "events").open("a") as file:
        file.write(f"{role} {text}\n")
    print(text, flush=True)


starts = folder / f"{role}.starts"
count = int(starts.read_text()) + 1 if starts.exists() else 1
starts.write_text(str(count))
given = json.loads(pathlib.Path(path).read_text())
note(f"up pid={os.getpid()} run={given.get('run_id')} policy={given.get('policy_version')}")
if "exit" in behaviour and count <= behaviour.get("times", 1 << 30):
    sys.exit(behaviour["exit"])

stop = threading.Event()
if behaviour.get("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    install_stop_handler(stop.set, 30)
if role == "service":

    class Ready(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if behaviour.get("unready") else 200)
            self.end_headers()
            engine = folder / "data" / "run" / "engine.json"
            self.wfile.write(json.dumps({"run_id": json.loads(engine.read_text())["run_id"]}).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", given["port"]), Ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
metrics = MetricsWriter(folder / "data" / "run" / "engine.metrics") if behaviour.get("beats") else None
if metrics is not None and "changes_to" in behaviour:
    from scheduler.policy import PolicyConfig  # takes long to load
    from service.engine.metrics import EngineMetrics

    policy = PolicyConfig(decode_age_price=0.25, newcomer_memory="phase", decode_cadence="on", token_budget=512)
    EngineMetrics(metrics, given["run_id"]).policy(behaviour["changes_to"], policy)
note("waiting")
while metrics is not None and not stop.wait(0.01):
    metrics.heartbeat(time.monotonic_ns())
stop.wait()
note("stopped")
