"""A scripted engine and a real HTTP server on a random loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import httpx
import msgspec
import openai
import sqlalchemy as sa
from litestar import Litestar
from litestar.types import ControllerRouterHandler
from opentelemetry.trace import Tracer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from service.api.application import create_app
from service.api.http_server import create_server
from service.control.policy import PolicyControl
from service.ipc.errors import EngineError, EngineUnavailable
from service.ipc.messages import EngineReady, Submit, Tokens, TokenScore
from service.listening import listen
from service.settings import Settings
from service.text import TextModel
from service.text.template import ChatTemplate
from service.text.vocabulary import TokenTable

MODEL = "tiny"
CONTEXT = 2_000
READY = EngineReady("run-1", 1, 1, context_tokens=CONTEXT, kv_pages=1_000, page_tokens=16, vocab_size=257)
TEMPLATE = (
    "{% for m in messages %}{% if m['content'] == 'refuse' %}{{ raise_exception('no') }}{% endif %}"
    "[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"
)


def byte_model() -> TextModel:
    """One token per byte: prompts and answers can be read off their ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: n for n, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    end = tokenizer.token_to_id("<end>")
    table = TokenTable(tokenizer)
    return TextModel(MODEL, tokenizer, table, ChatTemplate(TEMPLATE, {}), (end,), None, False, len(table))


MODEL_TEXT = byte_model()


def ids(text: str | bytes) -> list[int]:
    """The token ids of any bytes."""
    data = text.encode() if isinstance(text, str) else text
    by_byte = {MODEL_TEXT.table.bytes_of(i): i for i in range(len(MODEL_TEXT.table))}
    return [by_byte[bytes([byte])] for byte in data]


HOLD = "hold"
"""A step that waits until the request is cancelled, the engine released, or the server stopped."""


@dataclasses.dataclass(frozen=True)
class PromptScores:
    """A step: a message with the scores of so many more prompt tokens. What is left comes with the first tokens."""

    count: int


Step = list[int] | str | EngineError | tuple[str, str | None] | PromptScores


def score(token_id: int, count: int) -> TokenScore:
    """A token's invented score, the token itself the likeliest, then the next ids; exact in binary."""
    top = [((token_id + place) % READY.vocab_size, -(token_id + 1) / 256 - place) for place in range(count)]
    return token_id, -(token_id + 1) / 256, top


class FakeStream:
    """Plays a script: token id lists, HOLD, an error, PromptScores, or (finish_reason, error) as the last message."""

    def __init__(self, engine: FakeEngine, submit: Submit) -> None:
        self._engine = engine
        self._submit = submit
        self._steps = iter(engine.script(submit))
        self._output = 0
        self._scored = 1 + engine.lost_prompt_scores  # prompt tokens, the first of which has no score
        self._ended = False
        self._cancelled = asyncio.Event()
        # Those of this test: a stream that ends late tells nothing to the next one.
        self._left, self._holding, self._cancels = engine.left, engine.holding, engine.cancels

    async def __aenter__(self) -> FakeStream:
        await self._engine.admit(self._submit)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None):
        self.cancel("abort")
        self._left.set()

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> Tokens:
        if self._ended:
            raise StopAsyncIteration
        if self._cancelled.is_set():
            return self._last("abort", None)
        step = next(self._steps, ("stop", None))
        if step == HOLD:
            self._holding.set()
            waits = [asyncio.ensure_future(event.wait()) for event in (self._cancelled, self._engine.released)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            return await self.__anext__()
        if isinstance(step, EngineError):
            self._ended = True
            raise step
        if isinstance(step, tuple):
            return self._last(*step)
        await asyncio.sleep(0)
        if isinstance(step, PromptScores):
            return self._message([], step.count)
        self._output += len(step)
        return self._message(step)

    def _last(self, reason: str, error: str | None) -> Tokens:
        self._ended = True
        self._output += reason == "stop"  # the stop token
        return msgspec.structs.replace(self._message([]), finish_reason=reason, error=error)

    def _message(self, token_ids: list[int], prompt_scores: int = CONTEXT) -> Tokens:
        submit, prompt, told = self._submit, self._submit.prompt_token_ids, self._scored
        count = submit.prompt_logprobs
        self._scored = min(told + prompt_scores, len(prompt))
        return Tokens(
            submit.request_id,
            token_ids,
            len(prompt),
            self._output,
            logprobs=None if submit.logprobs is None else [self._score(i, submit.logprobs) for i in token_ids] or None,
            prompt_logprobs=None if count is None else [self._score(i, count) for i in prompt[told : self._scored]],
        )

    def _score(self, token_id: int, count: int) -> TokenScore:
        return self._engine.score(token_id, count)

    def cancel(self, reason: str, answer_tokens: int | None = None) -> None:
        if not self._ended and not self._cancelled.is_set():
            self._cancelled.set()
            self._cancels.append((self._submit.request_id, reason))
            self._engine.answer_tokens.append(answer_tokens)


def echo(submit: Submit) -> list[Step]:
    """Three messages and the end."""
    return [ids("Hel"), ids("lo"), ids("!"), ("stop", None)]


class FakeEngine:
    """Satisfies EnginePort."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.state: Any = "ready"
        self.ready: EngineReady | None = READY
        self.script: Callable[[Submit], list[Step]] = echo
        self.score: Callable[[int, int], TokenScore] = score
        self.lost_prompt_scores = 0
        self.refusal: EngineError | None = None
        self.slow_refusal = False
        self.submits: list[Submit] = []
        self.cancels: list[tuple[str, str]] = []
        self.answer_tokens: list[int | None] = []
        self.policies: list[tuple[int, dict[str, Any]]] = []
        self.policy_error: Exception | None = None
        self.released = asyncio.Event()
        self.holding, self.left = threading.Event(), threading.Event()

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def close(self) -> None:
        self.state = "down"

    def release(self) -> None:
        self.loop.call_soon_threadsafe(self.released.set)

    def submit(self, request: Submit) -> FakeStream:
        return FakeStream(self, request)

    async def admit(self, request: Submit) -> None:
        if self.state != "ready":
            raise EngineUnavailable(f"the engine is {self.state}; try again in a moment")
        self.submits.append(request)
        if self.refusal is not None:
            if self.slow_refusal:
                self.holding.set()
                await self.released.wait()
            raise self.refusal

    async def configure_policy(self, version: int, coefficients: dict[str, Any]) -> int:
        if self.policy_error is not None:
            raise self.policy_error
        self.policies.append((version, coefficients))
        return 7


@dataclasses.dataclass
class Api:
    """A running server."""

    engine: FakeEngine
    app: Litestar
    url: str
    http: httpx.Client
    stop: Callable[[], None]

    @property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", **fields})


@contextlib.contextmanager
def serving(
    store: sa.Engine,
    tmp_path: Any,
    tracer: Tracer | None = None,
    mounts: Callable[[PolicyControl], Sequence[ControllerRouterHandler]] = lambda _control: (),
    **overrides: Any,
) -> Iterator[Api]:
    """A server with a fake engine over `store`; `tracer` makes its own spans, `mounts` more routes."""
    engine = FakeEngine()
    settings = Settings(data_dir=str(tmp_path), database=str(store.url), threads=1, **overrides)
    control = PolicyControl(store, engine.configure_policy, tracer=tracer)
    app = create_app(
        settings,
        text_model=MODEL_TEXT,
        engine_client=engine,
        store_engine=store,
        control=control,
        tracer=tracer,
        mounts=mounts(control),
    )
    sock = listen("127.0.0.1", 0)
    sock.listen(64)  # connections wait here until the server takes the socket
    server = create_server(app)
    thread = threading.Thread(target=lambda: server.run(sockets=[sock]), daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"

    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
        try:
            http.get("/health/live")
            yield Api(engine, app, url, http, stop)
        finally:
            stop()


def raw_request(url: str, head: str, body: bytes = b"") -> bytes:
    """Sends bytes as they are and reads until the server closes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return received
