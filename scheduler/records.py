"""What goes into the scheduler besides time and policy: requests and completions."""

from __future__ import annotations

import dataclasses
import enum
import itertools

import msgspec

from scheduler.errors import InvalidRequest


class FinishReason(enum.Enum):
    """Why a request ended. Values are the names used in SQL, HTTP and metrics."""

    STOP = "stop"  # the model ended its answer, or a stop string matched
    LENGTH = "length"  # max_output_tokens or the context capacity was reached
    ABORT = "abort"  # the client went away or the server is stopping
    ERROR = "error"  # the program failed


class RequestHandle(msgspec.Struct, frozen=True, gc=False):
    """A resident request: its slot and the slot's generation. A reused slot has a new generation."""

    slot: int
    generation: int


PROPOSAL_SOURCES = ("learned", "copy")


@dataclasses.dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image's place in the prompt, [first_token, end_token), and the feature rows that it fills (S5)."""

    first_token: int
    end_token: int
    feature_rows: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request as the scheduler sees it: counts only, never token ids.

    `prompt_tokens`, `cached_tokens` (of the prompt, already in the cache), `max_output_tokens` and
    `context_capacity` (prompt plus output) are token counts. `message_boundaries`: prompt endpoints of completed
    messages, ascending. `atomic_spans`: [first, end) prompt intervals that one chunk must hold whole. `images`:
    ascending, disjoint. `grammar`, `host_stop` (stop strings are matched by the host) and `host_fed` (the host
    supplies each pending token) need completion feedback. `proposal_sources`: where drafts may come from.
    `scored`: the prompt runs on scored prefill graphs. `restoring`: its state is still being fetched; see
    RequestScheduler.restored. `continues`: the id of a request whose published terminal snapshot this one builds on.

    Raises InvalidRequest when the counts contradict each other.
    """

    request_id: str
    prompt_tokens: int
    max_output_tokens: int
    context_capacity: int
    cached_tokens: int = 0
    message_boundaries: tuple[int, ...] = ()
    atomic_spans: tuple[tuple[int, int], ...] = ()
    images: tuple[ImageSpan, ...] = ()
    grammar: bool = False
    host_stop: bool = False
    proposal_sources: tuple[str, ...] = ("learned", "copy")
    host_fed: bool = False
    scored: bool = False
    restoring: bool = False
    continues: str | None = None

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "max_output_tokens", "context_capacity"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
                raise InvalidRequest(f"{name} is {value!r}; it must be a whole number from 1 to {2**31 - 1}")
        if not 0 <= self.cached_tokens < self.prompt_tokens:
            raise InvalidRequest(
                f"cached_tokens is {self.cached_tokens}; it must be at least 0 and leave one of "
                f"{self.prompt_tokens} prompt tokens to compute"
            )
        for source in self.proposal_sources:
            if source not in PROPOSAL_SOURCES:
                raise InvalidRequest(f"proposal source {source!r}; allowed are {', '.join(PROPOSAL_SOURCES)}")
        _check_rising("message_boundaries", list(self.message_boundaries), self.prompt_tokens)
        _check_spans("atomic_spans", list(self.atomic_spans), self.prompt_tokens)
        _check_spans("images", [(i.first_token, i.end_token) for i in self.images], self.prompt_tokens)


def _check_rising(name: str, positions: list[int], prompt_tokens: int) -> None:
    if any(a >= b for a, b in itertools.pairwise(positions)) or any(
        not 0 < position <= prompt_tokens for position in positions
    ):
        raise InvalidRequest(f"{name} {positions[:4]}: they must rise within 1 to {prompt_tokens}")


def _check_spans(name: str, spans: list[tuple[int, int]], prompt_tokens: int) -> None:
    ends = [0, *(end for _, end in spans)]
    if any(not before <= first < end <= prompt_tokens for before, (first, end) in zip(ends, spans, strict=False)):
        raise InvalidRequest(f"{name} {spans[:4]}: they must be ascending, disjoint and within the prompt")


class CompletionRecord(msgspec.Struct, frozen=True):
    """What one lane of a completed graph did.

    `consumed_prompt_tokens`: prompt tokens now in the cache because of this graph.
    `emitted_tokens`: committed token ids, oldest first. `accepted_tokens`: how many of them were drafts.
    `offered_tokens`: how many drafts were verified; None means all that the plan gave the lane (its ceiling - 1, and
    under device allocation only what was accepted).
    `finished`: set when the model ended the answer; the output limit is applied by the scheduler itself.
    `error`: set when this lane failed; the request then ends with FinishReason.ERROR.
    """

    handle: RequestHandle
    consumed_prompt_tokens: int = 0
    emitted_tokens: tuple[int, ...] = ()
    accepted_tokens: int = 0
    finished: FinishReason | None = None
    error: str | None = None
    offered_tokens: int | None = None


class ExecutionTiming(msgspec.Struct, frozen=True):
    """How long a graph ran.

    `device_ns`: the device interval of each rank; zero or missing (an empty tuple) teaches nothing.
    `wall_ns`: the host's interval from dispatch through observed completion.
    `exposed_delivery_ns`: readiness delay to subtract after the maximum over ranks, for graph costs only (S6).
    """

    device_ns: tuple[int, ...]
    wall_ns: int
    exposed_delivery_ns: int = 0


class GeneratedToken(msgspec.Struct, frozen=True, gc=False):
    """One committed output token, to be published.

    `index` counts the request's output tokens from 0. `finished` is set on the last token of a request.
    """

    handle: RequestHandle
    request_id: str
    token_id: int
    index: int
    finished: FinishReason | None = None
