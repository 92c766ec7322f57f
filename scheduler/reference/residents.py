"""Resident requests: the state that the scheduler keeps of each (specification "Requests", S4, S9, S10)."""

from __future__ import annotations

import dataclasses
import enum

from scheduler.records import RequestHandle, RequestSpec
from scheduler.reference.estimates import Estimates
from scheduler.reference.prompts import Prompt
from scheduler.shapes import GraphKind


class Stage(enum.Enum):
    """What a request waits for."""

    INIT = "init"
    RESTORE = "restore"
    VISION = "vision"
    PREFILL = "prefill"
    DECODE = "decode"
    SNAPSHOT = "snapshot"
    TERMINAL = "terminal"
    WAITING = "waiting"


@dataclasses.dataclass(slots=True)
class Resident:
    """One admitted request.

    `consumed`: prompt tokens in the cache. `emitted`: committed output tokens. `in_flight`: frames with a lane of it, 0
    to 2, and `pending` the sum of those lanes' ceilings. `offered`: drafts of a standing copy offer, 0 without one.
    `images_left`: images of the active window that VISION has not served. `window`: the SNAPSHOT that it waits for is
    a window boundary. `windows_done`: windows behind it. `retiring`: preempted, TERMINAL once nothing of it is in
    flight. `finished`: it ended normally. `epoch` rises with each change that invalidates a plan made before it.
    `token_memory`, `delivery_memory`: inverse rates in ms per unit, None until measured; `last_visible_ns` None before
    the first visible output. The `view_` fields are the same projected over the queue (S10), as decisions see them.
    """

    handle: RequestHandle
    spec: RequestSpec
    prompt: Prompt
    estimates: Estimates
    admitted: int
    stage: Stage
    consumed: int
    images_left: int
    arrived_ns: int = 0
    emitted: int = 0
    in_flight: int = 0
    pending: int = 0
    offered: int = 0
    window: bool = False
    windows_done: int = 0
    cancelled: bool = False
    retiring: bool = False
    finished: bool = False
    epoch: int = 0
    last_served_tick: int = 0
    terminal_since_ns: int = 0
    pages_held: int = 0
    decode_earned_ms: float = 0.0
    token_memory: float | None = None
    delivery_memory: float | None = None
    last_visible_ns: int | None = None
    view_token_memory: float | None = None
    view_delivery_memory: float | None = None
    view_visible_ns: int | None = None

    @property
    def slot(self) -> int:
        """Its slot."""
        return self.handle.slot

    @property
    def runnable(self) -> bool:
        """Not cancelled and not waiting for external restoration."""
        return not self.cancelled and self.stage is not Stage.WAITING

    @property
    def selectable(self) -> bool:
        """A plan may use it in its stage, resources aside: decoding lanes beside their own frames, others alone."""
        if not self.runnable or self.retiring:
            return False
        return self.left >= 1 if self.stage is Stage.DECODE else self.in_flight == 0

    @property
    def prompt_whole(self) -> bool:
        """All prompt tokens are in the cache."""
        return self.consumed >= self.spec.prompt_tokens

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that are still to be read."""
        return self.spec.prompt_tokens - self.consumed

    @property
    def active_decoder(self) -> bool:
        """A decoding request with visible output, as projected: it has an output age (S4)."""
        visible = self.view_visible_ns is not None
        return self.runnable and self.prompt_whole and self.stage is not Stage.TERMINAL and visible

    @property
    def output_limit(self) -> int:
        """Output tokens that the request may ever have."""
        return min(self.spec.max_output_tokens, self.spec.context_capacity - self.spec.prompt_tokens)

    @property
    def left(self) -> int:
        """Output tokens that a further lane may commit: output_limit - emitted - pending."""
        return self.output_limit - self.emitted - self.pending

    @property
    def source(self) -> str | None:
        """Where its drafts come from now: "copy" while an offer stands, else "learned" if listed, else None."""
        if self.spec.grammar:
            return None
        if self.offered:
            return "copy"
        return "learned" if "learned" in self.spec.proposal_sources else None

    @property
    def drafts(self) -> int | None:
        """Drafts available now; None is without bound."""
        if self.source is None:
            return 0
        return self.offered if self.source == "copy" else None

    @property
    def feedback(self) -> bool:
        """A lane of it in flight must complete before the next is submitted (S10)."""
        spec = self.spec
        return spec.grammar or spec.host_stop or spec.host_fed or self.offered > 0

    def usable_rows(self, most: int) -> int:
        """At most 1 + drafts of `most` rows."""
        drafts = self.drafts
        return most if drafts is None else min(most, 1 + drafts)

    def rows(self, width: int) -> int:
        """Rows of a decoding lane in a shape whose lanes use at most `width`: min(width, left, 1 + drafts)."""
        return self.usable_rows(min(width, self.left))

    def work(self, capacity: int) -> int:
        """The prompt tokens that a graph of this prompt capacity would consume."""
        return self.prompt.work(self.consumed, capacity)

    def finishes(self, work: int) -> bool:
        """Consuming `work` prompt tokens makes the prompt whole, which yields one output token."""
        return self.consumed + work == self.spec.prompt_tokens

    def chain(self) -> tuple[GraphKind, ...]:
        """The prerequisite kinds after the current stage and before inference (specification "Requests")."""
        if self.stage in (Stage.INIT, Stage.RESTORE):
            return (GraphKind.VISION,) * self.images_left
        if self.stage is Stage.VISION:
            return (GraphKind.VISION,) * (self.images_left - 1)
        if self.stage is Stage.SNAPSHOT and self.window:
            images = len(self.prompt.windows[self.windows_done + 1])
            return (GraphKind.RESTORE, *(GraphKind.VISION,) * images)
        return ()

    def survival(self, forecast: bool) -> list[float]:
        """Survival at depths 1.. (index 0 is depth 1) of the active source's estimator (S3)."""
        return self.estimates.derived(self.source, forecast).survival

    def yield_raw(self, rows: int, forecast: bool) -> float:
        """Expected output of `rows` rows."""
        return self.estimates.derived(self.source, forecast).raw[rows]

    def yield_optimistic(self, rows: int, forecast: bool) -> float:
        """yield_opt(rows), for acceptance learning."""
        return self.estimates.derived(self.source, forecast).optimistic[rows]

    def weight(self, depth: int, forecast: bool) -> float:
        """The weight of the active source's estimate at depth 1.. (S8's least-informed prefix)."""
        return self.estimates.weight(self.source, forecast, depth)
