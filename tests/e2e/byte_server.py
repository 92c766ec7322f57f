"""Servers of the byte-level model with four request slots, one for each way of execution, and streams from them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence

import httpx
import openai

from tests.e2e.helios_server import HeliosServer

MODEL_PATH = pathlib.Path(__file__).parents[2] / "gpu" / "assets" / "byte-model"
MODEL = MODEL_PATH.name
REQUEST_SLOTS = 4
CONTEXT_TOKENS = 1024
DRAFT_TOKENS = 3
FIXED_WIDTH = 4
ANSWER_SECONDS = 60.0

_SERVER = ("--model", str(MODEL_PATH), "--request-slots", str(REQUEST_SLOTS), "--threads", "1")
_DRAFTS = ("--draft-tokens", str(DRAFT_TOKENS), "--speculative-token-capacity", "16")

_LINES = (
    "First Citizen:\nBefore we proceed any further, hear me speak.\n",
    "All:\nSpeak, speak.\n",
    "MENENIUS:\nWhat work's, my countrymen, in hand? where go you with bats and clubs?\n",
    "CORIOLANUS:\nThanks. What's the matter, you dissentious rogues?\n",
    "Second Citizen:\nWould you proceed especially against Caius Marcius?\n",
    "VOLUMNIA:\nI pray you, daughter, sing; or express yourself in a more comfortable sort.\n",
    "SICINIUS:\nWas ever man so proud as is this Marcius?\n",
    "KING RICHARD:\nNow is the winter of our discontent made glorious summer by this sun.\n",
    "JULIET:\nWhat's in a name? that which we call a rose by any other name would smell as sweet.\n",
    "Messenger:\nYou are sent for to the senate.\n",
)


def long_prompt(number: int, least_tokens: int = 400) -> str:
    """Prompt `number` of at least so many bytes; prompts share no beginning."""
    lines = itertools.cycle(_LINES[number % len(_LINES) :] + _LINES[: number % len(_LINES)])
    text = ""
    while len(text) < least_tokens:
        text += next(lines)
    return text


def chat_prompt(messages: Sequence[dict[str, str]]) -> str:
    """A chat as the model's template writes it."""
    turns = [f"{message['role']}: {message['content']}\n" for message in messages]
    return "".join(turns) + "assistant: "


def short_prompt(number: int) -> str:
    """Prompt `number` of about sixty bytes."""
    return _LINES[number % len(_LINES)]


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """One way of execution. `allocation`: None without drafts; `fixed`: every lane verifies FIXED_WIDTH rows.

    `kv_pages`: of the pool, None for plenty. `captures`: every answer may have its terminal state kept, whatever it
    costs.
    """

    name: str
    allocation: str | None = None
    fixed: bool = False
    mixed: bool = False
    kv_pages: int | None = None
    captures: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Options of `helios serve`."""
        chosen: tuple[str, ...] = ()
        if self.allocation is not None:
            chosen += (*_DRAFTS, "--draft-allocation", self.allocation)
        if self.fixed:
            chosen += ("--verification", f"fixed:{FIXED_WIDTH}")
        if self.kv_pages is not None:
            chosen += ("--kv-pages", str(self.kv_pages))
        if self.captures:
            chosen += ("--scheduler-checkpoint-extra-work-fraction", "1")
        return chosen + (("--mixed-prefill", "--mixed-prompt-rows", "3") if self.mixed else ())


_WAYS = (
    Mode("ordinary"),
    Mode("fixed", "none", fixed=True),
    Mode("adaptive-none", "none"),
    Mode("adaptive-host", "host"),
    Mode("adaptive-device", "device"),
)
MODES = tuple(
    dataclasses.replace(way, name=f"{way.name}{'-mixed' * mixed}", mixed=mixed)
    for way in _WAYS
    for mixed in (False, True)
)


class Fleet:
    """One server after the other; the next one starts meanwhile, since a start is mostly imports on one core."""

    def __init__(self, folder: pathlib.Path, modes: Sequence[Mode]) -> None:
        self._folder = folder
        self._waiting = list(modes)
        self._started: dict[Mode, HeliosServer] = {}

    @contextlib.contextmanager
    def serving(self, mode: Mode) -> Iterator[HeliosServer]:
        """A ready server in `mode`, ended afterwards."""
        self._start(mode)
        if self._waiting:
            self._start(self._waiting[0])
        server = self._started[mode]
        try:
            yield server.wait_ready()
        finally:
            del self._started[mode]
            server.end()

    def end(self) -> None:
        """Ends what was started and not used."""
        for server in self._started.values():
            server.end()

    def _start(self, mode: Mode) -> None:
        if mode in self._waiting:
            self._waiting.remove(mode)
            self._started[mode] = HeliosServer(self._folder / mode.name, *_SERVER, *mode.options)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a client received. `output_tokens`: None when it left early. `arrivals_s`: of each chunk of text."""

    request_id: str
    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    arrivals_s: tuple[float, ...]

    @property
    def gaps_ms(self) -> list[float]:
        """Time between chunks of text."""
        return [(later - earlier) * 1e3 for earlier, later in itertools.pairwise(self.arrivals_s)]


@functools.cache
def _client(helios: HeliosServer) -> openai.OpenAI:
    """One for each server: making one takes longer than a short answer."""
    return helios.client(http_client=httpx.Client(verify=False))


class OpenStream:
    """A greedy answer that arrives; the client reads as it likes, to the end or not."""

    def __init__(self, helios: HeliosServer, prompt: str, max_tokens: int) -> None:
        began = _client(helios).completions.create(
            model=MODEL,
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            timeout=ANSWER_SECONDS,
        )
        self._read(began)

    def _read(self, stream) -> None:
        self._stream = stream
        self._chunks = iter(stream)
        self.text = ""
        self._request_id = ""
        self._finish_reason: str | None = None
        self._usage = None
        self._arrivals: list[float] = []

    def take(self, characters: int) -> None:
        """Read until so much text has come."""
        while len(self.text) < characters and self._next():
            pass
        assert len(self.text) >= characters, f"the answer ended with {self._finish_reason} after {self.text!r}"

    def finish(self) -> Answer:
        """Read to the end."""
        while self._next():
            pass
        assert self._usage is not None, "a stream that ends says what it used"
        return self._answer()

    def leave(self) -> Answer:
        """Close the connection."""
        self._stream.close()
        return self._answer()

    def _next(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._request_id = chunk.id
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            self._finish_reason = choice.finish_reason or self._finish_reason
            if choice.text:
                self.text += choice.text
                self._arrivals.append(time.monotonic())
        return True

    def _answer(self) -> Answer:
        used = self._usage
        return Answer(
            self._request_id,
            self.text,
            self._finish_reason,
            used and used.prompt_tokens,
            used and used.completion_tokens,
            tuple(self._arrivals),
        )


def answer(helios: HeliosServer, prompt: str, max_tokens: int) -> Answer:
    """A greedy answer, streamed to its end."""
    return OpenStream(helios, prompt, max_tokens).finish()


def chat_answer(
    helios: HeliosServer, messages: Sequence[dict[str, str]], max_tokens: int, stop: Sequence[str] = ()
) -> Answer:
    """A greedy chat answer, whole."""
    whole = _client(helios).chat.completions.create(
        model=MODEL, messages=messages, max_tokens=max_tokens, temperature=0, stop=list(stop), timeout=ANSWER_SECONDS
    )
    choice, used = whole.choices[0], whole.usage
    text = choice.message.content
    return Answer(whole.id, text, choice.finish_reason, used.prompt_tokens, used.completion_tokens, ())


def answers(helios: HeliosServer, prompts: Sequence[str], max_tokens: Sequence[int]) -> list[Answer]:
    """Greedy answers to all prompts at once, in the prompts' order."""
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(answer, itertools.repeat(helios), prompts, max_tokens))


@contextlib.contextmanager
def in_background(call: Callable[[], Answer]) -> Iterator[concurrent.futures.Future[Answer]]:
    """A call that waits for its answer in a thread."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)
