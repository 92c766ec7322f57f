"""What clients get wrong: each is answered with OpenAI's error object, and the engine never sees it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest
from fake_engine import CONTEXT, MODEL, Api, ids, raw_request, serving

from service.store.database import open_database

USER = {"role": "user", "content": "Hi"}
BIG = 2**63


def refused(answer, status: int, param: str | None = None, code: str | None = None) -> str:
    """Checks the error object and returns its message."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert param is None or error["param"] == param, error
    assert code is None or error["code"] == code, error
    assert isinstance(error["code"], str)
    assert len(error["message"]) < 700
    assert "Traceback" not in answer.text
    return error["message"]


@pytest.fixture
def reaches_engine() -> None:
    """Marks the tests whose requests are good."""


@pytest.fixture(scope="module")
def small_api(_sqlite_template, tmp_path_factory) -> Iterator[Api]:
    """A server that takes 100 answers at once."""
    folder = tmp_path_factory.mktemp("small")
    shutil.copy(_sqlite_template, folder / "helios.db")
    store = open_database(f"sqlite:///{folder / 'helios.db'}")
    with serving(store, folder, queue_limit=92, request_slots=8) as made:
        yield made
    store.dispose()


@pytest.fixture(autouse=True)
def the_engine_sees_none_of_it(request, api: Api):
    yield
    assert "reaches_engine" in request.fixturenames or api.engine.submits == []
    assert api.http.get("/health/ready").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"{'model': 'tiny'}",
        b'{"model": "tiny", "prompt": "\xff"}',
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b'{"model": "tiny", "prompt": "Hi", "temperature": NaN}',
        b'{"model": "tiny", "prompt": "Hi", "temperature": Infinity}',
        b'{"model": "tiny", "prompt": "Hi", "temperature": 1e999}',
        b'{"model": "tiny", "prompt": ' + b"[" * 100_000,
        b'{"model": "tiny", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "tiny", "prompt": "Hi"} trailing',
        "{}".encode("utf-16"),
    ],
    ids=range(15),
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/tokenize"])
def test_a_body_that_is_no_json_object_is_400(api, path, body):
    refused(api.http.post(path, content=body, headers={"content-type": "application/json"}), 400)


@pytest.mark.parametrize("value", [0, -1, 1.5, 1.0, True, False, "5", BIG, -BIG, 10**400, [], {}, 2**31])
@pytest.mark.parametrize("stream", [True, False])
def test_max_tokens_must_be_a_positive_integer(api, value, stream):
    message = refused(api.complete(max_tokens=value, stream=stream), 400, "max_tokens")
    assert "integer from 1" in message
    refused(api.chat(max_tokens=value, stream=stream), 400, "max_tokens")
    refused(api.chat(max_completion_tokens=value, stream=stream), 400, "max_completion_tokens")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, 2.1, "1", True, [], 10**400]),
        ("top_p", [0, -1, 1.1, "1", False]),
        ("seed", [1.5, "1", BIG, -BIG - 1, True]),
        ("top_k", [-2, 1.5, "1", True, 2**31]),
        ("min_p", [-0.1, 1.1, "1", True]),
        ("repetition_penalty", [0, -1, 0.001, 101, "1", True]),
        ("presence_penalty", [-2.1, 2.1, "1", True]),
        ("frequency_penalty", [-2.1, 2.1, "1", True]),
        ("logit_bias", [1, [], "x", {"5": "1"}, {"5": True}, {"5": None}, {"5": 100.5}, {"5": -101}]),
        ("logit_bias", [{"257": 1}, {"-1": 1}, {"05": 1}, {"x": 1}, {"": 1}, {"٥": 1}, {"1" * 40: 1}]),
        ("logit_bias", [{str(i): 0 for i in range(1025)}]),
        ("n", [0, -1, 129, 1.5, "1", True]),
        ("stop", [1, "", ["a", ""], ["a", 1], ["a"] * 17, {}, "x" * 513]),
        ("stop_token_ids", [1, "x", {}, [-1], [257], [1.5], [True], ["1"], [BIG], [1] * 65]),
        ("prompt_logprobs", [-1, 21, 1.5, "1", True]),
        ("stream", [1, "true", [], 0]),
        ("stream_options", [1, [], "x"]),
        ("ignore_eos", [1, 0, "true", [], {}]),
        ("user", [1, [], "x" * 5000]),
        ("metadata", [1, "x", []]),
        ("model", [None, "", 1, [], "x" * 600]),
    ],
)
def test_wrongly_typed_or_ranged_fields_are_named(api, field, values):
    for value in values:
        refused(api.chat(**{field: value}), 400, field)
        refused(api.complete(**{field: value}), 400, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("store", True),
        ("modalities", ["audio"]),
        ("audio", {"voice": "a"}),
        ("reasoning_effort", "high"),
        ("function_call", {"name": "f"}),
    ],
)
def test_fields_that_are_not_supported_say_so(api, field, value):
    message = refused(api.chat(**{field: value}), 400, field, "unsupported_parameter")
    assert "not supported yet" in message


@pytest.mark.parametrize(
    ("field", "value"), [("best_of", 3), ("best_of", True), ("suffix", "x"), ("service_tier", "priority")]
)
def test_completion_fields_that_are_not_supported_say_so(api, field, value):
    refused(api.complete(**{field: value}), 400, field, "unsupported_parameter")


@pytest.mark.usefixtures("reaches_engine")
def test_neutral_values_of_unsupported_fields_are_accepted(api):
    neutral = {
        "n": 1,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "logprobs": False,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "store": False,
        "parallel_tool_calls": True,
    }
    assert api.chat(**neutral).status_code == 200
    assert (
        api.chat(**dict.fromkeys([*neutral, "stop", "seed", "user", "max_tokens", "stream_options"])).status_code == 200
    )
    assert api.complete(n=1, echo=False, best_of=1, logprobs=None, suffix=None).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 5}, "top_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"n": 128}, "n"),
        ({"echo": True}, "echo"),
    ],
)
def test_wrong_combinations_in_chats_are_named(small_api, fields, param):
    refused(small_api.chat(**fields), 400, param)
    assert small_api.engine.submits == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"echo": 1}, "echo"),
        ({"echo": True, "max_tokens": -1}, "max_tokens"),
        ({"echo": True, "max_tokens": True}, "max_tokens"),
        ({"echo": False, "max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"min_tokens": 1}, "min_tokens"),
    ],
)
def test_wrong_combinations_in_completions_are_named(api, fields, param):
    refused(api.complete(**fields), 400, param)


@pytest.mark.parametrize("kind", ["image_url", "input_image", "image", "input_audio", "file"])
def test_parts_that_are_no_text_are_refused_by_their_type(api, kind):
    part = {"type": kind, kind: {"url": "data:image/png;base64,AAAA"}}
    message = refused(
        api.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "See"}, part]}]),
        400,
        "messages[0].content[1].type",
    )
    assert "text only" in message


@pytest.mark.parametrize("field", ["prompt", "max_token", "messages2", "x" * 10_000, "\u0000"])
def test_unknown_fields_are_named(api, field):
    message = refused(api.chat(**{field: 1}), 400)
    assert message.startswith("Unknown field")


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        "",
        [],
        [""],
        [[]],
        5,
        True,
        {},
        ["a", "b"],
        [[1], [2]],
        ["a", 1],
        [1.5],
        [True],
        [-1],
        [257],
        [BIG],
        [None],
    ],
)
def test_prompts_that_are_none_or_several_are_refused(api, prompt):
    refused(api.complete(prompt=prompt), 400, "prompt")
    assert api.http.post("/v1/tokenize", json={"prompt": prompt}).status_code == 400


@pytest.mark.usefixtures("reaches_engine")
@pytest.mark.parametrize("prompt", [" ", "\x00", "\ufffd", "\U0010ffff"])
def test_odd_but_real_prompts_are_served(api, prompt):
    assert api.complete(prompt=prompt).status_code == 200
    assert api.engine.submits[0].prompt_token_ids == ids(prompt)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("Hi", "messages"),
        ([1], "messages[0]"),
        ([{}], "messages[0].role"),
        ([USER, {"role": "robot", "content": "x"}], "messages[1].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x", "tool_call_id": "1"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x", "extra": 1}], "messages[0].extra"),
        ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "refuse"}], "messages"),
    ],
)
def test_messages_that_are_wrong_are_named(api, messages, param):
    refused(api.chat(messages=messages), 400, param)


def test_a_prompt_as_long_as_the_context_is_refused(api):
    message = refused(api.complete(prompt="x" * CONTEXT), 400, "prompt", "context_length_exceeded")
    assert f"{CONTEXT - 1:,}" in message
    long = [{"role": "user", "content": "x" * 100_000}]
    refused(api.chat(messages=long), 400, "messages", "context_length_exceeded")
    refused(api.chat(messages=long, stream=True), 400, "messages", "context_length_exceeded")


def test_more_tokens_than_are_left_are_refused_with_the_number_that_fits(api):
    message = refused(
        api.complete(prompt="x" * (CONTEXT - 10), max_tokens=11), 400, "max_tokens", "context_length_exceeded"
    )
    assert "to 10 or" in message


@pytest.mark.usefixtures("reaches_engine")
def test_the_longest_request_that_fits_is_served(api):
    assert api.complete(prompt="x" * (CONTEXT - 10), max_tokens=10).status_code == 200
    assert api.complete(prompt="x" * (CONTEXT - 1)).status_code == 200
    assert [submit.max_output_tokens for submit in api.engine.submits] == [10, 1]


def test_both_names_of_max_tokens_at_once_are_refused(api):
    refused(api.chat(max_tokens=1, max_completion_tokens=1), 400, "max_tokens")


def test_stream_options_without_stream_are_refused(api):
    refused(api.chat(stream_options={"include_usage": True}), 400, "stream_options")
    refused(api.chat(stream=True, stream_options={"usage": True}), 400, "stream_options.usage")
    for flag in ("include_usage", "continuous_usage_stats"):
        refused(api.chat(stream=True, stream_options={flag: 1}), 400, f"stream_options.{flag}")


def test_a_large_body_is_413_by_its_announced_and_by_its_real_length(api):
    body = json.dumps({"model": MODEL, "prompt": "x" * (4 << 20)}).encode()
    refused(api.http.post("/v1/completions", content=body), 413, code="body_too_large")
    refused(api.http.post("/v1/completions", content=iter([body])), 413, code="body_too_large")


def test_unknown_paths_and_methods_under_v1_have_openais_form(api):
    refused(api.http.get("/v1/nothing"), 404, code="not_found")
    refused(api.http.get("/v1/chat/completions"), 405, code="method_not_allowed")
    refused(api.http.post("/v1/models"), 405, code="method_not_allowed")


def test_elsewhere_errors_are_problem_details(api):
    answer = api.http.get("/nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"].split(";")[0] == "application/problem+json"
    assert set(answer.json()) >= {"type", "title", "status", "detail"}


@pytest.mark.parametrize(
    "head",
    [
        "GARBAGE\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\nConnection: close\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\nConnection: close\r\n\r\n",
    ],
)
def test_broken_http_is_400_and_the_server_lives(api, head):
    assert b" 400 " in raw_request(api.url, head).split(b"\r\n")[0]


@pytest.mark.usefixtures("reaches_engine")
def test_no_server_header_and_no_traceback_in_an_unforeseen_error(api):
    api.engine.script = lambda _: 1 / 0
    answer = api.complete()
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "ZeroDivision" not in answer.text
    assert "server" not in answer.headers
