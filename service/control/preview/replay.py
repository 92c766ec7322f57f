"""Recorded traffic through the simulator: under the policy in force, under the draft, and at each point of a sweep."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import sqlalchemy as sa

from scheduler.errors import InvalidCheckpoint
from scheduler.policy import COEFFICIENT_BY_NAME, CoefficientValue, PolicyConfig
from scheduler.shapes import GraphKind, GraphShape
from scheduler.simulation.acceptance import AcceptanceLuck, Survival
from scheduler.simulation.machine import MachineSettings, simulate
from scheduler.simulation.recorded import (
    HostSamples,
    RecordedDurations,
    RecordedHost,
    ShapeSamples,
    Waits,
    estimate_by_neighbours,
    survival_of,
)
from scheduler.simulation.results import Outcome, SimulationResult
from scheduler.simulation.warm import WarmStart, cold_scheduler, known_durations, warm_scheduler
from scheduler.simulation.workload import Arrival, Workload
from service.control.preview.errors import NothingRecorded
from service.control.preview.messages import Figures, PreviewRequest, PreviewResult, Sweep, SweepPoint, Window
from service.control.preview.observed import EXPLORING, Seen, errors_between, figures_of
from service.control.preview.recording import Comer, Costs, Recording, WaitList, read_piece, shape_of, slots_of
from service.control.preview.window import Chosen, choose
from service.control.preview.words import notes_of
from service.store.traffic import mean_device_ns, policy_values

SNAPSHOT_ROWS = 1 << 16
_READING_SHARE = 0.1

Progress = Callable[[float, str], None]
"""Called now and then with the share that is done, 0 to 1, and what is being done."""


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What the recorded machine is like to the simulator; the same for every policy.

    `estimated_ns`: durations of shapes that did not run in the window. `snapshots`: states of answers are kept.
    """

    shapes: tuple[GraphShape, ...]
    samples: Mapping[GraphShape, ShapeSamples]
    estimated_ns: Mapping[GraphShape, int]
    host: HostSamples
    survival: Survival | None
    slots: int
    snapshots: bool


@dataclasses.dataclass(slots=True)
class Replayed:
    """One policy on all pieces. `estimated_plans`: steps that took an estimated duration."""

    figures: Figures
    results: list[SimulationResult]
    estimated_plans: int


def preview(engine: sa.Engine, request: PreviewRequest, progress: Progress) -> PreviewResult:
    """Replays the window under every policy of the request.

    Raises NothingRecorded, StoreError, InvalidPolicy and what the simulator raises (SchedulerError).
    """
    points = list(sweep_points(request.sweep, request.draft))
    running, draft = (PolicyConfig.balanced().merged(values) for values in (request.running, request.draft))
    policies = [PolicyConfig.balanced().merged(values) for _, values in points]
    progress(0.0, "Reading the recorded traffic")
    chosen = choose(engine, request, 2 + len(points))
    recordings, costs = read_window(engine, chosen, progress)
    machine = machine_of(engine, chosen, recordings, costs)
    began = time.monotonic()
    done = _replay_each(recordings, machine, (running, draft, *policies), request.seed, progress)
    seconds = time.monotonic() - began
    of_running, of_draft = done[running], done[draft]
    recorded = figures_of([recording.seen for recording in recordings])
    versions = tuple(sorted(frozenset().union(*(recording.versions for recording in recordings))))
    same = _all_are(engine, versions, running)
    return PreviewResult(
        window=Window(
            run_id=chosen.run.run_id,
            model=chosen.run.model,
            device=chosen.run.device,
            since=chosen.since,
            until=chosen.until,
            policy_versions=versions,
        ),
        sampled=chosen.sampled,
        requests=sum(len(recording.comers) for recording in recordings),
        open_at_start=sum(comer.open_at_start for recording in recordings for comer in recording.comers),
        recorded=recorded,
        running=of_running.figures,
        draft=of_draft.figures,
        simulator_error=errors_between(recorded, of_running.figures),
        recorded_under_running=same,
        sweep_axes=request.sweep.axes if request.sweep is not None else (),
        sweep=[
            SweepPoint(values, done[policy].figures, policy == draft)
            for (values, _), policy in zip(points, policies, strict=True)
        ],
        notes=notes_of(chosen, recordings, costs, machine.survival is not None, (of_running, of_draft), same),
        seconds=round(seconds, 3),
        plans=sum(of.figures.plans for of in done.values()),
    )


def sweep_points(
    sweep: Sweep | None, draft: Mapping[str, CoefficientValue]
) -> Iterator[tuple[tuple[CoefficientValue, ...], dict[str, CoefficientValue]]]:
    """(values of the axes, all coefficients) of each point, the first axis changing slowest."""
    if sweep is None:
        return
    names = [axis.coefficient for axis in sweep.axes]
    for values in itertools.product(*(axis.values for axis in sweep.axes)):
        yield values, {**draft, **dict(zip(names, values, strict=True))}


def _replay_each(
    recordings: Sequence[Recording],
    machine: Machine,
    policies: Sequence[PolicyConfig],
    seed: int,
    progress: Progress,
) -> dict[PolicyConfig, Replayed]:
    """Each distinct policy once. The first two are the policy in force and the draft."""
    distinct = list(dict.fromkeys(policies))
    done: dict[PolicyConfig, Replayed] = {}
    for number, policy in enumerate(distinct):
        words = (
            "Replaying the policy in force"
            if policy == policies[0]
            else "Replaying the draft"
            if policy == policies[1]
            else f"Replaying the sweep, policy {number + 1} of {len(distinct)}"
        )

        def show(share: float, number: int = number, words: str = words) -> None:
            progress(_READING_SHARE + (1 - _READING_SHARE) * (number + share) / len(distinct), words)

        done[policy] = replay(recordings, machine, policy, seed, show)
    return done


def _all_are(engine: sa.Engine, versions: Sequence[int], running: PolicyConfig) -> bool:
    """Whether every recorded plan was made with the values of the running policy."""
    found = policy_values(engine, versions, list(COEFFICIENT_BY_NAME))
    return len(found) == len(versions) and all(values == running.as_dict() for values in found.values())


def read_window(engine: sa.Engine, chosen: Chosen, progress: Progress) -> tuple[list[Recording], Costs]:
    """Every piece of the window that holds plans. Raises NothingRecorded, StoreError."""
    costs = Costs()
    recordings = []
    for number, piece in enumerate(chosen.pieces, 1):
        recording = read_piece(engine, chosen.run, piece, costs)
        if recording is not None:
            recordings.append(recording)
        progress(_READING_SHARE * number / len(chosen.pieces), "Reading the recorded traffic")
    if not any(recording.comers for recording in recordings) or not costs.shapes:
        raise NothingRecorded("no request of this window has output, so there is no traffic to replay")
    return recordings, costs


def machine_of(engine: sa.Engine, chosen: Chosen, recordings: Sequence[Recording], costs: Costs) -> Machine:
    """The recorded machine. Shapes come from the scheduler's recorded state, else from what was seen to run."""
    means = {shape_of(values): ns for values, ns in mean_device_ns(engine, chosen.run).items()}
    known = {shape: round(statistics.median(samples.durations_ns)) for shape, samples in costs.shapes.items()}
    known.update(means)
    shapes = tuple(known)
    for recording in recordings:
        if recording.checkpoint is not None:
            try:
                known.update(known_durations(recording.checkpoint))
                shapes = _start(recording, shapes, PolicyConfig.balanced(), 1).scheduler.catalog.shapes
            except InvalidCheckpoint:
                continue
    missing = [shape for shape in shapes if shape not in costs.shapes]
    guessed = estimate_by_neighbours(known, [shape for shape in missing if shape not in known])
    return Machine(
        shapes,
        {shape: ShapeSamples(s.started_ns, s.durations_ns, s.contexts) for shape, s in costs.shapes.items()},
        {shape: known.get(shape) or guessed.get(shape) or max(known.values()) for shape in missing},
        _host_samples(costs),
        survival_of(costs.offered, costs.accepted, "recorded"),
        slots_of(chosen.run),
        any(shape.kind is GraphKind.TERMINAL_SNAPSHOT for shape in shapes),
    )


def _host_samples(costs: Costs) -> HostSamples:
    def waits(of: WaitList) -> Waits:
        return Waits(of.began_ns, of.lengths_ns)

    return HostSamples(
        {kind: waits(of) for kind, of in costs.after_completion.items()},
        {kind: waits(of) for kind, of in costs.pauses.items()},
        waits(costs.idle),
        waits(costs.publications),
    )


def replay(
    recordings: Sequence[Recording],
    machine: Machine,
    policy: PolicyConfig,
    seed: int,
    progress: Callable[[float], None] = lambda _share: None,
) -> Replayed:
    """The policy on every piece. Raises SchedulerError."""
    seen, results, estimated = [], [], 0
    for number, recording in enumerate(recordings):
        durations = RecordedDurations(machine.samples, machine.estimated_ns, seed)

        def show(share: float, number: int = number) -> None:
            progress((number + share) / len(recordings))

        result = _simulated(recording, machine, policy, durations, seed, show)
        results.append(result)
        seen.append(_seen(recording, result))
        estimated += durations.estimated_steps
    return Replayed(figures_of(seen), results, estimated)


def _start(recording: Recording, shapes: tuple[GraphShape, ...], policy: PolicyConfig, slots: int) -> WarmStart:
    """From the recorded state where it can be read, else from nothing."""
    if recording.checkpoint is not None:
        try:
            return warm_scheduler(recording.checkpoint, policy)
        except InvalidCheckpoint:
            pass
    return cold_scheduler(shapes, policy, slots)


def _simulated(
    recording: Recording,
    machine: Machine,
    policy: PolicyConfig,
    durations: RecordedDurations,
    seed: int,
    progress: Callable[[float], None],
) -> SimulationResult:
    start = _start(recording, machine.shapes, policy, machine.slots)
    deepest = max(shape.draft_depth for shape in start.scheduler.catalog.shapes)
    luck = AcceptanceLuck(machine.survival, deepest, seed) if machine.survival is not None and deepest else None
    settings = MachineSettings(
        request_slots=start.scheduler.request_slots,
        host=RecordedHost(machine.host, seed),
        snapshot_rows=SNAPSHOT_ROWS if machine.snapshots else 0,
        stop_ns=recording.until_ns,
        first_fence=start.last_fence,
    )
    length_ns = recording.until_ns - recording.since_ns

    def show(now_ns: int) -> None:
        progress(min(1.0, max(0.0, (now_ns - recording.since_ns) / length_ns)))

    return simulate(start.scheduler, _workload(recording, luck is not None), durations, settings, luck, clock=show)


def _workload(recording: Recording, drafts: bool) -> Workload:
    """Arrivals in order. Requests that were under way are there when the piece begins."""
    arrivals = []
    for index, comer in enumerate(recording.comers):
        sources = tuple(source for source in comer.spec.proposal_sources if source == "learned") if drafts else ()
        spec = dataclasses.replace(comer.spec, request_id=str(index), proposal_sources=sources)
        at_ns = recording.since_ns if comer.open_at_start else comer.arrived_ns
        arrivals.append(Arrival(index, at_ns, spec.prompt_tokens, comer.output_tokens, client=comer.group, spec=spec))
    return Workload(tuple(arrivals), {})


def _seen(recording: Recording, result: SimulationResult) -> Seen:
    """The same of a simulated piece as recording says of the real one."""
    seen = Seen(recording.until_ns - recording.since_ns, plans=result.plans)
    for outcome in (*result.outcomes, *result.open):
        comer = recording.comers[outcome.index]
        seen.output_tokens += outcome.output_tokens
        if not comer.open_at_start and outcome.first_ns:
            _see(seen, comer, outcome)
    if result.gaps_ns:
        seen.gaps_ns.append(result.gap_array())
    seen.prompt_tokens = result.computed_prompt_tokens
    seen.busy_ns = result.busy_ns
    seen.explored_ns = sum(tally.device_ns for name, tally in result.reasons.items() if name in EXPLORING)
    seen.offered_tokens, seen.accepted_tokens = result.offered_tokens, result.accepted_tokens
    return seen


def _see(seen: Seen, comer: Comer, outcome: Outcome) -> None:
    arrived_ns = outcome.arrived_ns - comer.before_ns
    seen.ttft_ns.append(outcome.first_ns - arrived_ns)
    if outcome.finished_ns:
        computed = outcome.prompt_tokens - outcome.cached_tokens
        seen.answered(comer.group, arrived_ns, outcome.first_ns, outcome.finished_ns, computed, outcome.output_tokens)
