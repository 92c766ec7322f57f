"""The two schedulers side by side: every call goes to both, and both must answer alike."""

from __future__ import annotations

from scheduler import Catalog, RequestScheduler
from scheduler.errors import SchedulerError
from scheduler.reference.catalog import ReferenceCatalog
from scheduler.reference.scheduler import ReferenceScheduler
from tests.scheduler.differential.compare import (
    Difference,
    differing,
    fast_dump,
    reference_dump,
    same_candidates,
    same_dump,
    same_plan,
)

STORY_LINES = 40


def outcome(function, *arguments):
    """(answer, None), or (None, the name of the error)."""
    try:
        return function(*arguments), None
    except SchedulerError as error:
        return None, type(error).__name__


class Pair:
    """Both sides under the same settings. `plain_of`: another reference's scheduler and catalog."""

    def __init__(self, scenario, plain_of=None):
        self.story = []
        self.error = None
        options = {
            "request_slots": scenario.request_slots,
            "checkpoint_extra_work_fraction": scenario.fraction,
            "verification": scenario.verification,
            "image_feature_rows": scenario.image_feature_rows,
        }
        scheduler, catalog = plain_of or (ReferenceScheduler, ReferenceCatalog)
        self.fast, one = outcome(lambda: RequestScheduler(Catalog(scenario.shapes), scenario.policy, **options))
        self.plain, two = outcome(lambda: scheduler(catalog(scenario.shapes), scenario.policy, **options))
        self.tell("load", [shape.label for shape in scenario.shapes], options, scenario.policy, one)
        if one != two:
            differing("load", one, two)
        self.loaded = self.fast is not None

    def tell(self, *words):
        self.story.append(" ".join(repr(w) if not isinstance(w, str) else w for w in words))
        del self.story[1:-STORY_LINES]

    def call(self, name, *arguments):
        """One method of both; returns the reference's answer and leaves the error's name in `error`."""
        one, fast_error = outcome(getattr(self.fast, name), *arguments)
        two, self.error = outcome(getattr(self.plain, name), *arguments)
        self.tell(name, *arguments, "->", self.error or two)
        if fast_error != self.error:
            differing(f"{name} raised", fast_error, self.error)
        if repr(one) != repr(two):
            differing(f"{name} answered", one, two)
        return two

    def observe(self, shape, duration):
        """The same sample for both catalogs."""
        for scheduler in (self.fast, self.plain):
            scheduler.catalog.observe(shape, duration, scheduler.now_ns)
        self.tell("observe", shape.label, duration)

    def plan(self):
        """(fast plan, reference's plan), equal, or None."""
        fast, plain = self.fast.plan(), self.plain.plan()
        if plain is None:
            self.tell("plan -> None")
        else:
            lanes = [(lane.handle.slot, lane.query_length, lane.prompt_tokens) for lane in plain.lanes]
            self.tell("plan ->", plain.shape.label, plain.shape.allocation.value, plain.reason.value, lanes)
        same_candidates(self.fast.all_candidates(), self.plain.all_candidates())
        same_plan(fast, plain)
        return None if plain is None else (fast, plain)

    def commit(self, plans, fence):
        """Each side commits its own plan; returns whether it was taken."""
        _, one = outcome(self.fast.commit, plans[0], fence)
        _, self.error = outcome(self.plain.commit, plans[1], fence)
        self.tell("commit", fence, self.error or "")
        if one != self.error:
            differing("commit raised", one, self.error)
        return self.error is None

    def complete(self, fence, records, timing, confidence, survival):
        """The method that fits the sidecars."""
        name, more = "complete", []
        if confidence is not None:
            name, more = "complete_packed_round", [confidence]
        if survival is not None:
            name, more = f"{name}_with_survival", [*more, survival]
        one, fast_error = outcome(getattr(self.fast, name), fence, records, timing, *more)
        two, self.error = outcome(getattr(self.plain, name), fence, records, timing, *more)
        self.tell(name, fence, records, timing, "->", self.error or "")
        if fast_error != self.error:
            differing(f"{name} raised", fast_error, self.error)
        if repr(one) != repr(two):
            differing(f"{name} answered", one, two)
        return two

    def compare_states(self):
        same_dump(fast_dump(self.fast), reference_dump(self.plain))

    def restart(self, scenario):
        """The fast side goes on from its checkpoint, under a fresh catalog."""
        self.tell("checkpoint and restore")
        before = self.fast.checkpoint()
        self.fast = RequestScheduler.restore(before, Catalog(scenario.shapes))
        if self.fast.checkpoint() != before:
            raise Difference("a restored scheduler has another checkpoint")
