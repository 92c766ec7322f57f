"""A store, an engine and a clock on which changes are tried; used by the tests of guards."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa
from trace_rows import Trace, at

from service.control.guard_watch import GuardWatch
from service.control.guards import GuardControl, GuardLimits, Limit
from service.control.policy import PolicyControl
from service.store.engines import read_transaction
from service.store.tables import policy_attempts

MINUTES = 2.0
LIMITS = GuardLimits(Limit(ratio=1.10, samples=8), Limit(ratio=1.10, samples=8), Limit(ratio=0.95, samples=8))


class Bench:
    """A store, an engine, a clock that both stand on, and the traffic of a trial. `ms` is the time after T0."""

    def __init__(self, store, engine):
        self.store, self.engine = store, engine
        self.ms, self.step_ms = 0.0, 0.0
        self.run_id = "here"
        self.lag_s, self.look_ms = 0.0, 0.0
        self.decided = []
        self.control = self.new_control()
        self.guards = GuardControl(self.control)
        self.watch = self.new_watch("one")
        self.served = 0
        self.trace = Trace()
        self.trace.run("here")

    def new_control(self):
        return PolicyControl(self.store, self.engine.apply, mark_pause_s=0.0, now=lambda: at(self.ms + self.step_ms))

    def new_watch(self, name, control=None):
        return GuardWatch(
            control or self.control,
            watcher=name,
            engine_run=lambda: self.run_id,
            lag_s=self.look,
            decided=self.decided.append,
            steady_s=lambda: self.ms / 1000,
        )

    def look(self):
        """The recorder's lag, in the middle of a look that takes `look_ms`."""
        self.ms += self.look_ms
        return self.lag_s

    def traffic(self, requests=8, first_ms=100.0, gap_ms=10.0, device_ms=5.0):
        """Requests of three tokens that end now; a plan for each token."""
        for number in range(requests):
            self.served += 1
            name, first = f"r{self.served}", self.ms - 3 * gap_ms - requests + number
            published = [first + n * gap_ms for n in range(3)]
            self.trace.request("here", name, first - first_ms, first, published[-1] + 0.1)
            for ms in published:
                self.trace.plan("here", ms - 1, ms, tokens=1, device_ms=device_ms, lanes=[(name, ms)])
        self.trace.plan("here", self.ms, self.ms, device_ms=0.0)
        self.trace.write(self.store)

    async def opened(self, **given):
        self.traffic()
        self.ms += 61_000
        guard = await self.guards.open(
            expected_version=1, coefficients={"token_fairness": 20}, actor="kim", minutes=MINUTES,
            limits=given.pop("limits", LIMITS), **given,
        )  # fmt: skip
        await self.watch.step()
        return guard

    async def trial(self, seconds, watch=None, **traffic):
        """So much of the trial: traffic and a look every ten seconds, by each of the watchers."""
        for _ in range(int(seconds / 10)):
            self.ms += 10_000
            if traffic.get("requests", 1):
                self.traffic(**traffic)
            for watcher in watch or [self.watch]:
                await watcher.step()

    async def guard(self):
        (newest, *_) = await self.guards.history(1)
        return newest

    def attempts(self):
        with read_transaction(self.store) as connection:
            rows = connection.execute(sa.select(policy_attempts).order_by(policy_attempts.c.id)).mappings()
            return [(row["outcome"], row["actor"]) for row in rows]


def run(story):
    return asyncio.run(story)
