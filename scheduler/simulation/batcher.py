"""What the simulated machine asks of whoever decides: RequestScheduler and every baseline answer it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from scheduler.records import CompletionRecord, ExecutionTiming, RequestHandle, RequestSpec
from scheduler.shapes import GraphShape


class BatchLane(Protocol):
    """One request's share of a plan.

    `prompt_tokens`: prompt tokens consumed; 0 for a decoder. `query_length`: token rows, for a decoder the pending
    token and its drafts. `ceiling`: the most output tokens that the lane may commit.
    """

    @property
    def handle(self) -> RequestHandle: ...
    @property
    def request_id(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def query_length(self) -> int: ...
    @property
    def ceiling(self) -> int: ...


class BatchPlan(Protocol):
    """One step. `shape` is what the step is counted as, and says how many drafts a decoder's lane proposes."""

    @property
    def shape(self) -> GraphShape: ...
    @property
    def lanes(self) -> Sequence[BatchLane]: ...
    @property
    def reason(self) -> Any:
        """An enumeration member (scheduler.plans.Reason); its value is what the step is counted under."""


class Batcher(Protocol):
    """Decides what runs next. The machine calls it as the engine's worker does:

        advance_to, complete, admit, plan, commit, advance_to, published_output (per lane that emitted)

    Between two completions every published_output of the first is called. `commit` is called only with the plan that
    `plan` has just returned, and for at most `queue_depth` frames that have not completed; a batcher that does not want
    another frame queued returns None while one is in flight. A request ends with the record that carries `finished`, or
    when it reaches its max_output_tokens; its slot may be reused once no frame in flight serves it.
    """

    def advance_to(self, now_ns: int, /) -> None: ...

    def admit(self, spec: RequestSpec, /) -> RequestHandle:
        """Raises scheduler.errors.SlotsFull when every slot is taken; the machine then tries again later, in order."""

    def plan(self) -> Any:
        """A BatchPlan, or None when nothing can run or nothing should be queued behind the frame in flight."""

    def commit(self, plan: Any, fence: int, /) -> None: ...

    def complete(self, fence: int, records: Sequence[CompletionRecord], timing: ExecutionTiming, /) -> Sequence[Any]:
        """Records in lane order."""

    def published_output(self, handle: RequestHandle, fence: int, /) -> None: ...

    def cancel(self, handle: RequestHandle, /) -> None:
        """The client has left. No frame in flight serves the request, and all of its output was published."""


class DurationSource(Protocol):
    """How long a step really takes."""

    needs_context: bool
    """Whether `duration_ns` looks at context_tokens; computing it costs the machine time."""

    def duration_ns(self, plan: Any, context_tokens: float, now_ns: int, /) -> tuple[int, int]:
        """(device time, measured device time), ns; they differ only where a capture is measured wrongly.

        context_tokens: mean tokens in the cache over the plan's decoders (over its lanes if none decodes).
        """


class PlanColumns:
    """A plan's lanes as lists in lane order: `slots`, `rows` (query lengths) and `prompt_tokens` (0 for decoders).

    Read from a scheduler's plan without making its lanes, which are for people and journals and cost far more.
    """

    __slots__ = ("prompt_tokens", "rows", "slots")

    def __init__(self, plan: Any) -> None:
        cohort = getattr(plan, "cohort", None)
        if cohort is not None:
            self.slots: list[int] = cohort["slot"].tolist()
            self.rows: list[int] = cohort["rows"].tolist()
            self.prompt_tokens: list[int] = cohort["prompt_tokens"].tolist()
        else:
            lanes = plan.lanes
            self.slots = [lane.handle.slot for lane in lanes]
            self.rows = [lane.query_length for lane in lanes]
            self.prompt_tokens = [lane.prompt_tokens for lane in lanes]
