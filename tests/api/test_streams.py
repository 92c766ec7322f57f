"""Server-sent events: order, stop strings, usage, errors and ends."""

from __future__ import annotations

import json
import shutil
import socket
import threading

import httpx
import pytest
from fake_engine import HOLD, Api, ids, serving

from service.ipc.errors import EngineLost, EngineRefused, EngineUnavailable
from service.store.database import open_database
from tests.waiting import wait_until


def events(text: str) -> list[str]:
    """The data of each event; checks the framing."""
    assert text.endswith("\n\n")
    blocks = text.removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


def stream(api: Api, **fields) -> list:
    """The parsed events of a chat; [DONE] as text."""
    answer = api.chat(stream=True, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [data if data == "[DONE]" else json.loads(data, parse_constant=pytest.fail) for data in events(answer.text)]


def text_of(items: list) -> str:
    chunks = [item for item in items if item != "[DONE]" and item.get("choices")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


SPLIT = [ids("a"), ids("<"), ids("st"), ids("op"), ids(">b"), ids("more"), ("length", None)]


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [("<stop>", "a", "stop"), ("<stopx", "a<stop>bmore", "length"), (["zz", ">"], "a<stop", "stop"), ("a", "", "stop")],
)
def test_stop_strings_over_chunk_borders_neither_leak_nor_are_missed(api, stop, text, reason):
    api.engine.script = lambda _: SPLIT
    items = stream(api, stop=stop)
    assert text_of(items) == text
    assert items[-2]["choices"][0]["finish_reason"] == reason
    whole = api.chat(stop=stop).json()["choices"][0]
    assert (whole["message"]["content"], whole["finish_reason"]) == (text, reason)


def test_a_stop_string_ends_the_request_in_the_engine_and_the_usage_counts_to_its_end(api):
    api.engine.script = lambda _: [ids("one.+"), HOLD]
    answer = api.chat(stop=".").json()
    assert answer["choices"][0]["message"]["content"] == "one"
    assert answer["usage"]["completion_tokens"] == 4
    assert [reason for _, reason in api.engine.cancels] == ["stop"]
    assert api.engine.answer_tokens == [3], "what a next turn repeats, neither the stop string nor what is behind it"


def test_text_after_a_stop_in_the_same_message_adds_nothing(api):
    api.engine.script = lambda _: [ids("x.one two three"), ("stop", None)]
    items = stream(api, stop=["."], stream_options={"include_usage": True})
    assert text_of(items) == "x"
    assert items[-2]["usage"]["completion_tokens"] == len("x.")


def test_an_engine_that_dies_after_the_stop_string_changes_nothing(api):
    api.engine.script = lambda _: [ids("x."), EngineLost("gone")]
    items = stream(api, stop=".")
    assert (text_of(items), items[-1]) == ("x", "[DONE]")


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}, "absent"])
def test_a_usage_chunk_comes_only_when_asked_for(api, options):
    items = stream(api) if options == "absent" else stream(api, stream_options=options)
    wanted = isinstance(options, dict) and options.get("include_usage", False)
    assert items[-1] == "[DONE]"
    assert all("choices" in item for item in items[:-1])
    usages = [item for item in items[:-1] if item.get("usage")]
    if not wanted:
        assert usages == []
        assert all("usage" not in item for item in items[:-1])
        return
    assert usages == [items[-2]]
    assert items[-2]["choices"] == []
    assert items[-2]["usage"]["completion_tokens"] == 7
    assert items[-3]["choices"][0]["finish_reason"] == "stop"
    assert all(item["usage"] is None for item in items[:-2])


def counts(items: list) -> list[tuple[int, int] | None]:
    """Prompt and output tokens in each chunk's usage."""
    usages = [item.get("usage") for item in items if item != "[DONE]"]
    return [used and (used["prompt_tokens"], used["completion_tokens"]) for used in usages]


@pytest.mark.parametrize("options", [{}, {"include_usage": True}])
def test_usage_so_far_is_in_every_chunk_when_asked_for_and_the_whole_comes_last(api, options):
    prompt = len("[user]Hi[assistant]")
    items = stream(api, stream_options={"continuous_usage_stats": True, **options})
    assert counts(items) == [(prompt, tokens) for tokens in (0, 3, 5, 6, 7, 7)], (
        "the end token counts, as it always did"
    )
    assert [len(item["choices"]) for item in items[:-1]] == [1, 1, 1, 1, 1, 0]
    assert items[-2]["usage"]["total_tokens"] == prompt + 7


def test_usage_so_far_is_not_sent_to_whoever_declines_usage(api):
    items = stream(api, stream_options={"continuous_usage_stats": True, "include_usage": False})
    assert counts(items) == [None] * 5


def test_usage_so_far_never_counts_what_lies_behind_a_stop_string(api):
    api.engine.script = lambda _: [ids("ab"), ids("cd.efgh"), HOLD]
    items = stream(api, stop=".", stream_options={"continuous_usage_stats": True})
    assert text_of(items) == "abcd"
    assert [tokens for _, tokens in counts(items)] == [0, 2, 5, 5, 5]


def test_usage_so_far_is_that_of_a_chunks_own_choice_and_an_echo_has_none(api):
    api.engine.script = lambda submit: [ids("ab" if submit.sampling.seed == 4 else "c"), ("length", None)]
    options = {"continuous_usage_stats": True}
    answer = api.complete(stream=True, stream_options=options, n=2, seed=4, echo=True, max_tokens=2)
    chunks = [json.loads(data) for data in events(answer.text)[:-1]]
    of_choice = {index: [c for c in chunks[:-1] if c["choices"][0]["index"] == index] for index in (0, 1)}
    assert [c["choices"][0]["text"] for c in of_choice[0]] == ["Hi", "ab", ""]
    assert counts(of_choice[0]) == [(2, 0), (2, 2), (2, 2)]
    assert counts(of_choice[1]) == [(2, 0), (2, 1), (2, 1)]
    assert counts(chunks[-1:]) == [(2, 3)]


def test_completions_send_usage_in_the_same_way(api):
    answer = api.complete(stream=True, stream_options={"include_usage": True})
    last = json.loads(events(answer.text)[-2])
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 2 + 7)


def test_headers_arrive_while_the_prompt_still_runs_even_for_clients_that_take_gzip(api):
    api.engine.script = lambda _: [HOLD]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    headers = {"accept-encoding": "gzip"}
    with api.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        assert "content-encoding" not in answer.headers
        lines = answer.iter_lines()
        assert "role" in next(lines)
        assert api.engine.holding.wait(10)
        assert api.engine.cancels == []
    assert api.engine.left.wait(10)


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (EngineLost("the engine went away"), "engine_lost"),
        (("error", "a graph failed"), "generation_failed"),
        (("abort", "the server is shutting down"), "shutting_down"),
    ],
)
def test_what_breaks_a_stream_is_its_last_event(api, step, code):
    api.engine.script = lambda _: [ids("part"), step]
    items = stream(api)
    assert text_of(items[:-1]) == "part"
    assert list(items[-1]) == ["error"]
    assert items[-1]["error"]["code"] == code
    plain = api.chat()
    assert plain.status_code == (500 if code == "generation_failed" else 503)
    assert plain.json()["error"] == items[-1]["error"]


@pytest.mark.parametrize("state", ["stopping", "down"])
def test_an_answer_that_a_stopping_engine_cut_off_says_so_even_once_its_connection_is_closed(api, state):
    def cut_off(_):
        yield ids("part")
        api.engine.state = state  # the client learns this before the answer's reader gets to the last message
        yield "abort", "the server is shutting down"

    api.engine.script = cut_off
    items = stream(api)
    assert text_of(items[:-1]) == "part"
    assert items[-1]["error"]["code"] == "shutting_down"


def test_an_unforeseen_failure_is_an_error_event_without_details(api):
    api.engine.script = lambda _: iter([ids("a"), 5])
    items = stream(api)
    assert items[-1]["error"]["code"] == "internal_error"


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (EngineRefused("queue_full", "the queue is full"), 429, "queue_full"),
        (EngineRefused("stopping", "the engine stops"), 503, "shutting_down"),
        (EngineRefused("too_long", "65 pages of 64"), 400, "context_length_exceeded"),
        (EngineUnavailable("the engine is down"), 503, "engine_unavailable"),
        (EngineLost("the engine went away"), 503, "engine_lost"),
    ],
)
def test_refusals_have_their_status_streamed_or_not(api, refusal, status, code, streamed):
    api.engine.refusal = refusal
    answer = api.chat(stream=streamed)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert api.app.state.context.open == set()


def test_a_refusal_that_comes_late_is_an_error_event(api):
    api.engine.refusal, api.engine.slow_refusal = EngineRefused("queue_full", "the queue is full"), True
    body = {"model": "tiny", "prompt": "Hi", "stream": True}
    with api.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        api.engine.release()
        items = events(answer.read().decode())
    assert json.loads(items[-1])["error"]["code"] == "queue_full"


@pytest.mark.parametrize(("state", "word"), [("starting", "starting"), ("down", "went away"), ("stopping", "stopping")])
def test_without_an_engine_requests_are_503_with_retry_after(api, state, word):
    api.engine.state, api.engine.ready = state, None
    for answer in (api.chat(), api.chat(stream=True), api.complete()):
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert word in answer.json()["error"]["message"]
    assert api.chat(max_tokens=0).status_code == 400


def test_a_caller_that_vanishes_without_a_word_cancels_the_request(api):
    api.engine.script = lambda _: [HOLD]
    body = json.dumps({"model": "tiny", "prompt": "Hi", "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    host, port = api.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(head.encode() + body)
    assert api.engine.holding.wait(10)
    connection.close()
    assert api.engine.left.wait(10)
    assert [reason for _, reason in api.engine.cancels] == ["abort"]
    assert api.app.state.context.open == set()


def test_a_traceparent_is_passed_on_when_it_is_valid(api):
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    bad = good.replace("b7ad6b7169203331", "0" * 16)
    for header in (good, bad):
        body = {"model": "tiny", "prompt": "Hi"}
        api.http.post("/v1/completions", json=body, headers={"traceparent": header, "tracestate": "k=v"})
    assert [submit.traceparent for submit in api.engine.submits] == [good, None]
    assert [submit.tracestate for submit in api.engine.submits] == ["k=v", None]


def test_arrival_and_tokenizing_are_timed(api):
    api.complete()
    submit = api.engine.submits[0]
    assert submit.arrived_ns > 0
    assert submit.tokenize_ns > 0


@pytest.fixture
def own_api(_sqlite_template, tmp_path):
    shutil.copy(_sqlite_template, tmp_path / "helios.db")
    store = open_database(f"sqlite:///{tmp_path / 'helios.db'}")
    with serving(store, tmp_path, queue_limit=1, request_slots=1) as api:
        yield api
    store.dispose()


def read_in_background(api: Api, count: int) -> tuple[list[threading.Thread], list[str]]:
    texts: list[str] = []
    started = threading.Semaphore(0)

    def read() -> None:
        body = {"model": "tiny", "prompt": "Hi", "stream": True}
        with httpx.stream("POST", f"{api.url}/v1/completions", json=body, timeout=30) as answer:
            lines = answer.iter_lines()
            texts_here = [next(lines)]
            started.release()
            texts_here.extend(lines)
        texts.append("\n".join(texts_here))

    threads = [threading.Thread(target=read, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert started.acquire(timeout=10)
    return threads, texts


def test_a_stopping_server_ends_open_streams_with_an_event(own_api):
    own_api.engine.script = lambda _: [ids("a"), HOLD]
    threads, texts = read_in_background(own_api, 2)
    own_api.stop()
    for thread in threads:
        thread.join(10)
    assert len(texts) == 2
    for text in texts:
        last = json.loads(text.strip().split("data: ")[-1])
        assert last["error"]["code"] == "shutting_down"
    assert sorted(reason for _, reason in own_api.engine.cancels) == ["abort", "abort"]


def test_as_many_open_requests_as_the_server_takes_make_the_next_429(own_api):
    own_api.engine.script = lambda _: [ids("a"), HOLD]
    threads, _ = read_in_background(own_api, 2)
    answer = own_api.complete()
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    own_api.engine.release()
    for thread in threads:
        thread.join(10)
    wait_until(lambda: not own_api.app.state.context.open, "the server to leave answers that were read to their ends")
    own_api.engine.script = lambda _: [("stop", None)]
    assert own_api.complete().status_code == 200
