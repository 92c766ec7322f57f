"""Faults planted into the reference, one at a time: the comparison must notice each of them.

A fault is a small change of one reference module's source. The package is imported anew with the change, beside the
sound one, and a scenario is run with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
from collections.abc import Callable

from tests.scheduler.differential.drive import run_scenario
from tests.scheduler.differential.scenario import Scenario, learning_scenario, level_scenario, make_scenario

PACKAGE = "scheduler.reference"
FOLDER = pathlib.Path(importlib.util.find_spec(PACKAGE).origin).parent


@dataclasses.dataclass(frozen=True)
class Fault:
    """`old` occurs once in reference/`module`.py and becomes `new`. SHOWS says in which scenario it shows.

    `make`: what makes the scenarios in which it is looked for.
    """

    name: str
    module: str
    old: str
    new: str
    make: Callable[[int], Scenario] = make_scenario


FAULTS = (
    # What was learned of graphs (S6).
    Fault(
        "the upper of the middle pair as median",
        "catalog",
        "(ordered[middle - 1] + ordered[middle]) // 2",
        "ordered[middle]",
    ),
    Fault("a window of eight samples", "catalog", "WINDOW_SAMPLES = 9", "WINDOW_SAMPLES = 3"),
    Fault("stale samples kept", "catalog", "if fresh else []", "if True else []"),
    Fault(
        "exposed delivery learned",
        "completion",
        "cost_ns = device_ns - timing.exposed_delivery_ns",
        "cost_ns = min(device_ns, device_ns + timing.exposed_delivery_ns)",
    ),
    # Acceptance (S3).
    Fault("a shorter half-life", "estimates", "HALF_LIFE_TOKENS = 128", "HALF_LIFE_TOKENS = 127"),
    Fault("a low weight cap", "estimates", "LARGEST_WEIGHT = 128.0", "LARGEST_WEIGHT = 6.0"),
    Fault("survival that rises with depth", "estimates", "min(found[-1], value) if found else value", "value"),
    Fault("a prior that moves too fast", "estimates", "PRIOR_SHARE = 64.0", "PRIOR_SHARE = 32.0"),
    Fault(
        "termination not censored",
        "lanes",
        "rejected = len(result.record.emitted_tokens) == accepted + 1",
        "rejected = True",
    ),
    Fault(
        "survival ignored behind a termination",
        "lanes",
        "if result.survival and not",
        "if depth in found and result.survival and not",
    ),
    Fault("forecasts of copied drafts", "lanes", 'if source == "learned":', "if source is not None:"),
    Fault("a copy offer that outlives its round", "lanes", "resident.offered = 0", "resident.offered += 0"),
    # Service (S9).
    Fault(
        "waiting time of queued frames charged",
        "completion",
        "device_ns if queued else max(device_ns, timing.wall_ns)",
        "max(device_ns, timing.wall_ns)",
    ),
    Fault(
        "unserved participants not charged",
        "service_prices",
        "return _clamped(memory + interval_ms / normalizer / adaptation_ms)",
        "return _clamped(memory)",
    ),
    Fault(
        "the delivery normalizer of another load",
        "rates",
        "max((1.0 / graph.duration_ms",
        "max((2.0 / graph.duration_ms",
    ),
    Fault(
        "token normalizers that ignore how much is left",
        "rates",
        "room = max(1, resident.output_limit - resident.emitted)",
        "room = max(1, resident.output_limit)",
    ),
    Fault(
        "a newcomer's cap one resident short",
        "service_prices",
        "largest_served), (residents + 1) / decode_rate",
        "largest_served), max(1, residents) / decode_rate",
    ),
    Fault(
        "publication without what came before",
        "accounting",
        "DeliveryInterval(interval_ms, resident.delivery_memory,",
        "DeliveryInterval(interval_ms, None,",
    ),
    Fault(
        "terminal rows take part in intervals",
        "scheduler",
        "if r.stage is not Stage.TERMINAL\n        ]",
        "if r.stage is not Stage.WAITING\n        ]",
    ),
    Fault(
        "publication forgets to move the visible time",
        "scheduler",
        "resident.last_visible_ns = self.now_ns",
        "resident.last_visible_ns = resident.last_visible_ns or self.now_ns",
    ),
    # Queue and projection (S10).
    Fault(
        "projected output at the old time",
        "frames",
        "r.view_visible_ns = frame.end_ns",
        "r.view_visible_ns = r.view_visible_ns or frame.end_ns",
    ),
    Fault(
        "ceilings projected instead of expectations",
        "frames",
        "lane.prompt_tokens + lane.expected_tokens if",
        "float(lane.prompt_tokens + lane.ceiling) if",
    ),
    Fault("an overrun ignored", "scheduler", "known and self.now_ns <= frame.end_ns", "known and self.now_ns >= 0"),
    Fault(
        "a stale expected end after a completion",
        "scheduler",
        "remaining.end_ns = self.now_ns + remaining.plan.selected_cost_ns",
        "remaining.end_ns += 0",
    ),
    Fault(
        "commit trusts old freshness",
        "commitment",
        "is not plan.cost_state:",
        "is CostState.UNKNOWN and plan.cost_state is CostState.FRESH:",
    ),
    Fault("draft storage left out of pages", "commitment", "+ lane.ceiling + plan.shape.draft_depth", "+ lane.ceiling"),
    Fault("epochs that stand still at completion", "lanes", "resident.epoch += 1", "resident.epoch += 0"),
    Fault("waiting for feedback forgotten", "candidates", "resident.in_flight > 0 and", "resident.in_flight > 1 and"),
    # Ledgers (S7, S8).
    Fault("a generous timing ledger", "ledgers", "Ledger(499)", "Ledger(400)"),
    Fault(
        "credit kept while idle",
        "ledgers",
        "ledger.units = min(ledger.units, 0)",
        "ledger.units = min(ledger.units, 1 << 60)",
    ),
    Fault(
        "attempts not noted",
        "scheduler",
        "self.catalog.attempt(plan.shape, self.now_ns)",
        "self.catalog.attempt(plan.shape, -1)",
    ),
    Fault(
        "probes at the end of the output",
        "probes",
        "resident.left - use.rows >= 1",
        "resident.left - use.rows >= 0",
        learning_scenario,
    ),
    Fault(
        "optimism without the exponent",
        "estimates",
        "yields(self._powers(optimistic))",
        "yields(optimistic)",
        learning_scenario,
    ),
    Fault("modest optimism", "estimates", "LN20 = math.log(20.0)", "LN20 = math.log(2.0)"),
    # Values and cohorts (S4, S5).
    Fault(
        "waiting priced for the whole horizon",
        "value",
        "wait_cost = horizon_ms / 2.0 * self.wait_price",
        "wait_cost = horizon_ms * self.wait_price",
    ),
    Fault(
        "the reference interval of the fastest graph",
        "value",
        "key=lambda g: g.duration_ms / min(g.shape.batch_capacity, streams)",
        "key=lambda g: g.duration_ms",
    ),
    Fault(
        "ages in whole milliseconds",
        "value",
        "(start_ns - resident.view_visible_ns) / 1e6",
        "(start_ns - resident.view_visible_ns) // 1000000",
    ),
    Fault("saved waiting of terminal rows left out", "value", "if retired:", "if retired > 64:"),
    Fault(
        "ties of decoders to the most recently served",
        "candidates",
        "(-use.parts.value, use.lane.tick, -use.rows, use.lane.slot)",
        "(-use.parts.value, -use.lane.tick, -use.rows, use.lane.slot)",
    ),
    Fault("fewer served requests preferred on a tie", "candidates", "-len(served),", "len(served),"),
    Fault("pages rounded down", "candidates", "-(-extent // decision.page_tokens)", "extent // decision.page_tokens"),
    Fault(
        "unmeasured duplicates explored",
        "candidates",
        "any(use.lane.resident.work(c) == use.prompt_tokens for c in smaller)",
        "any(use.lane.resident.work(c) > use.prompt_tokens for c in smaller)",
    ),
    Fault(
        "ragged ties to the higher slot",
        "value",
        "for _, depth, slot in sorted(entries)]",
        "for _, depth, slot in sorted(entries, key=lambda e: (e[0], e[1], -e[2]))]",
    ),
    Fault(
        "ragged ties to the lower slot before the lower depth",
        "value",
        "for _, depth, slot in sorted(entries)]",
        "for _, depth, slot in sorted(entries, key=lambda e: (e[0], e[2], e[1]))]",
        level_scenario,
    ),
    Fault("two orderings only", "ragged", "for by in (total, pending, per_row)]", "for by in (total, total, pending)]"),
    Fault("no padding pruning", "pruning", "return any(o != extents and", "return any(o == () and"),
    Fault(
        "pairs that never share", "prerequisites", "_Case(new[:k], ready[: room - k]) for k", "_Case(new[:k], []) for k"
    ),
    Fault("a chain's own stages left out", "continuations", "total += min(known)", "total += 0"),
    Fault(
        "solo chunks of the largest graph",
        "solo",
        "min((c for c in capacities if c >= remaining), default=max(capacities))",
        "max(capacities)",
    ),
    # Prompts and captures (S10).
    Fault(
        "guards of later anchors ignored", "checkpoints", "free_rows - guards > 0 and fresh", "free_rows > 0 and fresh"
    ),
    Fault("captures whatever they cost", "checkpoints", "if spent + cost > allowance:", "if spent > allowance:"),
    Fault("chunks that end inside a block", "prompts", "first < end < last]", "first < end < first]"),
    Fault(
        "windows that are never quite full",
        "prompts",
        "used + image.feature_rows > feature_rows",
        "used + image.feature_rows >= feature_rows",
    ),
    Fault(
        "earnings without the fraction",
        "lanes",
        "completion.fraction * (completion.device_ns / 1e6)",
        "completion.device_ns / 1e6",
    ),
    # Ends that the host finds.
    Fault(
        "an answer that the host ends leaves nothing behind",
        "lanes",
        "end(resident, FinishReason.STOP, graphs, now_ns)",
        "end(resident, FinishReason.ABORT, graphs, now_ns)",
    ),
    Fault(
        "a preempted answer that the host ends counts as going on",
        "lanes",
        "resident.finished = True",
        "resident.finished = False",
    ),
)


SHOWS = {
    "a window of eight samples": 1,
    "stale samples kept": 1,
    "credit kept while idle": 1,
    "solo chunks of the largest graph": 1,
    "survival that rises with depth": 2,
    "fewer served requests preferred on a tie": 2,
    "a chain's own stages left out": 2,
    "windows that are never quite full": 2,
    "a newcomer's cap one resident short": 3,
    "terminal rows take part in intervals": 3,
    "termination not censored": 3,
    "commit trusts old freshness": 3,
    "ties of decoders to the most recently served": 3,
    "two orderings only": 3,
    "an answer that the host ends leaves nothing behind": 3,
    "a preempted answer that the host ends counts as going on": 3,
    "ragged ties to the lower slot before the lower depth": 5,
    "probes at the end of the output": 7,
    "an overrun ignored": 7,
    "captures whatever they cost": 7,
    "forecasts of copied drafts": 10,
    "the reference interval of the fastest graph": 10,
    "pairs that never share": 14,
    "attempts not noted": 15,
    "modest optimism": 15,
    "guards of later anchors ignored": 15,
    "optimism without the exponent": 34,
    "saved waiting of terminal rows left out": 39,
    "ragged ties to the higher slot": 39,
    "survival ignored behind a termination": 40,
}
"""The first scenario in which a fault shows, of those that do not show in scenario 0. Only a hint, to save time."""


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads one file with the fault in it; never the bytecode cache."""

    def __init__(self, name, path, fault):
        super().__init__(name, path)
        self.fault = fault

    def path_stats(self, path):
        raise OSError

    def set_data(self, path, data, **more):
        pass

    def get_data(self, path):
        source = super().get_data(path)
        if pathlib.Path(path).name != f"{self.fault.module}.py":
            return source
        return planted(source.decode(), self.fault).encode()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, fault):
        self.fault = fault

    def find_spec(self, name, path=None, target=None):
        if name != f"{PACKAGE}.{self.fault.module}":
            return None
        file = FOLDER / f"{self.fault.module}.py"
        return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, str(file), self.fault))


def planted(source, fault):
    """The source with the fault; it must fit exactly once."""
    found = source.count(fault.old)
    assert found == 1, f"{fault.name}: {fault.old!r} occurs {found} times in {fault.module}"
    return source.replace(fault.old, fault.new)


@contextlib.contextmanager
def faulty_reference(fault):
    """(ReferenceScheduler, ReferenceCatalog) of a package with the fault; the sound one is back afterwards."""
    parent = sys.modules["scheduler"]
    sound = {name: module for name, module in sys.modules.items() if name.startswith(PACKAGE)}
    attribute = parent.reference
    for name in sound:
        del sys.modules[name]
    finder = _Finder(fault)
    sys.meta_path.insert(0, finder)
    try:
        scheduler = importlib.import_module(f"{PACKAGE}.scheduler")
        catalog = importlib.import_module(f"{PACKAGE}.catalog")
        yield scheduler.ReferenceScheduler, catalog.ReferenceCatalog
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
            del sys.modules[name]
        sys.modules.update(sound)
        parent.reference = attribute


def noticed(fault, scenarios=80, plans=60):
    """The report of a scenario in which the fault shows, None when it shows in none of the first `scenarios`."""
    first = SHOWS.get(fault.name, 0)
    with faulty_reference(fault) as plain_of:
        for seed in (first, *(seed for seed in range(scenarios) if seed != first)):
            report = run_scenario(seed, plans, plain_of, fault.make)
            if report.difference is not None:
                return report
    return None
