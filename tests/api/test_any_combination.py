"""Deltas joined equal the whole answer, whatever is asked and however the engine cuts its tokens into messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_engine import Api, ids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.text import StopMatcher

END = 256
BYTE_OF = {token_id: byte for byte in range(256) for token_id in ids(bytes([byte]))}
BYTES = [*ids("ab<"), *ids("é"), *ids("😀"), END]


def split(items: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({cut % (len(items) + 1) for cut in cuts})
    return [items[a:b] for a, b in zip([0, *places], [*places, len(items)], strict=True)]


def cut_answer(api: Api, pieces: list[list[int]], body: dict[str, Any], path: str) -> tuple[list[dict], dict]:
    """The choices of the whole answer and its usage."""
    api.engine.script = lambda _: [*pieces, ("length", None)]
    answer = api.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    parsed = json.loads(answer.text, parse_constant=pytest.fail)
    return parsed["choices"], parsed["usage"]


def streamed_answer(api: Api, pieces: list[list[int]], body: dict[str, Any], path: str) -> tuple[list[dict], dict]:
    """The same, put together from the chunks of a stream."""
    api.engine.script = lambda _: [*pieces, ("length", None)]
    answer = api.http.post(path, json={**body, "stream": True, "stream_options": {"include_usage": True}})
    blocks = answer.text.removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    choices: dict[int, dict] = {}
    usage: dict = {}
    for block in blocks:
        chunk = json.loads(block.removeprefix("data: "), parse_constant=pytest.fail)
        usage = chunk["usage"] or usage
        for choice in chunk["choices"]:
            add_chunk(choices.setdefault(choice["index"], {}), choice)
    return [choices[index] for index in sorted(choices)], usage


def add_chunk(made: dict, choice: dict) -> None:
    text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
    made["text"] = made.get("text", "") + text
    made["finish_reason"] = choice["finish_reason"]
    for name, values in (choice["logprobs"] or {}).items():
        if values is not None:
            made.setdefault("logprobs", {}).setdefault(name, []).extend(values)


def plain(choice: dict) -> dict:
    """A whole choice in the form of add_chunk()."""
    logprobs = {name: values for name, values in (choice["logprobs"] or {}).items() if values}
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    made = {"text": text, "finish_reason": choice["finish_reason"]}
    return {**made, "logprobs": logprobs} if logprobs else made


answers = st.lists(st.sampled_from(BYTES), max_size=10)
cuts = st.lists(st.integers(0, 20), max_size=5)
stops = st.lists(st.text(alphabet="ab<é\ufffd", min_size=1, max_size=3), max_size=3)


@given(
    token_ids=answers,
    cut=cuts,
    other_cut=cuts,
    stop=stops,
    n=st.integers(1, 2),
    logprobs=st.none() | st.integers(0, 2),
    echo=st.booleans(),
    chat=st.booleans(),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stream_joins_to_the_whole_answer(api: Api, token_ids, cut, other_cut, stop, n, logprobs, echo, chat):
    shared = {"model": "tiny", "stop": stop, "n": n, "max_tokens": 50}
    if chat:
        path, body = "/v1/chat/completions", {**shared, "messages": [{"role": "user", "content": "é<"}]}
        body |= {} if logprobs is None else {"logprobs": True, "top_logprobs": logprobs}
    else:
        path, body = "/v1/completions", {**shared, "prompt": "é<", "echo": echo, "logprobs": logprobs}
    whole, usage = cut_answer(api, split(token_ids, cut), body, path)
    joined, joined_usage = streamed_answer(api, split(token_ids, other_cut), body, path)
    assert joined == [plain(choice) for choice in whole]
    assert len(joined) == n
    assert joined_usage["prompt_tokens"] == usage["prompt_tokens"]

    data = bytes(BYTE_OF[i] for i in token_ids if i != END)
    matcher = StopMatcher(stop)
    text = data.decode("utf-8", errors="replace")
    expected = matcher.feed(text) + matcher.finish()
    for choice in joined:
        assert choice["text"] == ("é<" if echo and not chat else "") + expected
        assert choice["finish_reason"] == ("stop" if matcher.stopped else "length")
