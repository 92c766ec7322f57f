"""When which process starts, restarts and stops: a state table without clocks, processes or I/O.

    phase     event              what follows
    running   a role exits       it starts again: at once after its first crash, then after 0.5, 1, 2, … 10 s
    running   a role exits 2     before the server was ever ready: its message said why, stop with 2
    running   fifth crash        before the server was ever ready: stop with 1
    running   engine silent      once it was ready: killed, and so started again as a new run
    running   stop               engine and service are told to stop, nothing starts any more
    stopping  the engine exits   the recorder is told to stop, so that it drains what the engine wrote last
    stopping  a role is late     it is killed, and that is said
    stopping  all have exited    ended

Times are seconds of one monotonic clock, given by the caller.
"""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True, slots=True)
class Role:
    """One supervised process: what it is, and which of them where there are several workers of the service."""

    name: str
    number: int = 1

    def __str__(self) -> str:
        return self.name if self.number == 1 else f"{self.name}-{self.number}"

    @property
    def kind(self) -> Role:
        """The role that stands for all of its name."""
        return Role(self.name)


RECORDER = Role("recorder")
ENGINE = Role("engine")
SERVICE = Role("service")


def roles(workers: int) -> tuple[Role, ...]:
    """The supervised processes, with this many of the service, in the order of their start."""
    return (RECORDER, ENGINE, *(Role(SERVICE.name, number) for number in range(1, workers + 1)))


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Start the role's process."""

    role: Role


@dataclasses.dataclass(frozen=True, slots=True)
class Terminate:
    """Send the role SIGTERM."""

    role: Role


@dataclasses.dataclass(frozen=True, slots=True)
class Kill:
    """Send the role SIGKILL."""

    role: Role


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """Read the engine's heartbeat and call beat() with it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Say:
    """Tell the operator."""

    text: str


Action = Start | Terminate | Kill | Look | Say


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, but `starts`: crashes in a row, before the server was ever ready, after which it gives up.

    `stop_s` and `drain_s` count from the request to stop: engine and service, then the recorder, are killed.
    `silent_s`: an engine that was ready and whose heartbeat stands still for this long, looked at every `look_s`, is
    killed. `store_s`: how long the store is asked for the policy of an engine that is started again.
    """

    starts: int = 5
    first_delay_s: float = 0.5
    longest_delay_s: float = 10.0
    steady_s: float = 30.0
    stop_s: float = 4.5
    drain_s: float = 4.85
    retry_s: float = 2.0
    look_s: float = 1.0
    silent_s: float = 30.0
    store_s: float = 2.0


@dataclasses.dataclass(slots=True)
class _State:
    running: bool = False
    started_at: float = 0.0
    restart_at: float | None = None
    crashes: int = 0
    killed: bool = False


@dataclasses.dataclass(slots=True)
class _Pulse:
    """What is known about the heartbeat of an engine that was ready.

    `still_s` grows by at most two looks at a time: when the supervisor itself was held up, the machine was too, and
    the engine gets its time to move again.
    """

    looked_at: float
    beat_ns: int | None = None
    still_s: float = 0.0


class Supervision:
    """The state of all roles. Every method returns what the caller does next, in order."""

    def __init__(self, limits: Limits | None = None, workers: int = 1) -> None:
        """`workers`: processes of the service."""
        self._limits = limits or Limits()
        self._roles = {role: _State() for role in roles(workers)}
        self._stopping_since: float | None = None
        self._ever_ready = False
        self._draining = False
        self._pulse: _Pulse | None = None
        self.exit_code = 0

    @property
    def ended(self) -> bool:
        """Everything has been stopped; `exit_code` is final."""
        return self._stopping_since is not None and not any(state.running for state in self._roles.values())

    @property
    def stopping(self) -> bool:
        """A stop was requested or decided."""
        return self._stopping_since is not None

    @property
    def ever_ready(self) -> bool:
        """The whole server has answered requests before."""
        return self._ever_ready

    def begin(self, now: float) -> list[Action]:
        """Start all, the recorder first so that it sees the run's first record soon."""
        return [self._start(role, now) for role in self._roles]

    def ready(self, now: float) -> bool:
        """The whole server answers requests, with the engine that runs now; True the first time."""
        if self._roles[ENGINE].running:
            self._pulse = _Pulse(now)
        first, self._ever_ready = not self._ever_ready, True
        return first

    def beat(self, beat_ns: int | None, now: float) -> list[Action]:
        """The engine's heartbeat as it stands at `now`, in any unit; None: it cannot be read, which proves nothing."""
        pulse = self._pulse
        if pulse is None or self.stopping:
            return []
        passed, pulse.looked_at = now - pulse.looked_at, now
        if beat_ns is None or beat_ns != pulse.beat_ns:
            pulse.beat_ns, pulse.still_s = beat_ns, 0.0
            return []
        pulse.still_s += min(passed, 2 * self._limits.look_s)
        if pulse.still_s < self._limits.silent_s:
            return []
        self._pulse = None
        return [Say(f"the engine has not answered for {self._limits.silent_s:g} s and is killed"), Kill(ENGINE)]

    def exited(self, role: Role, code: int, now: float) -> list[Action]:
        """The role's process has ended; `code` is negative for a signal."""
        state = self._roles[role]
        state.running = False
        if role == ENGINE:
            self._pulse = None
        if self.stopping:
            return self._advance_stop()
        if self._ever_ready and now - state.started_at >= self._limits.steady_s:
            state.crashes = 0
        state.crashes += 1
        why = f"the {role} {_describe(code)}"
        if not self._ever_ready and code == 2:
            return [Say(f"{why}; its last lines say what to change"), *self._give_up(2, now)]
        if not self._ever_ready and state.crashes >= self._limits.starts:
            return [Say(f"{why}, {state.crashes} times in a row; giving up"), *self._give_up(1, now)]
        delay = self._delay(state.crashes)
        state.restart_at = now + delay
        return [Say(f"{why}; starting it again" + (f" in {delay:g} s" if delay else ""))]

    def start_failed(self, role: Role, why: str, now: float) -> list[Action]:
        """The role could not be started for a reason outside it, such as a database that is away; try again later."""
        state = self._roles[role]
        state.running = False
        if self.stopping:
            return self._advance_stop()
        state.restart_at = now + self._limits.retry_s
        return [Say(f"cannot start the {role}: {why}; trying again in {self._limits.retry_s:g} s")]

    def stop(self, now: float) -> list[Action]:
        """Stop in order; a second request changes nothing."""
        if self.stopping:
            return []
        self._stopping_since = now
        front: list[Action] = [Terminate(r) for r, state in self._roles.items() if state.running and r != RECORDER]
        return front + self._advance_stop()

    def tick(self, now: float) -> list[Action]:
        """What is due by the clock."""
        if self._stopping_since is not None:
            return [action for role in self._roles for action in self._kill_if_late(role, now)]
        due = [r for r, s in self._roles.items() if s.restart_at is not None and s.restart_at <= now]
        look: list[Action] = [Look()] if self._look_at() <= now else []
        return [*look, *(self._start(role, now) for role in due)]

    def next_due(self) -> float | None:
        """The earliest time at which tick() has something to do."""
        if self._stopping_since is not None:
            late = [self._deadline(r) for r, s in self._roles.items() if s.running and not s.killed]
            return min(late, default=None)
        times = [self._look_at(), *(s.restart_at for s in self._roles.values() if s.restart_at is not None)]
        return None if min(times) == math.inf else min(times)

    def _start(self, role: Role, now: float) -> Action:
        state = self._roles[role]
        state.running, state.restart_at, state.started_at = True, None, now
        return Start(role)

    def _look_at(self) -> float:
        """When the engine's heartbeat is due for a look; never for one that was not ready yet."""
        return math.inf if self._pulse is None else self._pulse.looked_at + self._limits.look_s

    def _delay(self, crashes: int) -> float:
        if crashes <= 1:
            return 0.0
        return float(min(self._limits.first_delay_s * 2 ** min(crashes - 2, 16), self._limits.longest_delay_s))

    def _give_up(self, code: int, now: float) -> list[Action]:
        self.exit_code = code
        return self.stop(now)

    def _advance_stop(self) -> list[Action]:
        """Once the engine is gone, the recorder drains."""
        if self._draining or self._roles[ENGINE].running:
            return []
        self._draining = True
        return [Terminate(RECORDER)] if self._roles[RECORDER].running else []

    def _deadline(self, role: Role) -> float:
        assert self._stopping_since is not None
        return self._stopping_since + (self._limits.drain_s if role == RECORDER else self._limits.stop_s)

    def _kill_if_late(self, role: Role, now: float) -> list[Action]:
        state = self._roles[role]
        if not state.running or state.killed or now < self._deadline(role):
            return []
        state.killed = True
        return [Say(f"the {role} did not stop in time and is killed"), Kill(role)]


def _describe(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
