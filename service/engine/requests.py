"""Open requests: the engine's own bookkeeping beside the scheduler's.

A request is open from Submit until its one terminal state is decided:

    queued ──► resident ──► ended
       │ ◄─ preempted ┘       ▲
       └──────────────────────┘

A preempted request begins another *life*: to the scheduler and the device it is a new request whose prompt is the
old one and the output so far. The client sees one answer.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from gpu.device import SamplingParameters
from scheduler.plans import PlanLane
from scheduler.records import FinishReason, RequestHandle, RequestSpec
from service.ipc.messages import Operation, TokenScore


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """The terminal state. `decided_ns`: completion of the last graph, or the time of the cancel."""

    reason: FinishReason
    error: str | None
    decided_ns: int


@dataclasses.dataclass(slots=True)
class EngineRequest:
    """One request. Invariants:

    `spec`: this life's, as the scheduler has it or gets it; `request_id` is the same in every life.
    `prompt`: the request's own, `output` the committed output; both are kept only while a preemption is possible,
    otherwise `prompt` is empty once the device has it.
    `arrived_ns` + `tokenize_ns` is at most the time of its Submit. `handle` is set while the scheduler holds it.
    `first_commit_ns` <= `first_output_ns`; `published_ns`: the last hand-over of tokens,
    `first_published_ns` the first. `trace_id`: its caller's, in hexadecimal.
    `consumed_tokens`: of this life's prompt that are in the KV cache, cached ones included; `prompt_seen`: the most of
    the request's own prompt that ever were. `output_tokens`: committed so far, `emitted_before` of them in earlier
    lives. `unpublished`: committed, visible, not handed over yet; `logprobs` has one entry for each when asked for.
    `prompt_logprobs`: not handed over yet; `scored_tokens`: how many were collected, `scored_now`: in this life.
    `told`: output tokens that the client knows of, stop tokens included.
    `refused_at`: spare pages (negative: missing) when it last did not fit. `passes`: requests that were let in before
    it while this life waits. `losses`: lives that a device without pages for their frame has ended.
    `copy_mean`, `learned_mean`: see `drafts`. `copied_well`: its last copied round had a draft right. `offered_copies`:
    an offer of copies stands.
    `ending` is set once, and the request has left the table then.
    """

    client: bytes
    spec: RequestSpec
    prompt: list[int]
    parameters: SamplingParameters
    stop_token_ids: frozenset[int]
    arrived_ns: int
    tokenize_ns: int
    operation: Operation = "text_completion"
    trace_id: str | None = None
    handle: RequestHandle | None = None
    first_commit_ns: int | None = None
    first_output_ns: int | None = None
    first_published_ns: int | None = None
    published_ns: int | None = None
    request_id: str = dataclasses.field(init=False)
    prompt_length: int = dataclasses.field(init=False)
    output: list[int] = dataclasses.field(default_factory=list)
    consumed_tokens: int = 0
    prompt_seen: int = 0
    output_tokens: int = 0
    emitted_before: int = 0
    preemptions: int = 0
    losses: int = 0
    passes: int = 0
    told: int = 0
    unpublished: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenScore] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[TokenScore] = dataclasses.field(default_factory=list)
    scored_tokens: int = 0
    scored_now: int = 0
    refused_at: float = -math.inf
    copy_mean: float = math.inf
    learned_mean: float = 0.0
    copied_well: bool = False
    offered_copies: bool = False
    ending: Ending | None = None

    def __post_init__(self) -> None:
        self.request_id, self.prompt_length = self.spec.request_id, self.spec.prompt_tokens

    @property
    def whole_tokens(self) -> int:
        """Prompt and the most output; the same in every life."""
        return self.spec.prompt_tokens + self.spec.max_output_tokens

    @property
    def cached_now(self) -> int:
        """At least this many tokens have KV pages."""
        return self.consumed_tokens + self.output_tokens - self.emitted_before

    @property
    def computed_tokens(self) -> int:
        """The prompt and the answer but its newest token, which is drawn and not computed; not what lies behind it."""
        return self.spec.prompt_tokens + self.output_tokens - self.emitted_before - 1

    @property
    def decodes(self) -> bool:
        """Its prompt is whole and it has not ended."""
        return self.handle is not None and self.consumed_tokens == self.spec.prompt_tokens

    def holds(self, lane: PlanLane) -> bool:
        """Whether the lane is its own, of this life, and it has not ended."""
        return self.ending is None and self.handle == lane.handle

    def consume(self, tokens: int) -> None:
        """`tokens` more of this life's prompt are in the KV cache."""
        self.consumed_tokens += tokens
        self.prompt_seen = max(self.prompt_seen, min(self.consumed_tokens, self.prompt_length))

    def begin_life(self) -> None:
        """What is to be admitted next: the prompt and the output so far, for the rest of the output."""
        self.handle = None
        self.preemptions += 1
        whole, prompt_tokens = self.whole_tokens, self.prompt_length + self.output_tokens
        self.emitted_before, self.consumed_tokens = self.output_tokens, 0
        self.scored_now, self.refused_at, self.passes = 0, -math.inf, 0
        self.offered_copies = False
        self.spec = dataclasses.replace(
            self.spec,
            prompt_tokens=prompt_tokens,
            max_output_tokens=whole - prompt_tokens,
            cached_tokens=0,
            scored=self.spec.scored and self.scored_tokens < self.prompt_length - 1,
            continues=self.request_id,
        )

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
        self.get: Callable[[str], EngineRequest | None] = self._by_id.get
        """The open request of that id."""
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

    def residents(self) -> Iterator[EngineRequest]:
        """Open requests that the scheduler holds."""
        return (request for request in self._by_id.values() if request.handle is not None)

    @property
    def head(self) -> EngineRequest | None:
        """The queued request whose turn it is: preempted ones first, then in order of arrival."""
        return self.queued_at(0)

    def queued_at(self, place: int) -> EngineRequest | None:
        """The queued request with so many before it; None where the queue ends before."""
        return next(itertools.islice(self._queue.values(), place, None), None)

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

    def requeue(self, request: EngineRequest) -> None:
        """The scheduler no longer holds the request, which has begun another life: it is admitted next."""
        self._queue[request.request_id] = request
        self._queue.move_to_end(request.request_id, last=False)

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
