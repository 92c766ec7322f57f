"""The running service with four request slots, in every way of execution: whole and equal answers, counts that agree.

Answers are greedy, so each must be what transformers says for its prompt alone, whatever else the server does: batches,
cached prefixes, drafts, mixed graphs or preemption. No timing is asserted; gaps are printed.
"""

from __future__ import annotations

import itertools
import json

import pytest
from waiting import wait_until

from tests.e2e.byte_server import (
    CONTEXT_TOKENS,
    FIXED_WIDTH,
    MODEL,
    MODES,
    REQUEST_SLOTS,
    Fleet,
    Mode,
    OpenStream,
    answer,
    answers,
    chat_answer,
    chat_prompt,
    in_background,
    long_prompt,
    short_prompt,
)
from tests.e2e.endless_model import quiet
from tests.e2e.observation import observed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LONG_TOKENS = 24
SHORT_TOKENS = 32
ENDLESS_TOKENS = CONTEXT_TOKENS - 100
"""Of a stream that a test leaves before its end."""
MOST_TRIES = 5
TIGHT_TOKENS = 250
TIGHT = Mode("tight", "device", mixed=True, kv_pages=33)
"""Pages of 16 tokens: a prompt of about 100 bytes and its answer take 22."""
MOST_PREEMPTIONS = 2
CAPTURING = Mode("capturing", "device", captures=True)
SHARED_PLANS = """
SELECT fence FROM plans JOIN plan_lanes USING (run_id, fence) WHERE kind = 'mixed'
GROUP BY run_id, fence HAVING COUNT(DISTINCT role) = 2
"""


@pytest.fixture(scope="module")
def fleet(request, tmp_path_factory):
    """Servers of the modes that the selected tests need."""
    chosen = [item.callspec.params["mode"] for item in request.session.items if item.path == request.path]
    servers = Fleet(tmp_path_factory.mktemp("fleet"), dict.fromkeys(chosen))
    yield servers
    servers.end()


@pytest.fixture(scope="module")
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def helios(mode, fleet):
    with fleet.serving(mode) as server:
        yield server


every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name, indirect=True, scope="module")


@pytest.fixture
def watched(helios, mode, report, request):
    """Observes a test's serving; what the mode may run is checked, too."""
    title = f"{request.node.name}"
    with observed(helios, title, report) as seen:
        yield seen
    check_kinds(mode, seen)


def check_kinds(mode: Mode, seen):
    """Only programs of the mode ran; rounds of a fixed width have that width."""
    kinds = {plan["kind"] for plan in seen.plans}
    generating = [plan for plan in seen.plans if plan["kind"] in ("decode", "speculative", "mixed")]
    assert ("mixed" in kinds) <= mode.mixed
    assert "decode" not in kinds if mode.allocation else "speculative" not in kinds
    if mode.fixed:
        assert {plan["target_width"] for plan in generating} == {FIXED_WIDTH}
    if mode.allocation is None:
        assert not any(plan["draft_tokens"] or plan["accepted_tokens"] for plan in seen.plans)
    drafting = {plan["allocation"] for plan in generating if plan["kind"] == "speculative" and plan["draft_depth"]}
    assert drafting <= {mode.allocation}
    assert all(plan["active_rows"] <= REQUEST_SLOTS for plan in seen.plans)


def expect(expected_answer, given, prompts, tokens):
    assert [a.text for a in given] == [expected_answer(p, n) for p, n in zip(prompts, tokens, strict=True)]


@every_mode
def test_concurrent_long_prompts_get_complete_answers(helios, watched, expected_answer):
    prompts, tokens = [long_prompt(n) for n in range(REQUEST_SLOTS)], [LONG_TOKENS] * REQUEST_SLOTS
    given = answers(helios, prompts, tokens)
    watched.note(*given)
    expect(expected_answer, given, prompts, tokens)


@every_mode
@pytest.mark.parametrize("count", [2, 4])
def test_streams_side_by_side_are_what_each_is_alone(helios, mode, watched, expected_answer, count):
    prompts, tokens = [short_prompt(n) for n in range(count)], [SHORT_TOKENS] * count
    given = answers(helios, prompts, tokens)
    watched.note(*given)
    expect(expected_answer, given, prompts, tokens)
    for a in given:  # a chunk can hold several tokens only where drafts are accepted, or the reader lags
        assert 1 <= len(a.arrivals_s) <= SHORT_TOKENS


@every_mode
def test_a_long_prompt_during_decode_keeps_both_answers(helios, mode, watched, expected_answer):
    running = OpenStream(helios, short_prompt(5), ENDLESS_TOKENS)
    running.take(4)
    given = answer(helios, long_prompt(4), LONG_TOKENS)
    running.take(SHORT_TOKENS)
    left = running.leave()
    watched.note(given, left)
    assert given.text == expected_answer(long_prompt(4), LONG_TOKENS)
    assert left.text[:SHORT_TOKENS] == expected_answer(short_prompt(5), SHORT_TOKENS)


@every_mode
def test_a_short_request_beside_a_long_one(helios, watched, expected_answer):
    prompts, tokens = [long_prompt(5, 700), short_prompt(6)], [SHORT_TOKENS, 8]
    given = answers(helios, prompts, tokens)
    watched.note(*given)
    expect(expected_answer, given, prompts, tokens)


@every_mode
def test_a_cancelled_stream_gives_its_slot_to_the_request_that_waits(helios, watched, expected_answer):
    streams = [OpenStream(helios, short_prompt(n), ENDLESS_TOKENS) for n in range(REQUEST_SLOTS)]
    for stream in streams:
        stream.take(1)
    with in_background(lambda: answer(helios, short_prompt(7), SHORT_TOKENS)) as fifth:
        wait_until(lambda: helios.metric("flare_requests_waiting") == 1, "the fifth request to wait")
        watched.note(streams[1].leave())
        given = fifth.result()
    rest = [streams[n] for n in (0, 2, 3)]
    for stream in rest:
        stream.take(SHORT_TOKENS)
    left = [stream.leave() for stream in rest]
    watched.note(given, *left)
    expect(expected_answer, [given], [short_prompt(7)], [SHORT_TOKENS])
    for number, stream in zip((0, 2, 3), left, strict=True):
        assert stream.text[:SHORT_TOKENS] == expected_answer(short_prompt(number), SHORT_TOKENS)


@every_mode
def test_the_second_turn_of_a_conversation_finds_the_first_in_the_cache(helios, mode, report, expected_answer):
    messages = [{"role": "user", "content": short_prompt(8)}]
    with observed(helios, f"first turn[{mode.name}]", report) as first:
        said = chat_answer(helios, messages, LONG_TOKENS)
        first.note(said)
    assert said.text == expected_answer(chat_prompt(messages), LONG_TOKENS)
    wait_until(lambda: quiet(helios), "the first turn's state to be kept and its request to be gone")
    messages += [{"role": "assistant", "content": said.text}, {"role": "user", "content": short_prompt(9)}]
    with observed(helios, f"second turn[{mode.name}]", report) as second:
        replied = chat_answer(helios, messages, LONG_TOKENS)
        second.note(replied)
    assert replied.text == expected_answer(chat_prompt(messages), LONG_TOKENS)
    cached = second.requests[replied.request_id]["cached_tokens"]
    assert said.prompt_tokens <= cached < said.prompt_tokens + LONG_TOKENS
    assert second.counters.total("flare_prefix_cache_tokens_total", 'result="hit"') == cached
    assert second.lanes_of(replied)[0]["role"] == "restore"


@every_mode
def test_the_mode_runs_what_it_is_for(helios, mode, report):
    """Repeated, because which graph is worth its time is the scheduler's to say, from durations that it measures."""
    for number in range(MOST_TRIES):
        with observed(helios, f"try {number}[{mode.name}]", report) as seen:
            running = OpenStream(helios, short_prompt(number), ENDLESS_TOKENS)
            running.take(1)
            seen.note(answer(helios, long_prompt(number), LONG_TOKENS))
            seen.note(running.leave())
        plans = helios.rows("SELECT * FROM plans")
        drafted = [plan for plan in plans if plan["draft_depth"] and plan["accepted_tokens"]]
        shared = helios.rows(SHARED_PLANS)
        if bool(drafted) == (mode.allocation is not None) and bool(shared) == mode.mixed:
            return
    pytest.fail(f"{len(plans)} plans, {len(drafted)} with accepted drafts, {len(shared)} of a prompt beside decoding")


@pytest.mark.parametrize("mode", [TIGHT], ids=lambda mode: mode.name, indirect=True, scope="module")
def test_requests_that_need_more_pages_than_there_are_are_preempted_and_end(helios, report, expected_answer):
    prompts = [long_prompt(n, 80) for n in (0, 7)]
    with observed(helios, "one and a half requests' pages", report) as seen:
        with in_background(lambda: answers(helios, prompts, [TIGHT_TOKENS] * 2)) as both:
            shorts = [answer(helios, short_prompt(3), 8) for _ in range(3)]
            given = both.result()
        seen.note(*given, *shorts)
    expect(expected_answer, given, prompts, [TIGHT_TOKENS] * 2)
    expect(expected_answer, shorts, [short_prompt(3)] * 3, [8] * 3)
    preemptions = [row["preemptions"] for row in seen.requests.values()]
    assert sum(preemptions) >= 1
    assert max(preemptions) <= MOST_PREEMPTIONS
    wait_until(lambda: quiet(helios), "every page to be free")


@pytest.mark.parametrize("mode", [CAPTURING], ids=lambda mode: mode.name, indirect=True, scope="module")
@pytest.mark.parametrize("length", [9, 17])
def test_the_turn_behind_a_stop_string_finds_all_of_the_answer_in_the_cache(helios, expected_answer, length):
    """However far the engine has gone on meanwhile."""
    messages = [{"role": "user", "content": long_prompt(length, 80)}]
    text = expected_answer(chat_prompt(messages), 400)
    stop = text[length : length + 12]
    assert text.find(stop) == length
    said = chat_answer(helios, messages, 400, [stop])
    assert (said.text, said.finish_reason) == (text[:length], "stop")
    wait_until(lambda: quiet(helios), "the first turn's state to be kept and its request to be gone")
    messages += [{"role": "assistant", "content": said.text}, {"role": "user", "content": short_prompt(9)}]
    replied = chat_answer(helios, messages, LONG_TOKENS)
    assert replied.text == expected_answer(chat_prompt(messages), LONG_TOKENS)
    query = "SELECT * FROM requests WHERE request_id = :id AND finished_at IS NOT NULL"
    (row,) = wait_until(lambda: helios.rows(query, id=replied.request_id), "the second turn's end in SQL")
    assert row["cached_tokens"] == said.prompt_tokens + length


@pytest.mark.parametrize("mode", [MODES[0], MODES[8]], ids=lambda mode: mode.name, indirect=True, scope="module")
def test_a_load_generator_gets_all_its_tokens_from_a_model_that_would_end_and_reads_their_number_as_they_come(helios):
    assert helios.http.get("/health").status_code == 200
    (end,) = helios.http.post("/v1/tokenize", json={"prompt": "<|end|>"}).json()["tokens"]
    asked = {"prompt": short_prompt(2), "max_tokens": 12, "temperature": 0}
    ended = raw_completion(helios, **asked, logit_bias={str(end): 100})
    assert ended[-1]["usage"]["completion_tokens"] == 1
    assert ended[-2]["choices"][0]["finish_reason"] == "stop"
    went_on = raw_completion(helios, **asked, logit_bias={str(end): 100}, ignore_eos=True)
    assert went_on[-1]["usage"]["completion_tokens"] == 12
    assert went_on[-2]["choices"][0]["finish_reason"] == "length"
    own = raw_completion(helios, **asked, logit_bias={str(end): 100}, ignore_eos=True, stop_token_ids=[end])
    assert own[-1]["usage"]["completion_tokens"] == 1
    text = raw_completion(helios, **asked, ignore_eos=True)
    told = [chunk["usage"]["completion_tokens"] for chunk in text]
    assert told == sorted(told)
    assert (told[0] >= 1, told[-1]) == (True, 12)
    written = itertools.accumulate(len(chunk["choices"][0]["text"]) for chunk in text[:-1])
    assert all(characters <= tokens for characters, tokens in zip(written, told, strict=False)), "a byte is a token"


def raw_completion(helios, **fields):
    """The chunks of a streamed completion, as they are."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": MODEL, "stream": True, "stream_options": options, **fields}
    answered = helios.http.post("/v1/completions", json=body, timeout=60)
    assert answered.status_code == 200, answered.text
    lines = [line.removeprefix("data: ") for line in answered.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]
