"""The supervisor itself: carries out what the state table decides."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.policy import PolicyConfig
from service.control.fit import misfit
from service.control.start import POLICY_FLAGS
from service.recorder.priority import AGAIN
from service.settings import EngineStart, Settings, child_environment
from service.supervisor import files
from service.supervisor.child import Child
from service.supervisor.errors import StartRefused
from service.supervisor.policies import FindPolicy, Policies
from service.supervisor.probe import ReadinessProbe
from service.supervisor.report import Report, base_url
from service.supervisor.supervision import (
    ENGINE,
    RECORDER,
    Action,
    Kill,
    Limits,
    Look,
    Role,
    Say,
    Start,
    Supervision,
    Terminate,
)
from service.supervisor.workers import SharedByWorkers
from service.telemetry.shared import MetricsReader


@dataclasses.dataclass(frozen=True, slots=True)
class _Exited:
    child: Child
    code: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Ready:
    run_id: str


class _Stop:
    pass


class Supervisor:
    """Owns the children. Everything but the children's own threads runs on the main thread."""

    def __init__(
        self,
        settings: Settings,
        commands: Mapping[Role, tuple[str, ...]],
        policy: FindPolicy,
        report: Report,
        limits: Limits | None = None,
    ) -> None:
        self._settings = settings
        self._commands = commands
        limits = limits or Limits()
        self._policies = Policies(policy, settings, _without_policy_flags(settings), limits.store_s)
        self._report = report
        self._supervision = Supervision(limits, settings.workers)
        self._shared = SharedByWorkers(settings)
        # A SimpleQueue may be filled from a signal handler even while this thread waits in get().
        self._events: queue.SimpleQueue[_Exited | _Ready | _Stop] = queue.SimpleQueue()
        self._children: dict[Role, Child] = {}
        self._probe: ReadinessProbe | None = None
        self._metrics = MetricsReader(settings.engine_metrics_path)
        self._run_id = ""

    def prepare(self) -> None:
        """Find the first engine's policy, and listen for several workers. Raises StartRefused."""
        self._policies.find_first()
        self._shared.prepare()

    def request_stop(self) -> None:
        """Make run() stop everything in order and return. Any thread may call it, at any time."""
        self._events.put(_Stop())

    def run(self) -> int:
        """Start everything and return the exit code when everything has ended."""
        with contextlib.suppress(OSError):  # a full disk costs commands the address, not the server
            files.write_address(self._settings, base_url(self._settings))
        try:
            return self._run()
        finally:
            with contextlib.suppress(OSError):
                self._settings.address_path.unlink()

    def _run(self) -> int:
        self._report.starting()
        self._carry_out(self._supervision.begin(time.monotonic()))
        while not self._supervision.ended:
            self._step()
        self._report.still()
        if self._probe is not None:
            self._probe.stop()
        self._report.say("stopped" if self._supervision.exit_code == 0 else "stopped after failures")
        return self._supervision.exit_code

    def _step(self) -> None:
        due = self._supervision.next_due()
        try:
            event = self._events.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
        except queue.Empty:
            self._carry_out(self._supervision.tick(time.monotonic()))
            return
        now = time.monotonic()
        if isinstance(event, _Exited):
            del self._children[event.child.role]
            if event.child.role == ENGINE:
                self._note_policy(event.child.pid)
            self._carry_out(self._supervision.exited(event.child.role, event.code, now))
        elif isinstance(event, _Ready):
            self._became_ready(event.run_id)
        else:
            self._report.still()
            self._report.say("stopping")
            self._carry_out(self._supervision.stop(now))

    def _became_ready(self, run_id: str) -> None:
        if self._supervision.stopping or run_id != self._run_id:
            return
        if self._supervision.ready(time.monotonic()):
            self._report.ready()
        else:
            self._report.say(f"serving again, with engine run {run_id}")

    def _carry_out(self, actions: list[Action]) -> None:
        if self._supervision.stopping:
            self._shared.close()
        for action in actions:
            if isinstance(action, Say):
                self._report.say(action.text)
            elif isinstance(action, Start):
                self._start(action.role)
            elif isinstance(action, Terminate):
                self._children[action.role].terminate()
            elif isinstance(action, Kill):
                self._children[action.role].kill()
            elif isinstance(action, Look):
                self._carry_out(self._supervision.beat(self._engine_beat(), time.monotonic()))

    def _engine_beat(self) -> int | None:
        """The heartbeat of the engine that runs now, in ns; None when its file is gone or another process's.

        Its policy is noted on the way.
        """
        found = self._metrics.heartbeat()
        child = self._children.get(ENGINE)
        if found is None or child is None or found.pid != child.pid:
            return None
        self._note_policy(child.pid)
        return found.at_ns

    def _note_policy(self, pid: int) -> None:
        """An operator may have changed the policy of an engine, which tells of it to its end."""
        found = self._metrics.read(dead=True)
        self._policies.note(found if found is not None and found.pid == pid else None)

    def _start(self, role: Role) -> None:
        again = (AGAIN,) if role == RECORDER and self._supervision.ever_ready else ()
        try:
            with files.start_file(self._settings, role, self._orders(role)) as start:
                child = Child(
                    role,
                    (*self._commands[role.kind], start.path, *again, *self._shared.command(role)),
                    self._shared.environment(role, child_environment(os.getpid())),
                    self._report.line,
                    lambda child, code: self._events.put(_Exited(child, code)),
                    (*start.descriptors, *self._shared.descriptors(role)),
                )
        except (StartRefused, OSError) as error:
            self._carry_out(self._supervision.start_failed(role, str(error), time.monotonic()))
            return
        self._children[role] = child
        if role == ENGINE:
            self._watch_readiness()

    def _watch_readiness(self) -> None:
        if self._probe is not None:
            self._probe.stop()
        url = f"{base_url(self._settings)}/health/ready"
        self._probe = ReadinessProbe(url, self._run_id, lambda run_id: self._events.put(_Ready(run_id)))

    def _orders(self, role: Role) -> Settings | EngineStart:
        """What the role's next process is to do. Raises StartRefused."""
        if role != ENGINE:
            return self._settings
        policy = self._policies.choose()
        if policy.complaint is not None:
            self._report.say(
                f"the policy cannot be read ({policy.complaint}); the engine starts with version {policy.version}, "
                "which was in force before"
            )
        found = misfit(PolicyConfig.balanced().merged(policy.coefficients), mixed_prefill=self._settings.mixed_prefill)
        if found is not None:
            self._report.say(f"warning: {found}")
        self._run_id = files.new_run_id()
        return EngineStart(
            settings=self._settings,
            run_id=self._run_id,
            endpoint=self._settings.engine_endpoint,
            policy_version=policy.version,
            coefficients=policy.coefficients,
        )


def _without_policy_flags(settings: Settings) -> Settings:
    """For a restarted engine: the flags made their version at the start and must not undo a later change."""
    given_up: dict[str, Any] = dict.fromkeys(POLICY_FLAGS)
    return msgspec.structs.replace(settings, **given_up)
