"""`helios serve --device simulated`: the whole product, but for the arithmetic."""

from __future__ import annotations

import concurrent.futures

import pytest
from waiting import wait_until

from tests.e2e.helios_server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CATALOG = """kind,B,D,W,P,prefill_capacity,duration_ms
prefill,1,0,0,64,64,30
prefill,1,0,0,512,512,90
decode,1,0,1,1,0,50
decode,8,0,1,8,0,60
speculative,1,2,3,3,0,60
speculative,8,2,3,24,0,80
"""
ACCEPTANCE = "target,pos1,pos2\nany,0.8,0.6\n"
MEASURED_MS = {
    "ordinary": {"prefill": (3, 9), "decode": (5, 6)},
    "drafts": {"prefill": (3, 9), "speculative": (5, 6, 8)},
}


@pytest.fixture(scope="module", params=["ordinary", "drafts"])
def helios(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "catalog.csv").write_text(CATALOG)
    (folder / "acceptance.csv").write_text(ACCEPTANCE)
    options = ["--device", "simulated", "--catalog", str(folder / "catalog.csv"), "--time-scale", "0.1"]
    if request.param == "drafts":
        options += ["--draft-tokens", "2", "--acceptance", str(folder / "acceptance.csv")]
    with serving(folder / "data", *options) as server:
        server.mode = request.param
        yield server


def stream(helios, word, tokens, seed):
    """A streamed chat read to its end: its id, text, reason for the end and usage."""
    chunks = list(
        helios.client().chat.completions.create(
            model="smollm2-135m-instruct",
            messages=[{"role": "user", "content": f"Say {word}."}],
            stream=True,
            max_tokens=tokens,
            seed=seed,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    return chunks[0].id, text, reasons, chunks[-1].usage


def plans(helios, request_id):
    """The request's plans once all of them are complete."""
    return wait_until(
        lambda: helios.rows(
            "SELECT p.*, l.committed_tokens FROM plans p JOIN plan_lanes l USING (run_id, fence) WHERE l.request_id = "
            ":id AND EXISTS (SELECT 1 FROM requests WHERE request_id = :id AND finished_at IS NOT NULL) AND NOT EXISTS "
            "(SELECT 1 FROM plans q JOIN plan_lanes m USING (run_id, fence) WHERE m.request_id = :id AND q.outcome = "
            "'in_flight') ORDER BY fence",
            id=request_id,
        ),
        f"the plans of {request_id}",
    )


def test_concurrent_streams_have_their_tokens_and_their_plans_take_the_measured_times(helios):
    lengths = {"this": 40, "that": 25}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        running = [pool.submit(stream, helios, word, count, 7) for word, count in lengths.items()]
        answers = [answer.result() for answer in running]
    for (request_id, text, reasons, usage), count in zip(answers, lengths.values(), strict=True):
        assert (usage.completion_tokens, reasons) == (count, ["length"])
        assert len(text) >= count
        assert text.isprintable()
        served = plans(helios, request_id)
        assert sum(plan["committed_tokens"] for plan in served) == count
        measured = MEASURED_MS[helios.mode]
        assert {plan["kind"] for plan in served} == set(measured)
        assert all(any(plan["device_ms"] == pytest.approx(ms) for ms in measured[plan["kind"]]) for plan in served)
    assert answers[0][1].startswith(answers[1][1])  # the same seed, whatever was asked
    assert {row["device"] for row in helios.rows("SELECT device FROM engine_runs")} == {"simulated"}


def test_an_answer_depends_on_its_seed_alone(helios):
    texts = [stream(helios, word, 20, seed)[1] for word, seed in (("one", 3), ("two", 3), ("two", 4))]
    assert texts[0] == texts[1] != texts[2]


def test_no_weights_are_loaded(helios):
    assert "a simulated device loads no weights" in helios.log()
    assert "loading smollm2" not in helios.log()
