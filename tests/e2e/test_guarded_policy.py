"""Changes on trial on the simulated device: one that holds, one that breaks, and one whose service is killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading

import httpx
import pytest
from waiting import wait_until

from tests.e2e.helios_server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CATALOG = """kind,B,D,W,P,prefill_capacity,duration_ms
prefill,1,0,0,64,64,30
decode,1,0,1,1,0,30
decode,8,0,1,8,0,40
"""
PATH = "/api/policy/guard"


@pytest.fixture(scope="module")
def helios(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "catalog.csv").write_text(CATALOG)
    options = ["--device", "simulated", "--catalog", str(folder / "catalog.csv"), "--time-scale", "0.1"]
    with serving(folder / "data", *options) as server:
        yield server


@contextlib.contextmanager
def traffic(helios):
    """Short answers one after the other, until the block ends; whatever becomes of them."""
    stop = threading.Event()
    body = {"model": "smollm2-135m-instruct", "prompt": "once upon a time", "max_tokens": 6}

    def ask():
        with httpx.Client(base_url=helios.base, verify=False, timeout=10) as client:
            while not stop.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    client.post("/v1/completions", json=body)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)


def opened(helios, minutes, **limits):
    """A guarded change of token_fairness; the measures that are not named are left out."""
    policy = helios.http.get("/api/policy").json()
    every = dict.fromkeys(("first_token_p99", "inter_token_p99", "throughput"))
    body = {
        "coefficients": {"token_fairness": policy["coefficients"]["token_fairness"] + 1},
        "minutes": minutes,
        "limits": {**every, **limits},
        "actor": "kim",
    }
    answer = helios.http.post(PATH, json=body, headers={"If-Match": f'"{policy["version"]}"'})
    assert answer.status_code == 201, answer.text
    return policy, answer.json()


def decided(helios, version):
    """The guard of a version once it no longer watches."""

    def found():
        items = helios.http.get(PATH).json()["items"]
        return next((item for item in items if item["version"] == version and item["state"] != "watching"), None)

    return wait_until(found, "the guard's decision", 60)


def counted(helios, outcome):
    return helios.metric(f'flare_policy_guards_total{{outcome="{outcome}"}}')


def test_a_trial_that_holds_keeps_its_version(helios):
    with traffic(helios):
        _, guard = opened(
            helios,
            0.05,
            first_token_p99={"absolute": 1e6, "samples": 3},
            inter_token_p99={"absolute": 1e6, "samples": 3},
            throughput={"absolute": 0.001, "samples": 3},
        )
        found = decided(helios, guard["version"])
    assert (found["state"], found["reason"]) == ("held", "every limit held to the end")
    assert {check["name"]: check["verdict"] for check in found["evidence"]["checks"]} == dict.fromkeys(
        ("first_token_p99", "inter_token_p99", "throughput"), "holds"
    )
    # An answer of six tokens on an idle device: a prompt's graph of 3 ms, then decode graphs of 3 to 4 ms.
    values = {check["name"]: check["value"] for check in found["evidence"]["checks"]}
    assert values["first_token_p99"] > 3
    assert values["inter_token_p99"] > 2
    assert 0 < values["throughput"] < 8 / 0.004
    assert counted(helios, "held") == 1
    assert helios.http.get("/api/policy").json()["version"] == guard["version"]


def test_a_broken_limit_takes_the_version_back_between_two_plans(helios):
    with traffic(helios):
        before, guard = opened(helios, 10, first_token_p99={"absolute": 0.5, "samples": 5})
        found = decided(helios, guard["version"])
        wait_until(
            lambda: helios.rows("SELECT 1 FROM plans WHERE policy_version > :v LIMIT 1", v=guard["version"]),
            "plans of the restored policy",
        )
    assert found["state"] == "rolled_back"
    (check,) = found["evidence"]["checks"]
    assert (check["verdict"], check["bound"]) == ("broken", 0.5)
    policy = helios.http.get("/api/policy").json()
    assert (policy["actor"], policy["parent_version"]) == ("guard", guard["version"])
    assert policy["coefficients"] == before["coefficients"]
    assert helios.metric("flare_scheduler_policy_version") == policy["version"]
    assert counted(helios, "rolled_back") == 1
    attempts = [row["outcome"] for row in helios.rows("SELECT outcome FROM policy_attempts ORDER BY id")]
    assert attempts == ["applied", "held", "applied", "applied"]
    versions = [row["policy_version"] for row in helios.rows("SELECT policy_version FROM plans ORDER BY fence")]
    assert [version for version, _ in itertools.groupby(versions)] == sorted(set(versions))
    assert {guard["version"], policy["version"]} <= set(versions)


def test_a_service_that_is_killed_goes_on_with_the_trial_when_it_is_started_again(helios):
    _, guard = opened(helios, 10, inter_token_p99={"absolute": 0.01, "samples": 5})
    service = helios.child("service.app")
    os.kill(service, signal.SIGKILL)
    wait_until(lambda: helios.child("service.app") != service, "another service")
    wait_until(helios.ready, "it to be ready", 60)
    assert helios.http.get(PATH).json()["watching"]["version"] == guard["version"]
    with traffic(helios):
        found = decided(helios, guard["version"])
    assert (found["state"], found["parent_version"]) == ("rolled_back", guard["version"] - 1)
    assert helios.http.get("/api/policy").json()["actor"] == "guard"
