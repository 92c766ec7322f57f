"""A policy changed in the browser while requests run, followed to the engine, SQL, metrics and spans; and on trial."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from otlp_receiver import OtlpReceiver, attributes
from playwright.sync_api import Page, expect
from waiting import wait_until

from tests.e2e.helios_server import HeliosServer, serving

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.timeout(600)]

CATALOG = """kind,B,D,W,P,prefill_capacity,duration_ms
prefill,1,0,0,64,64,30
prefill,1,0,0,512,512,90
decode,1,0,1,1,0,50
decode,8,0,1,8,0,60
"""
BODY = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "Say it."}], "max_tokens": 12}
STREAMS = 3


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    made = OtlpReceiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def helios(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeliosServer]:
    folder = tmp_path_factory.mktemp("steering")
    (folder / "catalog.csv").write_text(CATALOG)
    options = ["--device", "simulated", "--catalog", str(folder / "catalog.csv"), "--time-scale", "0.1"]
    with serving(folder / "data", *options, "--otlp-endpoint", receiver.url) as server:
        yield server


@contextlib.contextmanager
def load(helios: HeliosServer) -> Iterator[list[int]]:
    """Clients that ask again and again; the status of every answer."""
    done, statuses = threading.Event(), []

    def ask() -> None:
        with httpx.Client(base_url=helios.base, timeout=60, verify=False) as client:
            while not done.is_set():
                statuses.append(client.post("/v1/chat/completions", json=BODY).status_code)

    clients = [threading.Thread(target=ask) for _ in range(STREAMS)]
    for client in clients:
        client.start()
    try:
        wait_until(lambda: len(statuses) > STREAMS, "the first answers")
        yield statuses
    finally:
        done.set()
        for client in clients:
            client.join(60)


def open_with(page: Page, helios: HeliosServer, draft: str) -> None:
    page.goto(f"{helios.base}/dashboard/policy?draft={draft}")
    expect(page.locator("#policy-diff tbody tr")).to_have_count(1)
    page.get_by_role("textbox", name="Who").fill("olga")
    page.get_by_role("textbox", name="Note").fill("under load")


def on_trial(page: Page, helios: HeliosServer, draft: str, minutes: str, first_token: str) -> None:
    """With one limit, which needs one request."""
    open_with(page, helios, draft)
    page.get_by_text("Apply on trial, with a way back").click()
    page.get_by_role("textbox", name="Minutes on trial").fill(minutes)
    for label, entry in (("First token p99, at most", first_token), ("Inter-token p99, at most", ""),
                         ("Throughput, at least", "")):  # fmt: skip
        page.get_by_role("textbox", name=label).fill(entry)
    page.get_by_role("textbox", name="First token p99, values needed").fill("1")
    page.get_by_role("button", name="Apply on trial").click()


def in_force(helios: HeliosServer) -> float:
    return helios.metric("flare_scheduler_policy_version")


def plans_by_version(helios: HeliosServer, version: int) -> dict[str, Any]:
    query = "SELECT min(fence) AS first, max(fence) AS last, count(*) AS plans FROM plans WHERE policy_version = :v"
    return helios.rows(query, v=version)[0]


def test_a_change_in_the_browser_under_load_is_followed_to_every_place(
    page: Page, helios: HeliosServer, receiver: OtlpReceiver
) -> None:
    with load(helios) as statuses:
        wait_until(lambda: plans_by_version(helios, 1)["plans"], "plans under the first version")
        open_with(page, helios, "decode_age_price:0.2")
        page.get_by_role("button", name="Apply", exact=True).click()
        expect(page.locator("#policy-result")).to_contain_text("Version 2 applied")
        expect(page.locator("#policy-version")).to_contain_text("Version 2 is in force; by olga")
        wait_until(lambda: plans_by_version(helios, 2)["plans"] > 5, "plans under the new version")
        wait_until(lambda: in_force(helios) == 2, "the metric of the version")
    assert set(statuses) == {200}
    (made,) = helios.rows("SELECT * FROM policy_versions WHERE version = 2")
    assert (made["state"], made["actor"], made["note"]) == ("applied", "olga", "under load")
    assert made["decode_age_price"] == 0.2
    (applied,) = helios.rows("SELECT * FROM policy_applications WHERE version = 2")
    before, after = plans_by_version(helios, 1), plans_by_version(helios, 2)
    assert before["last"] <= applied["fence"] < after["first"]
    assert helios.metric('flare_scheduler_policy{coefficient="decode_age_price"}') == 0.2
    receiver.wait_for(
        lambda: 2 in {attributes(span)["helios.policy.version"] for span in receiver.named("helios.policy_change")},
        "the span of the change",
    )


def test_a_trial_that_holds_stays_and_one_that_breaks_its_limit_is_taken_back(page: Page, helios: HeliosServer) -> None:
    with load(helios):
        on_trial(page, helios, "token_fairness:18", "0.1", "60 s")
        expect(page.locator("#guard-panel")).to_contain_text("Version 3 is on trial")
        expect(page.locator("#policy-trials")).to_contain_text("Version 3: held to the end, and stays", timeout=60_000)
        page.get_by_text("Version 3: held to the end").click()
        expect(page.locator("#trial-3 tbody")).to_contain_text("holds")
        expect(page.locator("#policy-version")).to_contain_text("Version 3 is in force")
        on_trial(page, helios, "token_fairness:40", "1", "0.5 ms")
        expect(page.locator("#policy-trials")).to_contain_text("Version 4: taken back", timeout=60_000)
        expect(page.locator("#policy-version")).to_contain_text("Version 5 is in force; by guard")
        page.get_by_text("Version 4: taken back").click()
        expect(page.locator("#trial-4 tbody")).to_contain_text("broken")
        wait_until(lambda: plans_by_version(helios, 5)["plans"], "plans under the version that came back")
    guards = helios.rows("SELECT version, state FROM policy_guards ORDER BY version")
    assert guards == [{"version": 3, "state": "held"}, {"version": 4, "state": "rolled_back"}]
    values = helios.rows("SELECT token_fairness FROM policy_versions WHERE version >= 3 ORDER BY version")
    assert [row["token_fairness"] for row in values] == [18.0, 40.0, 18.0]
    assert helios.metric('flare_policy_guards_total{outcome="held"}') == 1
    assert helios.metric('flare_policy_guards_total{outcome="rolled_back"}') == 1
    assert in_force(helios) == 5
