"""Faults planted into the worker loop, one at a time: an existing check must notice each of them, and pass without."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from scheduler.records import FinishReason
from service.engine import commands, completion, worker
from service.engine.core import Core
from service.engine.publication import publish
from service.engine.requests import Ending
from service.engine.worker import Worker
from service.ipc.messages import Tokens
from service.journal.records import OutputPublished, PlanCompleted
from tests.engine import (
    test_worker_cancels,
    test_worker_order,
    test_worker_policy,
    test_worker_preemption,
    test_worker_requests,
    test_worker_stop_strings,
)


def publish_before_write(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Worker._write

    def early(self: Worker) -> None:
        publish(self.core, self._transport)
        write(self)

    monkeypatch.setattr(Worker, "_write", early)


def _left_out(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Every second record of a kind is never written."""
    write, seen = Worker._write, []

    def some(self: Worker) -> None:
        for record in [record for record in self.core.records if isinstance(record, kind)]:
            seen.append(record)
            if len(seen) % 2 == 0:
                self.core.records.remove(record)
        write(self)

    monkeypatch.setattr(Worker, "_write", some)


def completion_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _left_out(monkeypatch, PlanCompleted)


def publication_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _left_out(monkeypatch, OutputPublished)


def tokens_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    take = completion._take_tokens

    def twice(core: Core, tokens: Any, *more: Any) -> Any:
        return take(core, [*(token for token in tokens if token.finished is None), *tokens], *more)

    monkeypatch.setattr(completion, "_take_tokens", twice)


def pages_kept_on_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Core, request: Any, reason: FinishReason, error: str | None, decided_ns: int) -> None:
        self._close(request, Ending(reason, error, decided_ns))
        if request.handle is not None:
            self.scheduler.cancel(request.handle)

    monkeypatch.setattr(Core, "end", end)


def stop_token_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Core.settle

    def counted(self: Core, request: Any, reason: FinishReason, error: str | None, decided_ns: int) -> None:
        request.output_tokens += reason is FinishReason.STOP
        settle(self, request, reason, error, decided_ns)

    monkeypatch.setattr(Core, "settle", counted)


def delivers_after_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told the end, and the request goes on."""

    def cancel(core: Core, client: bytes, message: Any) -> None:
        request = core.table.get(message.request_id)
        if request is not None:
            core.say(client, Tokens(request.request_id, [], request.prompt_seen, request.output_tokens, "abort"))

    monkeypatch.setattr(commands, "_cancel", cancel)


def wrong_fence_in_header(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Worker._write

    def behind(self: Worker) -> None:
        self.core.last_fence -= 1
        write(self)
        self.core.last_fence += 1

    monkeypatch.setattr(Worker, "_write", behind)


def _applied_later(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A policy that is acknowledged is applied behind the next `step` of the loop."""
    use, then, waiting = commands.use_policy, getattr(worker, step), []

    def apply(core: Core) -> Any:
        done = then(core)
        while waiting:
            use(core, *waiting.pop(0))
        return done

    monkeypatch.setattr(commands, "use_policy", lambda core, version, policy: waiting.append((version, policy)))
    monkeypatch.setattr(worker, step, apply)


def policy_acknowledged_before_it_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    _applied_later(monkeypatch, "collect_completion")


def policy_one_plan_late(monkeypatch: pytest.MonkeyPatch) -> None:
    _applied_later(monkeypatch, "plan_and_commit")


def resumes_without_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    preempted = Core.preempted

    def forgets(self: Core, request: Any) -> None:
        preempted(self, request)
        request.output = [0] * len(request.output)

    monkeypatch.setattr(Core, "preempted", forgets)


def stop_string_ends_like_an_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_keeps_answer", lambda request, answer_tokens: False)


@dataclasses.dataclass(frozen=True)
class Fault:
    """`plant` breaks the engine; `check` is given `make_rig` and must fail then."""

    plant: Callable[[pytest.MonkeyPatch], None]
    check: Callable[[Any], None]


def preemption_rig(make_rig: Any) -> Any:
    rig = make_rig(states=True, pages=24, slots=6, queue_limit=100)
    for first in range(10, 60):
        rig.device.scripts[first] = test_worker_preemption.long_script(first)
    return rig


FAULTS = (
    Fault(
        publish_before_write,
        lambda make: test_worker_order.test_nothing_is_published_before_the_write_that_records_its_completion(make()),
    ),
    Fault(
        completion_left_out,
        lambda make: test_worker_order.test_nothing_is_published_before_the_write_that_records_its_completion(make()),
    ),
    Fault(
        publication_left_out,
        lambda make: (
            test_worker_order.test_every_published_lane_had_tokens_and_every_lane_with_visible_tokens_is_published(
                make()
            )
        ),
    ),
    Fault(tokens_twice, lambda make: test_worker_requests.test_a_request_runs_to_its_output_limit(make())),
    Fault(
        pages_kept_on_cancel,
        lambda make: test_worker_cancels.test_a_cancel_frees_the_pages_when_the_running_graph_ends(make()),
    ),
    Fault(
        stop_token_counted_twice,
        lambda make: test_worker_requests.test_a_stop_token_ends_the_answer_is_counted_and_not_published(make()),
    ),
    Fault(
        delivers_after_abort,
        lambda make: test_worker_cancels.test_tokens_before_an_abort_stay_counted_and_one_in_the_running_graph_does_not(
            make()
        ),
    ),
    Fault(
        wrong_fence_in_header,
        lambda make: test_worker_order.test_every_write_carries_the_last_committed_fence(make()),
    ),
    Fault(
        policy_acknowledged_before_it_applies,
        lambda make: test_worker_order.test_an_acknowledged_or_accepted_command_is_in_the_journal_before_the_answer(
            make()
        ),
    ),
    Fault(
        policy_one_plan_late,
        lambda make: test_worker_policy.test_a_plan_of_the_same_iteration_is_made_under_the_new_policy(make()),
    ),
    Fault(
        resumes_without_its_output,
        lambda make: test_worker_preemption.test_it_resumes_from_its_terminal_snapshot_with_one_token_to_compute(
            preemption_rig(make)
        ),
    ),
    Fault(
        stop_string_ends_like_an_abort,
        test_worker_stop_strings.test_without_a_count_the_cached_state_has_all_that_was_computed,
    ),
)
faults = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.plant.__name__)


@faults
def test_a_planted_fault_is_noticed(make_rig, monkeypatch, fault):
    fault.plant(monkeypatch)
    with pytest.raises(AssertionError):
        fault.check(make_rig)


@faults
def test_the_sound_engine_passes_the_same_check(make_rig, fault):
    fault.check(make_rig)
