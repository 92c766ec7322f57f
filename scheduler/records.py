"""What goes into the scheduler besides time and policy: requests and completions."""

from __future__ import annotations

import dataclasses
import enum

from scheduler.errors import InvalidRequest


class FinishReason(enum.Enum):
    """Why a request ended. Values are the names used in SQL, HTTP and metrics."""

    STOP = "stop"  # the model ended its answer, or a stop string matched
    LENGTH = "length"  # max_output_tokens or the context capacity was reached
    ABORT = "abort"  # the client went away or the server is stopping
    ERROR = "error"  # the program failed


@dataclasses.dataclass(frozen=True, slots=True)
class RequestHandle:
    """A resident request: its slot and the slot's generation. A reused slot has a new generation."""

    slot: int
    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request as the scheduler sees it: counts only, never token ids.

    `prompt_tokens`, `cached_tokens` (of the prompt, already in the cache), `max_output_tokens` and
    `context_capacity` (prompt plus output) are token counts. Prerequisites, grammar, proposals and
    message boundaries join when the scheduler plans for them.

    Raises InvalidRequest when the counts contradict each other.
    """

    request_id: str
    prompt_tokens: int
    max_output_tokens: int
    context_capacity: int
    cached_tokens: int = 0

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


@dataclasses.dataclass(frozen=True, slots=True)
class CompletionRecord:
    """What one lane of a completed graph did.

    `consumed_prompt_tokens`: prompt tokens now in the cache because of this graph.
    `emitted_tokens`: committed token ids, oldest first. `accepted_tokens`: how many of them were drafts.
    `finished`: set when the model ended the answer; the output limit is applied by the scheduler itself.
    `error`: set when this lane failed; the request then ends with FinishReason.ERROR.
    """

    handle: RequestHandle
    consumed_prompt_tokens: int = 0
    emitted_tokens: tuple[int, ...] = ()
    accepted_tokens: int = 0
    finished: FinishReason | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ExecutionTiming:
    """How long a graph ran.

    `device_ns`: the device interval of each rank; zero or missing (an empty tuple) teaches nothing.
    `wall_ns`: the host's interval from dispatch through observed completion.
    `exposed_delivery_ns`: readiness delay to subtract after the maximum over ranks, for graph costs only (S6).
    """

    device_ns: tuple[int, ...]
    wall_ns: int
    exposed_delivery_ns: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class GeneratedToken:
    """One committed output token, to be published.

    `index` counts the request's output tokens from 0. `finished` is set on the last token of a request.
    """

    handle: RequestHandle
    request_id: str
    token_id: int
    index: int
    finished: FinishReason | None = None
