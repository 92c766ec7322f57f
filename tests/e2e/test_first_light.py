"""The whole product with the real model: English out, every decision in SQL, a coefficient changed two ways."""

from __future__ import annotations

import json

import httpx
import pytest
from playwright.sync_api import expect
from waiting import wait_until

from tests.e2e.helios_server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]


@pytest.fixture(scope="module")
def helios(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("first-light") / "data") as server:
        yield server


def stream_chat(helios, **options):
    return helios.client().chat.completions.create(
        model="smollm2-135m-instruct", messages=QUESTION, stream=True, temperature=0, **options
    )


def chat(helios):
    """A short streamed chat, read to its end; its request id."""
    return list(stream_chat(helios, max_tokens=6))[-1].id


def in_sql(helios, query, **parameters):
    return wait_until(lambda: helios.rows(query, **parameters), f"rows of {query} {parameters}")


def finished(helios, request_id):
    """The request's row once it has ended and every plan that served it is complete."""
    return in_sql(
        helios,
        "SELECT * FROM requests r WHERE request_id = :id AND finished_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM "
        "plan_lanes l JOIN plans p USING (run_id, fence) WHERE l.run_id = r.run_id AND l.request_id = r.request_id "
        "AND p.outcome = 'in_flight')",
        id=request_id,
    )[0]


def plans_of(helios, request_id):
    return helios.rows(
        "SELECT p.*, l.token_price, l.delivery_price, l.committed_tokens, l.delivered, l.role FROM plans p JOIN "
        "plan_lanes l USING (run_id, fence) WHERE l.request_id = :id ORDER BY fence",
        id=request_id,
    )


def test_a_streamed_chat_is_english_and_every_token_is_a_committed_plan(helios):
    chunks = list(stream_chat(helios, max_tokens=24, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "Paris" in text
    usage = chunks[-1].usage
    row = finished(helios, chunks[0].id)
    assert (row["prompt_tokens"], row["output_tokens"]) == (usage.prompt_tokens, usage.completion_tokens)
    assert row["finish_reason"] in ("stop", "length")
    plans = plans_of(helios, chunks[0].id)
    assert sum(p["committed_tokens"] for p in plans) == usage.completion_tokens
    states = {"init", "restore", "snapshot", "terminal_snapshot"}
    assert {p["kind"] for p in plans} - states == {"prefill", "decode"}
    assert {p["outcome"] for p in plans} == {"completed"}
    for p in plans:
        parts = p["token_value"] + p["delivery_value"] + p["age_relief"] + p["terminal_relief"]
        parts += p["prompt_wait_relief"] + p["decode_late_relief"]
        if p["score_kind"] == "rate":
            assert p["value_rate"] == pytest.approx(parts / p["score_horizon_ms"] - p["wait_cost"], rel=1e-12)
            assert p["selected_cost_ms"] > 0
        else:
            assert (p["reason"], p["score_horizon_ms"]) == ("discovery", None)
            assert p["value_rate"] == pytest.approx(parts, rel=1e-12)
        assert p["device_ms"] > 0
    phases = sum(row[f"{name}_ms"] for name in ("tokenize", "queue", "prefill", "decode", "publish"))
    whole = helios.rows(
        "SELECT (julianday(finished_at) - julianday(arrived_at)) * 86400000 AS ms FROM requests WHERE request_id = :id",
        id=chunks[0].id,
    )[0]["ms"]
    assert phases == pytest.approx(whole, abs=1.0)


def test_streamed_and_whole_answers_are_the_same_text(helios):
    streamed = "".join(c.choices[0].delta.content or "" for c in stream_chat(helios, max_tokens=16) if c.choices)
    whole = helios.client().chat.completions.create(
        model="smollm2-135m-instruct", messages=QUESTION, temperature=0, max_tokens=16
    )
    assert whole.choices[0].message.content == streamed
    completion = helios.client().completions.create(
        model="smollm2-135m-instruct", prompt="The capital of France is", temperature=0, max_tokens=4
    )
    assert "Paris" in completion.choices[0].text


def test_plans_over_http_say_what_they_were_chosen_over(helios):
    with stream_chat(
        helios, max_tokens=400, extra_body={"ignore_eos": True}
    ) as running:  # longer than the second takes
        chunks = iter(running)
        for _ in range(4):  # after the first token its prompt's state is still to be captured
            next(chunks)
        second = chat(helios)
    finished(helios, second)
    plans = httpx.get(f"{helios.base}/api/plans?request={second}").json()["items"]
    details = [httpx.get(f"{helios.base}/api/plans/{p['run_id']}/{p['fence']}").json() for p in plans]
    assert all(len(d["lanes"]) == d["plan"]["active_rows"] for d in details)
    competitors = {
        (d["plan"]["kind"], a["kind"]) for d in details for a in d["alternatives"] if a["barred_by"] == "none"
    }
    assert competitors & {("prefill", "decode"), ("decode", "prefill")}
    assert all(d["plan"]["margin"] is None or d["plan"]["margin"] >= 0 for d in details)


def test_counters_move_with_the_plans(helios):
    before = helios.metric("flare_output_tokens_total")
    list(stream_chat(helios, max_tokens=8))
    assert wait_until(lambda: helios.metric("flare_output_tokens_total") - before, "the token counter") <= 8
    assert helios.metric("flare_engine_up") == 1
    ordinary = helios.metric('flare_scheduler_executions_total{class="ordinary"}')
    assert ordinary > 0
    assert helios.metric('flare_requests_total{outcome="error"}') == 0


def policy(helios):
    response = httpx.get(f"{helios.base}/api/policy")
    return response.json(), response.headers["etag"]


def test_a_coefficient_changed_over_http_is_in_the_next_plans(helios):
    before, etag = policy(helios)
    first = chat(helios)
    finished(helios, first)
    changed = httpx.put(
        f"{helios.base}/api/policy",
        headers={"If-Match": etag},
        json={
            "coefficients": {"token_fairness": before["coefficients"]["token_fairness"] * 64},
            "actor": "e2e",
            "note": "test",
        },
    )
    assert changed.status_code == 200, changed.text
    version = changed.json()["version"]
    assert version == before["version"] + 1
    second = chat(helios)
    finished(helios, second)
    old, new = plans_of(helios, first), plans_of(helios, second)
    assert {p["policy_version"] for p in old} == {before["version"]}
    assert {p["policy_version"] for p in new} == {version}
    assert max(p["token_price"] for p in new) > max(p["token_price"] for p in old)
    assert helios.metric("flare_scheduler_policy_version") == version
    stale = httpx.put(
        f"{helios.base}/api/policy", headers={"If-Match": etag}, json={"coefficients": {"token_fairness": 1}}
    )
    assert stale.status_code == 409
    applications = in_sql(helios, "SELECT * FROM policy_applications WHERE version = :v", v=version)
    assert applications[0]["fence"] < new[0]["fence"]


@pytest.mark.browser
def test_a_coefficient_changed_in_a_browser_is_in_the_next_plans(helios, page):
    before, _ = policy(helios)
    wanted = before["coefficients"]["token_fairness"] + 1234
    first = chat(helios)
    finished(helios, first)
    page.goto(f"{helios.base}/dashboard/policy")
    expect(page.locator("#policy-diff")).to_contain_text("No difference")
    page.locator(".coefficient", has_text="token_fairness").get_by_role("textbox").fill(str(wanted))
    page.get_by_label("Who").fill("e2e")
    page.get_by_label("Note").fill("changed in a browser")
    expect(page.locator("#policy-apply")).to_be_enabled()
    page.locator("#policy-apply").click()
    wait_until(lambda: policy(helios)[0]["version"] > before["version"], "the new version")
    after, _ = policy(helios)
    assert after["version"] == before["version"] + 1
    assert after["coefficients"] == before["coefficients"] | {"token_fairness": wanted}
    second = chat(helios)
    finished(helios, second)
    old, new = plans_of(helios, first), plans_of(helios, second)
    assert {p["policy_version"] for p in old} == {before["version"]}
    assert {p["policy_version"] for p in new} == {after["version"]}
    assert max(p["token_price"] for p in new) > max(p["token_price"] for p in old)
    row = helios.rows("SELECT * FROM policy_versions WHERE version = :v", v=after["version"])[0]
    assert (row["state"], row["token_fairness"], row["parent_version"]) == ("applied", wanted, before["version"])


def test_bad_requests_get_a_clear_answer_and_the_engine_lives(helios):
    url = f"{helios.base}/v1/chat/completions"
    good = {"model": "smollm2-135m-instruct", "messages": QUESTION, "max_tokens": 2}
    bad = [
        {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 1.5}, {"max_tokens": True}, {"max_tokens": 2**63},
        {"messages": []}, {"messages": "hi"}, {"temperature": "hot"}, {"no_such_field": 1}, {"model": "gpt-9"},
        {"messages": [{"role": "user", "content": "word " * 5000}]},
        {"messages": [{"role": "user", "content": "\ud800"}]},
    ]  # fmt: skip
    for change in bad:
        body = json.dumps(good | change)
        answer = httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=30)
        assert 400 <= answer.status_code < 500, (change, answer.text)
        error = answer.json()["error"]
        assert error["message"]
        assert "Traceback" not in answer.text
    for body in (b"{", b"[]", b"\xff", b"", b"null"):
        answer = httpx.post(url, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, (body, answer.text)
    assert httpx.post(url, json=good, timeout=60).status_code == 200
    assert helios.metric("flare_engine_up") == 1
