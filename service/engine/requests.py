"""Open requests: the engine's own bookkeeping beside the scheduler's.

A request is open from Submit until its one terminal state is decided:

    queued ──► resident ──► ended
       └─────────────────────►┘
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator

from scheduler.records import FinishReason, RequestHandle, RequestSpec
from service.ipc.messages import Sampling


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """The terminal state. `decided_ns`: completion of the last graph, or the time of the cancel."""

    reason: FinishReason
    error: str | None
    decided_ns: int


@dataclasses.dataclass(slots=True)
class EngineRequest:
    """One request. Invariants:

    `prompt`: the token ids until the device has them, then empty; `prompt_length` stays.
    `arrived_ns` + `tokenize_ns` is at most the time of its Submit. `handle` is set once the scheduler holds it.
    `first_commit_ns` <= `first_output_ns`; `published_ns`: the last hand-over of tokens.
    `consumed_tokens`, `output_tokens`: committed so far. `unpublished`: committed, visible, not handed over yet.
    `told`: output tokens that the client knows of, stop tokens included.
    `ending` is set once, and the request has left the table then.
    """

    client: bytes
    spec: RequestSpec
    prompt: list[int]
    sampling: Sampling
    stop_token_ids: frozenset[int]
    arrived_ns: int
    tokenize_ns: int
    handle: RequestHandle | None = None
    first_commit_ns: int | None = None
    first_output_ns: int | None = None
    published_ns: int | None = None
    consumed_tokens: int = 0
    output_tokens: int = 0
    told: int = 0
    unpublished: list[int] = dataclasses.field(default_factory=list)
    ending: Ending | None = None

    @property
    def request_id(self) -> str:
        """The id that the service gave it."""
        return self.spec.request_id

    @property
    def prompt_length(self) -> int:
        """Prompt tokens."""
        return self.spec.prompt_tokens

    @property
    def begun_ns(self) -> int:
        """When its queue phase began: arrival plus tokenizing."""
        return self.arrived_ns + self.tokenize_ns


@dataclasses.dataclass(frozen=True, slots=True)
class Phases:
    """Where a request's time went, in ns; with tokenize_ns they add up to finished_ns - arrived_ns exactly."""

    queue_ns: int
    prefill_ns: int
    decode_ns: int
    publish_ns: int


def phases(request: EngineRequest, ending: Ending, finished_ns: int) -> Phases:
    """A phase that the request did not reach is 0; the one in which it was ended lasts until the decision."""
    decided = min(ending.decided_ns, finished_ns)
    commit = max(request.begun_ns, _earlier(request.first_commit_ns, decided))
    output = max(commit, _earlier(request.first_output_ns, decided))
    decided = max(output, decided)
    return Phases(commit - request.begun_ns, output - commit, decided - output, finished_ns - decided)


def _earlier(mark: int | None, decided: int) -> int:
    return decided if mark is None else min(mark, decided)


class RequestTable:
    """Every open request, by id and by client, and the queue in order of arrival."""

    def __init__(self) -> None:
        self._by_id: dict[str, EngineRequest] = {}
        self._by_client: dict[bytes, set[str]] = {}
        self._queue: collections.OrderedDict[str, EngineRequest] = collections.OrderedDict()
        self._unstarted: collections.OrderedDict[str, EngineRequest] = collections.OrderedDict()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def __len__(self) -> int:
        """Open requests."""
        return len(self._by_id)

    def __iter__(self) -> Iterator[EngineRequest]:
        return iter(list(self._by_id.values()))

    @property
    def queued(self) -> int:
        """Requests that the scheduler does not hold yet."""
        return len(self._queue)

    @property
    def resident(self) -> int:
        """Requests that the scheduler holds."""
        return len(self._by_id) - len(self._queue)

    @property
    def head(self) -> EngineRequest | None:
        """The queued request that came first."""
        return next(iter(self._queue.values()), None)

    @property
    def waiting(self) -> int:
        """Requests that no graph has served yet, queued or resident: whoever is starved shows here."""
        return len(self._unstarted)

    @property
    def running(self) -> int:
        """Requests that some graph has served."""
        return len(self._by_id) - len(self._unstarted)

    @property
    def longest_waiting(self) -> EngineRequest | None:
        """The request that came first among those that no graph has served yet."""
        return next(iter(self._unstarted.values()), None)

    def get(self, request_id: str) -> EngineRequest | None:
        """The open request of that id."""
        return self._by_id.get(request_id)

    def of_client(self, client: bytes) -> Iterable[EngineRequest]:
        """A client's open requests."""
        return [self._by_id[request_id] for request_id in sorted(self._by_client.get(client, ()))]

    def enqueue(self, request: EngineRequest) -> None:
        """Open a request, at the end of the queue."""
        assert request.request_id not in self._by_id
        self._by_id[request.request_id] = request
        self._by_client.setdefault(request.client, set()).add(request.request_id)
        self._queue[request.request_id] = request
        self._unstarted[request.request_id] = request

    def admit(self, request: EngineRequest, handle: RequestHandle) -> None:
        """The scheduler holds the request from now on."""
        del self._queue[request.request_id]
        request.handle = handle
        request.prompt = []

    def start(self, request: EngineRequest, committed_ns: int) -> None:
        """The request's first graph was committed."""
        del self._unstarted[request.request_id]
        request.first_commit_ns = committed_ns

    def remove(self, request: EngineRequest) -> None:
        """The request has ended."""
        del self._by_id[request.request_id]
        self._queue.pop(request.request_id, None)
        self._unstarted.pop(request.request_id, None)
        ids = self._by_client[request.client]
        ids.discard(request.request_id)
        if not ids:
            del self._by_client[request.client]
