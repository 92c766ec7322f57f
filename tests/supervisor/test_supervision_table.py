"""The state table alone: no processes, no clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.supervisor.supervision import (
    ENGINE,
    RECORDER,
    SERVICE,
    Kill,
    Limits,
    Look,
    Role,
    Say,
    Start,
    Supervision,
    Terminate,
    roles,
)


def begun(limits: Limits | None = None) -> Supervision:
    supervision = Supervision(limits)
    assert supervision.begin(0.0) == [Start(RECORDER), Start(ENGINE), Start(SERVICE)]
    return supervision


def effects(actions):
    return [action for action in actions if not isinstance(action, Say)]


def test_the_first_crash_of_a_ready_server_is_repaired_at_once():
    supervision = begun()
    supervision.ready(0.0)
    assert effects(supervision.exited(ENGINE, -9, 50.0)) == []
    assert supervision.next_due() == 50.0
    assert supervision.tick(50.0) == [Start(ENGINE)]
    assert supervision.next_due() is None


def test_crashes_in_a_row_wait_longer_and_never_end_a_server_that_was_once_ready():
    supervision = begun()
    supervision.ready(0.0)
    now, delays = 0.0, []
    for _ in range(9):
        supervision.exited(ENGINE, 1, now)
        delays.append(supervision.next_due() - now)
        now = supervision.next_due()
        assert supervision.tick(now) == [Start(ENGINE)]
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert not supervision.stopping


def test_a_steady_run_forgives_earlier_crashes():
    supervision = begun()
    supervision.ready(0.0)
    supervision.exited(RECORDER, 1, 100.0)
    assert Start(RECORDER) in supervision.tick(100.0)
    supervision.exited(RECORDER, 1, 131.0)
    assert Start(RECORDER) in supervision.tick(131.0)


def test_five_crashes_before_the_server_was_ever_ready_end_it_with_1():
    supervision = begun()
    now = 0.0
    for _ in range(4):
        supervision.exited(ENGINE, -11, now)
        now = supervision.next_due()
        supervision.tick(now)
    assert effects(supervision.exited(ENGINE, -11, now)) == [Terminate(SERVICE), Terminate(RECORDER)]
    assert supervision.exit_code == 1
    supervision.exited(SERVICE, 0, now)
    supervision.exited(RECORDER, 0, now)
    assert supervision.ended


def test_exit_2_before_ready_is_a_refusal_and_after_ready_a_crash():
    supervision = begun()
    assert effects(supervision.exited(SERVICE, 2, 1.0)) == [Terminate(ENGINE)]
    assert supervision.exit_code == 2
    later = begun()
    later.ready(0.0)
    later.exited(SERVICE, 2, 1.0)
    assert later.tick(1.0) == [Look(), Start(SERVICE)]


def test_a_stop_ends_engine_and_service_first_and_the_recorder_after_the_engine():
    supervision = begun()
    assert supervision.stop(10.0) == [Terminate(ENGINE), Terminate(SERVICE)]
    assert supervision.exited(SERVICE, 0, 10.1) == []
    assert supervision.exited(ENGINE, 0, 10.2) == [Terminate(RECORDER)]
    assert not supervision.ended
    supervision.exited(RECORDER, 0, 10.3)
    assert supervision.ended
    assert supervision.exit_code == 0


def test_a_second_request_to_stop_changes_nothing():
    supervision = begun()
    supervision.stop(10.0)
    assert supervision.stop(12.0) == []
    assert supervision.next_due() == 14.5


def test_nothing_starts_again_once_a_stop_was_requested():
    supervision = begun()
    supervision.ready(0.0)
    supervision.exited(ENGINE, -9, 10.0)
    assert supervision.stop(10.0) == [Terminate(SERVICE), Terminate(RECORDER)]
    assert supervision.tick(10.0) == []


def test_who_is_late_is_killed_once_and_named():
    supervision = begun()
    supervision.stop(10.0)
    late = supervision.tick(14.5)
    assert effects(late) == [Kill(ENGINE), Kill(SERVICE)]
    assert Say("the engine did not stop in time and is killed") in late
    assert supervision.tick(14.6) == []
    assert supervision.exited(ENGINE, -9, 14.6) == [Terminate(RECORDER)]
    assert effects(supervision.tick(14.85)) == [Kill(RECORDER)]


def test_a_start_that_fails_for_an_outside_reason_is_tried_again_and_never_counted():
    supervision = begun()
    for second in range(20):
        (said,) = supervision.start_failed(ENGINE, "the database is away", float(second))
        assert "the database is away" in said.text
        assert supervision.next_due() == second + 2.0
    assert not supervision.stopping


def looked_at(supervision, start, seconds, beat=lambda now: 7):
    """Looks every second from `start` on; the first time at which there is something to do, and what."""
    for now in (start + second for second in range(1, seconds + 1)):
        assert supervision.next_due() == now
        assert supervision.tick(now) == [Look()]
        actions = supervision.beat(beat(now), now)
        if actions:
            return now, actions
    return None


def test_an_engine_that_was_ready_and_stops_moving_is_killed_and_starts_again():
    supervision = begun()
    assert supervision.next_due() is None
    supervision.ready(100.0)
    at, actions = looked_at(supervision, 100.0, 60)
    assert at == 131.0  # the first look only learns where the heartbeat stands
    assert actions == [Say("the engine has not answered for 30 s and is killed"), Kill(ENGINE)]
    assert supervision.next_due() is None
    supervision.exited(ENGINE, -9, 131.0)
    assert supervision.tick(131.0) == [Start(ENGINE)]
    assert supervision.next_due() is None
    supervision.ready(140.0)
    assert looked_at(supervision, 140.0, 60) == (171.0, actions)


def test_an_engine_that_moves_or_whose_heartbeat_cannot_be_read_is_left_alone():
    supervision = begun()
    supervision.ready(0.0)
    assert looked_at(supervision, 0.0, 100, beat=lambda now: int(now) // 29) is None
    assert looked_at(supervision, 100.0, 100, beat=lambda now: None) is None


def test_a_supervisor_that_was_held_up_itself_gives_the_engine_time_to_move():
    supervision = begun()
    supervision.ready(0.0)
    assert looked_at(supervision, 0.0, 20) is None
    assert supervision.tick(3600.0) == [Look()]
    assert supervision.beat(7, 3600.0) == []
    assert looked_at(supervision, 3600.0, 3, beat=lambda now: 8) is None


def test_an_engine_is_not_looked_at_while_it_starts_or_the_server_stops():
    supervision = begun()
    assert supervision.beat(7, 99.0) == []
    supervision.ready(0.0)
    supervision.beat(7, 1.0)
    supervision.stop(2.0)
    assert supervision.beat(7, 99.0) == []
    assert Look() not in supervision.tick(99.0)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("exit"), st.sampled_from(roles(2)), st.integers(-15, 3)),
            st.tuples(st.just("wait"), st.floats(0.0, 12.0)),
            st.tuples(st.just("ready")),
            st.tuples(st.just("stop")),
            st.tuples(st.just("fail"), st.sampled_from(roles(2))),
        ),
        max_size=60,
    )
)
def test_a_role_never_runs_twice_and_every_stop_ends(events):
    supervision = Supervision(workers=2)
    running: set[Role] = set()
    now = 0.0

    def apply(actions):
        for action in actions:
            if isinstance(action, Start):
                assert action.role not in running
                assert not supervision.stopping
                running.add(action.role)
            elif isinstance(action, Terminate | Kill):
                assert action.role in running

    apply(supervision.begin(now))
    for event in events:
        if event[0] == "exit" and event[1] in running:
            running.remove(event[1])
            apply(supervision.exited(event[1], event[2], now))
        elif event[0] == "fail" and event[1] in running:
            running.remove(event[1])
            apply(supervision.start_failed(event[1], "away", now))
        elif event[0] == "wait":
            now += event[1]
            apply(supervision.tick(now))
        elif event[0] == "ready":
            supervision.ready(0.0)
        elif event[0] == "stop":
            apply(supervision.stop(now))
    apply(supervision.stop(now))
    while running:
        due = supervision.next_due()
        if due is not None:
            now = max(now, due)
            killed = [action.role for action in supervision.tick(now) if isinstance(action, Kill)]
            assert set(killed) <= running
        for role in list(running):
            running.remove(role)
            apply(supervision.exited(role, 0, now))
    assert supervision.ended


def test_each_worker_of_the_service_is_started_again_alone_and_all_are_told_to_stop():
    supervision = Supervision(workers=3)
    workers = roles(3)[2:]
    assert [str(role) for role in workers] == ["service", "service-2", "service-3"]
    assert supervision.begin(0.0) == [Start(role) for role in (RECORDER, ENGINE, *workers)]
    supervision.ready(1.0)
    supervision.exited(workers[1], -9, 2.0)
    assert Start(workers[1]) in supervision.tick(2.0)
    assert supervision.stop(3.0) == [Terminate(role) for role in (ENGINE, *workers)]
