"""The served dashboard's banner reads the same status as /health/ready."""

from __future__ import annotations

import json
import signal

import httpx
import pytest
from waiting import wait_until

from tests.faults.bed import LONG_S, Bed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def banner(base: str) -> list[str]:
    part = {"id": "status-banner", "property": "children"}
    tick = {"id": "status-tick", "property": "n_intervals", "value": 1}
    body = {
        "output": "status-banner.children",
        "outputs": part,
        "inputs": [tick],
        "state": [],
        "changedPropIds": ["status-tick.n_intervals"],
    }
    headers = {"content-type": "application/json"}
    answer = httpx.post(
        f"{base}/dashboard/_dash-update-component", content=json.dumps(body), headers=headers, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return [line["props"]["children"] for line in answer.json()["response"]["status-banner"]["children"]]


def test_the_banner_of_a_running_server_is_what_health_says(tmp_path):
    server = Bed(tmp_path / "data")
    try:
        server.wait_ready()
        wait_until(lambda: banner(server.base) == [], "an empty banner", LONG_S)
        server.kill("service.engine", signal.SIGSTOP)
        wait_until(lambda: "the engine does not answer" in banner(server.base), "the banner to say so", LONG_S)
        health = server.health()
        assert [*health["reasons"], *health["warnings"]] == banner(server.base)
    finally:
        server.end()
