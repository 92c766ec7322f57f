"""What goes into the scheduler besides time and policy: requests and completions."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

from scheduler.checks import storable_text, whole
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
MAX_TOKENS = 2**31 - 1
LONGEST_WAIT_NS = 2**53
"""About 104 days."""
_SWITCHES = ("grammar", "host_stop", "host_fed", "scored", "restoring")


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
    `waited_ns`: how long it had waited when it was admitted; its age counts from then.
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
    waited_ns: int = 0

    def __post_init__(self) -> None:
        self._check_names()
        for name in ("prompt_tokens", "max_output_tokens", "context_capacity"):
            value = getattr(self, name)
            if not whole(value, 1, MAX_TOKENS):
                raise InvalidRequest(f"{name} is {value!r}; it must be a whole number from 1 to {MAX_TOKENS}")
        if not whole(self.cached_tokens, 0, self.prompt_tokens - 1):
            raise InvalidRequest(
                f"cached_tokens is {self.cached_tokens!r}; it must be a whole number, at least 0, and leave one of "
                f"{self.prompt_tokens} prompt tokens to compute"
            )
        if not whole(self.waited_ns, 0, LONGEST_WAIT_NS):
            raise InvalidRequest(
                f"waited_ns is {self.waited_ns!r}; it must be a whole number from 0 to {LONGEST_WAIT_NS}"
            )
        self._check_places()

    def _check_names(self) -> None:
        """Ids, sources and switches."""
        if not storable_text(self.request_id) or not (self.continues is None or storable_text(self.continues)):
            raise InvalidRequest(
                f"request_id {self.request_id!r}, continues {self.continues!r}: ids are text that UTF-8 can hold"
            )
        for source in _listed("proposal_sources", self.proposal_sources):
            if source not in PROPOSAL_SOURCES:
                raise InvalidRequest(f"proposal source {source!r}; allowed are {', '.join(PROPOSAL_SOURCES)}")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} is {getattr(self, name)!r}; it must be True or False")

    def _check_places(self) -> None:
        """Message boundaries, atomic spans and images: whole numbers at places of the prompt."""
        tokens = self.prompt_tokens
        _check_rising("message_boundaries", _listed("message_boundaries", self.message_boundaries), tokens)
        _check_spans("atomic_spans", _listed("atomic_spans", self.atomic_spans), tokens)
        images = _listed("images", self.images)
        for image in images:
            if not isinstance(image, ImageSpan) or not whole(image.feature_rows, 1, MAX_TOKENS):
                raise InvalidRequest(f"images: {image!r}; each is an ImageSpan of 1 to {MAX_TOKENS} feature rows")
        _check_spans("images", [(i.first_token, i.end_token) for i in images], tokens)


def _listed(name: str, values: object) -> Sequence[Any]:
    if not isinstance(values, tuple | list):
        raise InvalidRequest(f"{name} is {values!r}; it must be a tuple")
    return values


def _check_rising(name: str, positions: Sequence[Any], prompt_tokens: int) -> None:
    if any(not whole(position, 1, prompt_tokens) for position in positions) or any(
        a >= b for a, b in itertools.pairwise(positions)
    ):
        raise InvalidRequest(
            f"{name} {list(positions[:4])}: they must be whole numbers that rise within 1 to {prompt_tokens}"
        )


def _check_spans(name: str, spans: Sequence[Any], prompt_tokens: int) -> None:
    before = 0
    for span in spans:
        pair = isinstance(span, tuple | list) and len(span) == 2 and all(whole(end, 0, prompt_tokens) for end in span)
        if not pair or not before <= span[0] < span[1]:
            raise InvalidRequest(
                f"{name} {list(spans[:4])}: they must be (first, end) pairs of whole numbers, ascending, disjoint and "
                "within the prompt"
            )
        before = span[1]


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
