"""One supervised process: started, listened to, told to stop."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

from service.supervisor.supervision import Role

LAST_LINES_S = 0.2
"""How long an ended process's last lines are waited for; something it started may hold its output open."""

OnLine = Callable[[Role, str], None]
OnExit = Callable[["Child", int], None]


class Child:
    """A running process of one role. Both callbacks come from threads of this object.

    `on_line` gets each line that the process writes to either output; `on_exit` its exit code (negative for a
    signal), once, after the last line.
    """

    def __init__(
        self,
        role: Role,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_line: OnLine,
        on_exit: OnExit,
        descriptors: tuple[int, ...] = (),
    ) -> None:
        """Start it; raises OSError when that is impossible.

        Call it from the main thread: on Linux a child's guard is tied to the thread that started it. The child
        gets a session of its own, so that Ctrl-C reaches the supervisor alone, which then stops all in order.
        It inherits `descriptors`.
        """
        self.role = role
        self._on_line = on_line
        self._on_exit = on_exit
        self._process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=descriptors,
            encoding="utf-8",
            errors="replace",
        )
        self.pid = self._process.pid
        self._listener = threading.Thread(target=self._listen, name=f"{role}-output", daemon=True)
        self._listener.start()
        threading.Thread(target=self._wait, name=f"{role}-exit", daemon=True).start()

    def terminate(self) -> None:
        """Ask it to stop (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now (SIGKILL)."""
        self._signal(signal.SIGKILL)

    def _signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signum)

    def _listen(self) -> None:
        output = self._process.stdout
        assert output is not None
        with output:
            for line in output:
                self._on_line(self.role, line.rstrip("\n"))

    def _wait(self) -> None:
        code = self._process.wait()
        self._listener.join(LAST_LINES_S)
        self._on_exit(self, code)
