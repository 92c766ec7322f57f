"""What `helios serve` prints: its children's lines, how far the start is, and where the server answers."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from service.settings import Settings
from service.supervisor.supervision import ENGINE, Role


def base_url(settings: Settings) -> str:
    """`http://HOST:PORT`, with brackets around an IPv6 address; of a server on every address, loopback's."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{settings.port}"


class Report:
    """Prints to standard error. At a terminal a bar shows the engine's progress; elsewhere its lines do.

    `model`: the name that clients know it by.
    """

    def __init__(self, settings: Settings, model: str, console: Console | None = None) -> None:
        self._settings = settings
        self._model = model
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._started = time.monotonic()

    def starting(self) -> None:
        """The processes are being started."""
        s = self._settings
        self.say(f"starting {self._model} ({s.dtype}, {s.device}, {s.threads} threads); data in {s.data_dir}")
        if self._console.is_terminal:
            text = TextColumn("{task.description}", markup=False)
            self._bar = Progress(
                SpinnerColumn(), text, BarColumn(), TimeElapsedColumn(), console=self._console, transient=True
            )
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()

    def line(self, role: Role, text: str) -> None:
        """A child's own line. While the server starts, `what it does (37%)` moves the bar instead."""
        bar = self._bar
        found = re.fullmatch(r"(.+) \((\d{1,3})%\)", text) if bar is not None and role == ENGINE else None
        if bar is not None and found is not None:
            bar.update(self._task, description=found[1], completed=int(found[2]), total=100)
        else:
            self._print(f"{role!s:>8} | {text}")

    def say(self, text: str) -> None:
        """The supervisor's own line."""
        self._print(f"  helios | {text}")

    def ready(self) -> None:
        """The whole server answers."""
        self.still()
        url = base_url(self._settings)
        self._print(
            f"\nHelios is ready ({time.monotonic() - self._started:.1f} s): {url}/dashboard/\n"
            f"  OpenAI API  {url}/v1   metrics  {url}/metrics   health  {url}/health/ready\n"
            f"  try         {self._example(url)}\n"
            "  stop        Ctrl-C or SIGTERM\n"
        )

    def still(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _example(self, url: str) -> str:
        body = {"model": self._model, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
        key = "" if self._settings.credentials_file is None else "-H 'Authorization: Bearer KEY' "
        return (
            f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' "
            f"-d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
        )

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal or pipe is no reason to stop serving
            self._console.print(text, markup=False, highlight=False, emoji=False)
