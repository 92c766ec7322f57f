"""What a preview is asked, how far it is and what came of it. Plain frozen data; JSON in files and over HTTP.

Times: `_ms` milliseconds, `_at` and `since`/`until` UTC wall times. Shares are from 0 to 1. Quantities that nothing
was recorded for are None.
"""

from __future__ import annotations

import datetime as dt
from typing import Literal

import msgspec

from scheduler.policy import CoefficientValue

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Of every distribution, in this order."""
MOST_MINUTES = 24 * 60.0
MOST_SWEEP_POINTS = 25
MOST_SWEEP_AXES = 2

State = Literal["queued", "running", "done", "cancelled", "failed"]
ENDED: tuple[State, ...] = ("done", "cancelled", "failed")


class SweepAxis(msgspec.Struct, frozen=True):
    """One coefficient and the values that it takes, ascending, each once."""

    coefficient: str
    values: tuple[CoefficientValue, ...]


class Sweep(msgspec.Struct, frozen=True):
    """One or two coefficients; every combination of their values is a point. All others are as in the draft."""

    axes: tuple[SweepAxis, ...]


class PreviewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay, and under which draft.

    `draft`: every coefficient of the draft policy. `running`: the same of the policy in force when it was asked.
    `minutes`: length of the window, which ends at `until` (None: at the newest recorded plan). `run_id`: whose traffic;
    None: of the run that planned last before `until`. `seed`: of the simulator's luck.
    """

    draft: dict[str, CoefficientValue]
    running: dict[str, CoefficientValue]
    running_version: int | None = None
    minutes: float = 10.0
    until: dt.datetime | None = None
    run_id: str | None = None
    sweep: Sweep | None = None
    seed: int = 0


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Which traffic was replayed. `policy_versions`: those that recorded plans carry."""

    run_id: str
    model: str
    device: str
    since: dt.datetime
    until: dt.datetime
    policy_versions: tuple[int, ...]


class Sampled(msgspec.Struct, frozen=True):
    """The window was too long to be replayed whole. `share` of its time was, in `pieces`; `words` says it."""

    share: float
    pieces: int
    words: str


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one window.

    `ttft_ms`: arrival to the first visible output. `time_per_token_ms`: an answer's time from its first visible output
    to its last, divided by its further tokens. `inter_token_ms`: every time between two visible outputs of an answer.
    Each is a list of (quantile, ms) in the order of QUANTILES, empty without values.
    `tokens_per_s`: output tokens; `prompt_tokens_per_s`: computed ones. `fairness_requests`: Jain's index over the
    requests' service rates (computed prompt and output tokens by time from arrival to end), 1 when all are equal;
    `fairness_groups`: over the means of `groups`, which share a cached prefix or else a model; None below two groups.
    `exploration_share`, `busy_share`: of device time, and of the window. `completed`: answers that ended.
    `samples`: how many requests ttft_ms is of.
    """

    ttft_ms: list[tuple[float, float]] = []
    time_per_token_ms: list[tuple[float, float]] = []
    inter_token_ms: list[tuple[float, float]] = []
    largest_gap_ms: float | None = None
    tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    fairness_requests: float | None = None
    fairness_groups: float | None = None
    groups: int = 0
    exploration_share: float | None = None
    busy_share: float | None = None
    accepted_share: float | None = None
    completed: int = 0
    samples: int = 0
    plans: int = 0


class FigureError(msgspec.Struct, frozen=True, kw_only=True):
    """How far the simulator is from what happened, for one figure. `ratio`: simulated over recorded; 1 is exact.

    `name`: ttft_, time_per_token_ or inter_token_ with p50_ms or p99_ms; tokens_per_s, busy_share.
    """

    name: str
    recorded: float | None
    simulated: float | None
    ratio: float | None


class SweepPoint(msgspec.Struct, frozen=True):
    """`values`: one for each axis, in their order. `is_draft`: they are the draft's own."""

    values: tuple[CoefficientValue, ...]
    figures: Figures
    is_draft: bool = False


class PreviewResult(msgspec.Struct, frozen=True, kw_only=True):
    """`recorded`: what happened; `running` and `draft`: the simulator's answers for the two policies.

    `simulator_error` compares a replay under the policy in force with `recorded`; it tells about the simulator only
    when `recorded_under_running`, that is when every recorded plan carries the values of the running policy. `notes`:
    what people should know, in whole sentences. `requests`: replayed; `open_at_start`: of these, those under way at the
    beginning. `seconds`: of simulated work; `plans`: simulated in all.
    """

    window: Window
    sampled: Sampled | None
    requests: int
    open_at_start: int
    recorded: Figures
    running: Figures
    draft: Figures
    simulator_error: list[FigureError]
    recorded_under_running: bool
    sweep_axes: tuple[SweepAxis, ...] = ()
    sweep: list[SweepPoint] = []
    notes: list[str] = []
    seconds: float = 0.0
    plans: int = 0


class PreviewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far one preview is. `progress`: 0 to 1. `message`: one sentence for people. `by`: who asked for it."""

    id: str
    state: State
    progress: float
    message: str
    request: PreviewRequest
    made_at: dt.datetime
    by: str
    started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    result: PreviewResult | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in ENDED
