"""Why new prompts wait under a policy: one cell, one cause switched at a time, with a watch on every step.

    python benchmarks/analyse_newcomers.py --data DIR [--requests 2000] [--rate-scale 2] [--only TEXT]

The cell: H100, Llama-3.1-8B, the Azure conversation trace at twice its rate, 64 request slots, one frame slot,
durations at the reference context (so that the scheduler's estimates are exact and no cause hides behind a wrong one).

Switched, each against the balanced preset:
    newcomer rule     the memory, and so the first price, of a new request
    prices            fairness coefficients, the worth of an output token, the adaptation time
    ages              the price of a stream's waiting
    shapes            without mixed graphs; prompt capacities every 64 tokens; steps without padding
    one prompt row    the other way round: a token budget that may put only one prompt in a step
    objective         what is left: a budget with one prompt row has the same graphs, and another rule
Columns: TTFT and inter-token gap, ms; output tokens per s; ms of waiting for a slot, from there to the first step which
serves the prompt, and from there to the first token; overtaken: later arrivals with an earlier first token (p99);
passed over: of the device time while a resident prompt waits, the share of steps that serve none; stalled: of the time
while anybody decodes, the share of steps without a decoder; steps per prompt; padding of prompt rows. Deterministic.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from policy_runs import run_all, table

from scheduler.catalog import Catalog
from scheduler.errors import SchedulerError
from scheduler.policy import NEWCOMER_MEMORIES, PolicyConfig
from scheduler.records import RequestHandle, RequestSpec
from scheduler.scheduler import RequestScheduler
from scheduler.shapes import GraphKind
from scheduler.simulation.baselines.batcher import BaselineBatcher, BaselineStep
from scheduler.simulation.baselines.rules import chunked_prefill, prefill_first
from scheduler.simulation.baselines.steps import InterpolatedSteps, PaddedSteps, StepGraphs
from scheduler.simulation.durations import PaddedCost, TrueDurations
from scheduler.simulation.machine import MachineSettings, simulate
from scheduler.simulation.measured import ContextCurve, Extent, MeasuredTable, scheduler_shapes
from scheduler.simulation.metrics import summary
from scheduler.simulation.results import Outcome
from scheduler.simulation.unpadded import UnpaddedCost
from scheduler.simulation.workload import parse_arrivals

CATALOG = "h100_sxm__llama-3.1-8b__bf16_tp1"
ARRIVALS = "azure2023_conv_first40min"
SLOTS = 64
FINE_CAPACITY = 1024

FAIR_SHARE = ("newcomer_memory", "fair_share")
PAIRS: dict[str, tuple[tuple[str, float | str], ...]] = {
    "fair_share, adaptation_ms 10": (FAIR_SHARE, ("adaptation_ms", 10.0)),
    "fair_share, adaptation_ms 30": (FAIR_SHARE, ("adaptation_ms", 30.0)),
    "fair_share, output_token_value 16": (FAIR_SHARE, ("output_token_value", 16.0)),
    "fair_share, delivery_fairness 0": (FAIR_SHARE, ("delivery_fairness", 0.0)),
    "phase, adaptation_ms 10": (("newcomer_memory", "phase"), ("adaptation_ms", 10.0)),
    "decode, decode_age_price 2": (("newcomer_memory", "decode"), ("decode_age_price", 2.0)),
}
"""Changes that act on each other; each alone is among the other variants."""


class Watch:
    """A Batcher that passes everything on and notes what the steps do to prompts. Times are ns."""

    def __init__(self, batcher: Any) -> None:
        self._batcher = batcher
        self._now_ns = 0
        self._spec: dict[RequestHandle, RequestSpec] = {}
        self._left: dict[RequestHandle, int] = {}
        self._decoding: set[RequestHandle] = set()
        self._plan: Any = None
        self.decoding_ns = 0
        self.stalled_ns = 0
        self.first_served_ns: dict[int, int] = {}
        self.prompt_steps = 0
        self.prompt_tokens = 0
        self.prompt_capacity = 0
        self.waiting_ns = 0
        self.passed_over_ns = 0

    def advance_to(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._batcher.advance_to(now_ns)

    def admit(self, spec: RequestSpec) -> RequestHandle:
        handle: RequestHandle = self._batcher.admit(spec)
        self._spec[handle] = spec
        self._left[handle] = spec.prompt_tokens - spec.cached_tokens
        return handle

    def plan(self) -> Any:
        return self._batcher.plan()

    def commit(self, plan: Any, fence: int) -> None:
        self._batcher.commit(plan, fence)
        self._plan = plan
        prompts = [lane for lane in plan.lanes if lane.prompt_tokens]
        for lane in prompts:
            self.first_served_ns.setdefault(int(lane.request_id), self._now_ns)
            self.prompt_tokens += lane.prompt_tokens
        self.prompt_steps += len(prompts)
        self.prompt_capacity += plan.shape.prefill_capacity if prompts else 0

    def complete(self, fence: int, records: Sequence[Any], timing: Any) -> Any:
        self._note_time(timing.device_ns[0])
        for record in records:
            handle = record.handle
            if record.consumed_prompt_tokens:
                self._left[handle] -= record.consumed_prompt_tokens
                if self._left[handle] <= 0:
                    del self._left[handle]
                    self._decoding.add(handle)
            if record.finished is not None:
                self._decoding.discard(handle)
        return self._batcher.complete(fence, records, timing)

    def _note_time(self, device_ns: int) -> None:
        """Whom the completed step left out, before its records change who waits."""
        prompts = sum(1 for lane in self._plan.lanes if lane.prompt_tokens)
        if self._left:
            self.waiting_ns += device_ns
            self.passed_over_ns += 0 if prompts else device_ns
        if self._decoding:
            self.decoding_ns += device_ns
            self.stalled_ns += device_ns if prompts == len(self._plan.lanes) else 0

    def published_output(self, handle: RequestHandle, fence: int) -> None:
        self._batcher.published_output(handle, fence)


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """A policy's changed coefficients, or a `budget` of a baseline; and what else is switched.

    `prompts_per_step`: of the budget. `graphs`: "all", "no mixed" or "fine" (prompt capacities every 64 tokens).
    """

    cause: str
    name: str
    changes: tuple[tuple[str, float | str], ...] = ()
    preset: str = "balanced"
    budget: int = 0
    prefill_first: bool = False
    prompts_per_step: int | None = None
    graphs: str = "all"
    unpadded: bool = False
    slots: int = SLOTS


def variants() -> list[Variant]:
    """Every switch, one at a time."""
    found = [Variant("reference", "budget 512", budget=512), Variant("reference", "balanced")]
    found += [Variant("preset", "throughput", preset="throughput")]
    found += [Variant("newcomer rule", rule, (("newcomer_memory", rule),)) for rule in NEWCOMER_MEMORIES]
    for name, values in (
        ("token_fairness", (0.0, 4.0, 64.0, 256.0)),
        ("delivery_fairness", (0.0, 16.0)),
        ("output_token_value", (0.0, 1.0, 4.0, 16.0, 256.0)),
        ("adaptation_ms", (10.0, 1000.0)),
    ):
        found += [Variant("prices", f"{name} {value:g}", ((name, value),)) for value in values]
    found += [
        Variant("ages", f"decode_age_price {value:g}", (("decode_age_price", value),)) for value in (0.0, 1.0, 2.0, 5.0)
    ]
    found += [
        Variant("shapes", "no mixed graphs", graphs="no mixed"),
        Variant("shapes", "capacities every 64 tokens", graphs="fine"),
        Variant("shapes", "no padding", unpadded=True),
        Variant("one prompt row", "budget 512, one prompt a step", budget=512, prompts_per_step=1),
        Variant("one prompt row", "budget 1024, one prompt a step", budget=1024, prompts_per_step=1),
        Variant("one prompt row", "budget 2048, one prompt a step", budget=2048, prompts_per_step=1),
        Variant("one prompt row", "budget 512, one prompt, fine", budget=512, prompts_per_step=1, graphs="fine"),
        Variant(
            "one prompt row", "budget 512, one prompt, no mixed", budget=512, prompts_per_step=1, graphs="no mixed"
        ),
        *(Variant("two at once", name, changes) for name, changes in PAIRS.items()),
        Variant("other rules", "budget 1024", budget=1024),
        Variant("other rules", "budget 2048", budget=2048),
        Variant("other rules", "prefill first", budget=8192, prefill_first=True),
    ]
    return found


def switched_table(measured: MeasuredTable, graphs: str) -> MeasuredTable:
    """The catalog with this choice of graphs; durations of new sizes are interpolated."""
    if graphs == "all":
        return measured
    curves = dict(measured.curves)
    if graphs == "no mixed":
        return MeasuredTable({extent: curve for extent, curve in curves.items() if extent.kind is not GraphKind.MIXED})
    steps = StepGraphs(measured)
    cost = InterpolatedSteps(steps)
    for batch, capacity in itertools.product((0, *steps.mixed_batches), range(64, FINE_CAPACITY + 1, 64)):
        kind = GraphKind.MIXED if batch else GraphKind.PREFILL
        width = 1 if batch else next(e.target_width for e in curves if e.kind is kind)
        duration_ms = cost.step_ms(BaselineStep(steps.counted_shape(batch, capacity), (), batch, capacity), 0.0)
        curves.setdefault(Extent(kind, max(batch, 1), 0, width, capacity), ContextCurve({1024: duration_ms}))
    return MeasuredTable(curves)


def _helios(variant: Variant, measured: MeasuredTable) -> tuple[Any, Any]:
    prepared = scheduler_shapes(measured, variant.slots)
    catalog = Catalog(prepared.shapes)
    for shape, curve in prepared.curves.items():
        catalog.observe(shape, round(curve.reference_ms * 1e6), 0)
    policy = PolicyConfig.preset(variant.preset).merged(dict(variant.changes))
    cost = UnpaddedCost(measured) if variant.unpadded else PaddedCost(prepared.curves)
    return RequestScheduler(catalog, policy, variant.slots), cost


def _baseline(variant: Variant, measured: MeasuredTable) -> tuple[Any, Any]:
    graphs = StepGraphs(measured)
    if variant.prefill_first:
        rule = prefill_first(variant.budget)
    else:
        rule = chunked_prefill(variant.budget, prompts_per_step=variant.prompts_per_step)
    return BaselineBatcher(rule, graphs, variant.slots), PaddedSteps(graphs)


def row(task: tuple[str, int, float, Variant]) -> dict[str, Any]:
    """One variant's figures; `error` where it cannot be simulated."""
    data, requests, rate_scale, variant = task
    measured = switched_table(table(data, CATALOG), variant.graphs)
    build: Callable[..., tuple[Any, Any]] = _baseline if variant.budget else _helios
    batcher, cost = build(variant, measured)
    text = (pathlib.Path(data) / "arrivals" / f"{ARRIVALS}.csv").read_text()
    watch = Watch(batcher)
    settings = MachineSettings(request_slots=variant.slots, queue_depth=1)
    head = {"cause": variant.cause, "name": variant.name}
    try:
        result = simulate(watch, parse_arrivals(text, ARRIVALS, rate_scale, requests), TrueDurations(cost), settings)
    except SchedulerError as error:
        return {**head, "error": str(error)}
    found = summary(result)
    return {
        **head,
        **_waits(watch, result.outcomes),
        **_throughput(found),
        "plans": result.plans,
        "watch": _shares(watch),
    }


def _waits(watch: Watch, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """How long prompts wait between their stations, ms."""
    served = watch.first_served_ns
    slot = np.array([o.admitted_ns - o.arrived_ns for o in outcomes]) / 1e6
    first = np.array([served[o.index] - o.admitted_ns for o in outcomes]) / 1e6
    prefill = np.array([o.first_ns - served[o.index] for o in outcomes]) / 1e6
    ttft = np.array([o.first_ns - o.arrived_ns for o in outcomes]) / 1e6
    return {
        "ttft_p50": float(np.percentile(ttft, 50)),
        "ttft_p99": float(np.percentile(ttft, 99)),
        "slot_p99": float(np.percentile(slot, 99)),
        "first_p50": float(np.percentile(first, 50)),
        "first_p99": float(np.percentile(first, 99)),
        "prefill_p50": float(np.percentile(prefill, 50)),
        "prefill_p99": float(np.percentile(prefill, 99)),
        "overtaken_p99": float(np.percentile(_overtaken(outcomes), 99)),
    }


def _overtaken(outcomes: Sequence[Outcome]) -> list[int]:
    """By how many later arrivals each request was beaten to the first token."""
    arrived = np.array([o.arrived_ns for o in outcomes])
    first = np.array([o.first_ns for o in outcomes])
    return [int(((arrived > at) & (first < shown)).sum()) for at, shown in zip(arrived, first, strict=True)]


def _throughput(found: dict[str, Any]) -> dict[str, float]:
    return {
        "gap_p50": found["gap_ms"]["p50"],
        "gap_p99": found["gap_ms"]["p99"],
        "tokens_per_s": found["throughput"]["output_tokens_per_s"],
        "busy": found["busy_share"],
        "lanes": found["lanes_per_plan"],
    }


def _shares(watch: Watch) -> dict[str, float]:
    return {
        "passed_over": watch.passed_over_ns / max(1, watch.waiting_ns),
        "stalled": watch.stalled_ns / max(1, watch.decoding_ns),
        "steps_per_prompt": watch.prompt_steps / max(1, len(watch.first_served_ns)),
        "padding": 1 - watch.prompt_tokens / max(1, watch.prompt_capacity),
    }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table that the module's first lines describe."""
    lines = [
        "| switched | to | TTFT p50 / p99 | gap p50 / p99 | tokens/s | slot p99 | first service p50 / p99 | "
        "prefill p50 / p99 | overtaken | passed over | stalled | steps a prompt | padding |",
        "|---" * 13 + "|",
    ]
    for found in rows:
        if "error" in found:
            lines.append(f"| {found['cause']} | {found['name']} | {found['error']} |" + " |" * 10)
            continue
        share = found["watch"]
        pairs = (f"{found[f'{n}_p50']:,.0f} / {found[f'{n}_p99']:,.0f}" for n in ("ttft", "gap", "first", "prefill"))
        ttft, gap, first, prefill = pairs
        shares = " | ".join(f"{share[name]:.0%}" for name in ("passed_over", "stalled"))
        lines.append(
            f"| {found['cause']} | {found['name']} | {ttft} | {gap} | {found['tokens_per_s']:,.0f} | "
            f"{found['slot_p99']:,.0f} | {first} | {prefill} | {found['overtaken_p99']:.0f} | {shares} | "
            f"{share['steps_per_prompt']:.1f} | {share['padding']:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rate-scale", type=float, default=2.0)
    parser.add_argument("--only", default="", help="variants whose cause or name contains this")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    chosen = [v for v in variants() if options.only in f"{v.cause} {v.name}" or v.cause == "reference"]
    tasks = [(options.data, options.requests, options.rate_scale, variant) for variant in chosen]
    print(markdown(run_all(tasks, row, options.workers, "variants")))


if __name__ == "__main__":
    main()
