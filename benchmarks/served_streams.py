"""Servers and streams for benchmarks over HTTP: start `helios serve`, let N clients read answers at once, time them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import openai

START_S = 300.0
TOPICS = (
    *("rivers", "violins", "chess", "bread", "comets", "bridges", "whales", "clocks"),
    *("gardens", "maps", "islands", "trains", "masks", "salt", "bees", "mirrors"),
)
_SAMPLE = re.compile(r"(flare_\w+_total)(?:\{.*\})? (\S+)")


def essay_prompts(count: int) -> list[str]:
    """Distinct chat prompts of nearly one length."""
    return [f"Write a long and detailed essay about {topic}: history, people and craft." for topic in TOPICS[:count]]


@contextlib.contextmanager
def helios_server(*options: str) -> Iterator[str]:
    """A ready server's address; stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "data"
        command = [sys.executable, "-m", "service.cli", "serve", "--port", str(port), "--data-dir", str(data), *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_ready(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def wait_ready(base: str, process: subprocess.Popen[bytes]) -> None:
    """Returns once the server answers as ready; raises RuntimeError when it does not start."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{base}/health/ready", timeout=2).status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError("helios serve did not become ready")


@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """One answer: output tokens, and seconds from the request to each chunk of text."""

    tokens: int
    text: str
    arrivals_s: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """Answers to clients that began together. `counters`: how far each counter of the server moved, labels added up."""

    streams: tuple[Stream, ...]
    wall_s: float
    counters: dict[str, float]

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all streams, prompts' time included."""
        return sum(stream.tokens for stream in self.streams) / self.wall_s

    @property
    def first_ms(self) -> list[float]:
        """Time to each stream's first text."""
        return [stream.arrivals_s[0] * 1e3 for stream in self.streams]

    @property
    def gap_ms(self) -> float:
        """Median time between chunks of a stream; 0 where each answer came in one."""
        gaps = [b - a for stream in self.streams for a, b in itertools.pairwise(stream.arrivals_s)]
        return statistics.median(gaps) * 1e3 if gaps else 0.0

    @property
    def busy_share(self) -> float:
        """Share of the wall time in which the device ran a program."""
        return self.counters["flare_scheduler_execution_nanoseconds_total"] / 1e9 / self.wall_s

    @property
    def accepted_per_round(self) -> float:
        """Drafts that became output per round of one request; 0 where nothing was drafted."""
        rounds = self.counters["flare_speculative_rounds_total"]
        return self.counters["flare_speculative_accepted_tokens_total"] / rounds if rounds else 0.0


def counters(base: str) -> dict[str, float]:
    """Every counter of the server, summed over its labels."""
    found: dict[str, float] = {}
    for line in httpx.get(f"{base}/metrics", timeout=10).text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample:
            found[sample[1]] = found.get(sample[1], 0.0) + float(sample[2])
    return found


def run_round(base: str, model: str, prompts: Sequence[str], tokens: int, chat: bool, temperature: float = 0) -> Round:
    """All prompts at once, `tokens` new tokens each, streamed."""
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0, timeout=600)

    def read(prompt: str) -> Stream:
        began = time.perf_counter()
        return _read(_request(client, model, prompt, tokens, chat, temperature), began)

    before = counters(base)
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        streams = tuple(pool.map(read, prompts))
    wall_s = time.perf_counter() - began
    return Round(streams, wall_s, {name: value - before[name] for name, value in counters(base).items()})


def _request(client: openai.OpenAI, model: str, prompt: str, tokens: int, chat: bool, temperature: float) -> Any:
    options: dict[str, Any] = {
        "model": model,
        "max_tokens": tokens,
        "temperature": temperature,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if chat:
        return client.chat.completions.create(messages=[{"role": "user", "content": prompt}], **options)
    return client.completions.create(prompt=prompt, **options)


def _read(chunks: Any, began: float) -> Stream:
    arrivals, text, used = [], "", 0
    for chunk in chunks:
        for choice in chunk.choices:
            piece = choice.delta.content if hasattr(choice, "delta") else choice.text
            if piece:
                text += piece
                arrivals.append(time.perf_counter() - began)
        if chunk.usage is not None:
            used = chunk.usage.completion_tokens
    return Stream(used, text, tuple(arrivals))
