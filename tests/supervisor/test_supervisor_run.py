"""The supervisor over real processes."""

from __future__ import annotations

import json
import os
import signal
import stat

import pytest

from scheduler.policy import PolicyConfig

ROLES = ("engine", "recorder", "service")


def test_it_starts_all_says_where_it_answers_and_stops_the_recorder_after_the_engine(fake_server):
    server = fake_server()
    server.wait_for(rf"Helios is ready .*http://127\.0\.0\.1:{server.port}/dashboard/")
    server.wait_until_serving()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    events = server.events()
    assert events.index("recorder stopped") > events.index("engine stopped")
    assert "service stopped" in events
    assert any(line.endswith("helios | stopped") for line in server.lines)


def test_ctrl_c_stops_it_in_order_too(fake_server):
    server = fake_server()
    server.wait_until_serving()
    os.killpg(server.process.pid, signal.SIGINT)
    assert server.wait() == 0
    assert {f"{role} stopped" for role in ROLES} <= set(server.events())


def test_a_killed_engine_is_replaced_by_a_new_run_with_the_policy_of_that_moment(fake_server):
    server = fake_server()
    first = server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=1\b")
    server.wait_until_serving()
    os.kill(int(first[1]), signal.SIGKILL)
    server.wait_for("the engine was ended by signal 9; starting it again")
    second = server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=2\b")
    server.wait_for(r"engine \| waiting", nth=2)
    server.wait_for(rf"serving again, with engine run {second[2]}")
    assert second[2] > first[2] or second[2][:15] == first[2][:15]
    assert second[2] != first[2]
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_stopped_engine_is_killed_and_replaced_by_a_new_run(fake_server):
    server = fake_server({"engine": {"beats": True}}, look_s=0.05, silent_s=2.0)
    first = server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=1\b")
    server.wait_until_serving()
    os.kill(int(first[1]), signal.SIGSTOP)
    server.wait_for("the engine has not answered for 2 s and is killed")
    server.wait_for("the engine was ended by signal 9; starting it again")
    second = server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=2\b")
    server.wait_for(r"engine \| waiting", nth=2)
    server.wait_for(rf"serving again, with engine run {second[2]}")
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_dead_recorder_and_a_dead_service_are_replaced_while_the_engine_stays(fake_server):
    server = fake_server()
    recorder = server.wait_for(r"recorder \| up pid=(\d+)")
    service = server.wait_for(r"service \| up pid=(\d+)")
    server.wait_until_serving()
    for role, found in (("recorder", recorder), ("service", service)):
        os.kill(int(found[1]), signal.SIGKILL)
        server.wait_for(rf"{role} \| waiting", nth=2)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert sum(line.startswith("engine up") for line in server.events()) == 1


def test_children_end_when_the_supervisor_is_killed(fake_server):
    server = fake_server()
    server.wait_until_serving()
    server.signal(signal.SIGKILL)
    for role in ROLES:
        server.wait_until_gone(role)
    assert {f"{role} stopped" for role in ROLES} <= set(server.events())


def test_a_child_that_does_not_stop_is_killed_and_named(fake_server):
    server = fake_server({"engine": {"stubborn": True}}, stop_s=1.0, drain_s=4.8)
    server.wait_until_serving()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert any("the engine did not stop in time and is killed" in line for line in server.lines)
    assert "recorder stopped" in server.events()
    server.wait_until_gone("engine")


def test_an_engine_that_never_comes_up_ends_the_server_with_1(fake_server):
    server = fake_server({"engine": {"exit": 7}, "service": {"unready": True}}, starts=3, first_delay_s=0.0)
    assert server.wait() == 1
    assert sum(line.startswith("engine up") for line in server.events()) == 3
    assert any("the engine ended with exit code 7, 3 times in a row; giving up" in line for line in server.lines)


def test_a_child_that_refuses_its_settings_ends_the_server_with_2_and_its_own_words(fake_server):
    server = fake_server({"engine": {"exit": 2}, "service": {"exit": 1}}, first_delay_s=30.0)
    assert server.wait() == 2
    assert any("the engine ended with exit code 2; its last lines say what to change" in line for line in server.lines)
    assert sum(line.startswith("engine up") for line in server.events()) == 1


def test_what_children_read_is_for_this_user_alone(fake_server):
    server = fake_server()
    server.wait_until_serving()
    run = server.folder / "data" / "run"
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    for role in ROLES:
        assert stat.S_IMODE((run / f"{role}.json").stat().st_mode) == 0o600
    start = json.loads((run / "engine.json").read_text())
    assert start["endpoint"] == f"ipc://{run / 'engine.sock'}"
    assert start["coefficients"] == {"terminal_value": 256.0}


def test_the_running_servers_address_is_found_in_its_run_folder_and_goes_with_it(fake_server):
    server = fake_server()
    server.wait_until_serving()
    address = server.folder / "data" / "run" / "address"
    assert address.read_text() == f"http://127.0.0.1:{server.port}\n"
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert not address.exists()


def test_on_a_full_disk_a_killed_engine_and_recorder_start_again(fake_server):
    server = fake_server()
    first = server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=1\b")
    recorder = server.wait_for(r"recorder \| up pid=(\d+)")
    server.wait_until_serving()
    run = server.folder / "data" / "run"
    before = (run / "engine.json").read_text(), (run / "recorder.json").stat().st_ino
    (run / "engine.tmp").mkdir()  # stands in for a disk without room: the new file cannot be written
    (run / "recorder.tmp").mkdir()
    os.kill(int(first[1]), signal.SIGKILL)
    second = server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=2\b")
    os.kill(int(recorder[1]), signal.SIGKILL)
    server.wait_for(r"recorder \| waiting", nth=2)
    assert second[2] != first[2]
    assert ((run / "engine.json").read_text(), (run / "recorder.json").stat().st_ino) == before
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert not any("cannot start" in line for line in server.lines)


@pytest.mark.parametrize("store", ["store-away", "store-hangs"])
def test_an_engine_is_replaced_with_the_policy_in_force_while_the_store_cannot_be_asked(fake_server, store):
    server = fake_server({}, store_s=0.2)
    first = server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=1\b")
    server.wait_until_serving()
    (server.folder / store).touch()
    os.kill(int(first[1]), signal.SIGKILL)
    server.wait_for(
        r"the policy cannot be read \(.*store.*\); the engine starts with version 1, which was in force before"
    )
    second = server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=1\b", nth=2)
    server.wait_for(rf"serving again, with engine run {second[2]}")
    (server.folder / store).unlink()
    os.kill(int(second[1]), signal.SIGKILL)
    server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=2\b")
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_policy_that_was_changed_while_the_engine_ran_is_the_one_in_force(fake_server):
    server = fake_server({"engine": {"beats": True, "changes_to": 7}})
    first = server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=1\b")
    server.wait_until_serving()
    (server.folder / "store-away").touch()
    os.kill(int(first[1]), signal.SIGKILL)
    server.wait_for("the engine starts with version 7, which was in force before")
    server.wait_for(r"engine \| up pid=(\d+) run=(\S+) policy=7\b")
    start = json.loads((server.folder / "data" / "run" / "engine.json").read_text())
    wanted = PolicyConfig(
        decode_age_price=0.25, newcomer_memory="phase", decode_cadence="on", token_budget=512
    ).as_dict()
    assert (start["policy_version"], start["coefficients"]) == (7, wanted)
    server.wait_for(r"helios \| warning: the policy \(token_budget=512\) loses .* Start it with --mixed-prefill")
    assert sum("warning" in line for line in server.lines) == 1, "not of the first engine's policy"
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
