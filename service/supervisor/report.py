"""What `helios serve` prints: its children's lines, how far the start is, and where the server answers."""

from __future__ import annotations

import contextlib
import time

from rich.console import Console
from rich.status import Status

from service.settings import Settings
from service.supervisor.supervision import Role


def base_url(settings: Settings) -> str:
    """`http://HOST:PORT`, with brackets around an IPv6 address."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}"


class Report:
    """Prints to standard error; a terminal also gets a line that moves while the server starts."""

    def __init__(self, settings: Settings, console: Console | None = None) -> None:
        self._settings = settings
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._started = time.monotonic()

    def starting(self) -> None:
        """The processes are being started."""
        s = self._settings
        self.say(f"starting {s.model} ({s.dtype}, {s.device}, {s.threads} threads); data in {s.data_dir}")
        if self._console.is_terminal:
            self._status = self._console.status("loading the model and preparing its programs")
            self._status.start()

    def line(self, role: Role, text: str) -> None:
        """A child's own line."""
        self._print(f"{role:>8} | {text}")

    def say(self, text: str) -> None:
        """The supervisor's own line."""
        self._print(f"  helios | {text}")

    def ready(self) -> None:
        """The whole server answers."""
        self.still()
        url = base_url(self._settings)
        seconds = time.monotonic() - self._started
        example = (
            f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
            """-d '{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "model": "%s"}'"""
        ) % self._settings.model.replace("\\", "\\\\").replace('"', '\\"').replace("'", "'\\''")
        self._print(
            f"\nHelios is ready ({seconds:.1f} s): {url}/dashboard/\n"
            f"  OpenAI API  {url}/v1   metrics  {url}/metrics   health  {url}/health/ready\n"
            f"  try         {example}\n"
            "  stop        Ctrl-C or SIGTERM\n"
        )

    def still(self) -> None:
        """Take the moving line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal or pipe is no reason to stop serving
            self._console.print(text, markup=False, highlight=False, emoji=False)
