"""Log-probabilities of answers and prompts in OpenAI's forms, as strict JSON, streamed and not."""

from __future__ import annotations

import json
import math

import pytest
from fake_engine import MODEL, Api, PromptScores, ids, score

from service.api.logprob_objects import LOWEST_LOGPROB, finite

HI = [{"role": "user", "content": "Hi"}]
PROMPT = ids("[user]Hi[assistant]")
END = 256


def logprob(character: str) -> float:
    return score(ids(character)[0], 0)[1]


def strict(text: str) -> dict:
    """JSON without NaN or Infinity."""
    return json.loads(text, parse_constant=pytest.fail)


def streamed(answer) -> list[dict]:
    assert answer.status_code == 200, answer.text
    blocks = answer.text.removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    return [strict(block.removeprefix("data: ")) for block in blocks]


def test_a_chat_lists_each_token_with_its_bytes_and_likeliest_tokens(api: Api):
    answer = api.openai.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert "".join(token.token for token in content) == answer.choices[0].message.content == "Hello!"
    assert [token.bytes for token in content] == [[byte] for byte in b"Hello!"]
    assert [token.logprob for token in content] == [logprob(character) for character in "Hello!"]
    assert [len(token.top_logprobs) for token in content] == [2] * 6
    assert content[0].top_logprobs[0].token == "H"
    assert content[0].top_logprobs[1].logprob == logprob("H") - 1
    assert (api.engine.submits[0].logprobs, api.engine.submits[0].prompt_logprobs) == (2, None)


def test_logprobs_alone_list_no_other_tokens_and_without_them_there_are_none(api: Api):
    assert api.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert api.engine.submits[0].logprobs == 0
    assert api.chat(logprobs=False, top_logprobs=0).json()["choices"][0]["logprobs"] is None
    assert api.engine.submits[1].logprobs is None


def test_a_completion_has_four_lists(api: Api):
    answer = api.openai.completions.create(model=MODEL, prompt="Hi", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == list("Hello!")
    assert logprobs.token_logprobs == [logprob(character) for character in "Hello!"]
    assert logprobs.text_offset == [0, 1, 2, 3, 4, 5]
    assert logprobs.top_logprobs == [{character: logprob(character)} for character in "Hello!"]


def test_the_token_that_was_taken_is_listed_beside_the_likeliest(api: Api):
    a, b = ids("ab")
    api.engine.script = lambda _: [[a], ("length", None)]
    api.engine.score = lambda token, count: (token, -3.0, [(b, -0.5), (END, -1.0)][:count])
    for count, listed in ((0, {"a": -3.0}), (1, {"b": -0.5, "a": -3.0}), (2, {"b": -0.5, "<end>": -1.0, "a": -3.0})):
        assert api.complete(logprobs=count).json()["choices"][0]["logprobs"]["top_logprobs"] == [listed]


def test_pieces_of_a_character_have_their_bytes_and_special_tokens_none(api: Api):
    first, second = ids("é")
    api.engine.script = lambda _: [[first], [END], [second], ("length", None)]
    api.engine.score = lambda token, count: (token, -1.0, [(END, -0.5), (300, -0.75)][:count])
    choice = api.chat(logprobs=True, top_logprobs=2).json()["choices"][0]
    assert choice["message"]["content"] == "é"
    content = choice["logprobs"]["content"]
    assert [(token["token"], token["bytes"]) for token in content] == [
        ("\\xc3", [0xC3]),
        ("<end>", None),
        ("\\xa9", [0xA9]),
    ]
    tops = [(token["token"], token["bytes"]) for token in content[0]["top_logprobs"]]
    assert tops == [("<end>", None), ("token_id:300", None)]
    logprobs = api.complete(logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xc3", "<end>", "bytes:\\xa9"]
    assert logprobs["text_offset"] == [0, 0, 0]


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf, -1e30])
def test_a_masked_vocabulary_gives_valid_json_streamed_and_not(api: Api, value):
    api.engine.score = lambda token, count: (token, value, [(place, value) for place in range(count)])
    content = strict(api.chat(logprobs=True, top_logprobs=20).text)["choices"][0]["logprobs"]["content"]
    assert [token["logprob"] for token in content] == [-9999.0] * 6
    assert {top["logprob"] for token in content for top in token["top_logprobs"]} == {-9999.0}
    chunks = streamed(api.chat(logprobs=True, top_logprobs=20, stream=True))
    told = [t for chunk in chunks for t in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert told == content
    whole = strict(api.complete(logprobs=20, echo=True, prompt_logprobs=20).text)["choices"][0]
    assert whole["logprobs"]["token_logprobs"] == [None, *[-9999.0] * 7]
    assert {entry["logprob"] for entry in whole["prompt_logprobs"][1].values()} == {-9999.0}
    for chunk in streamed(api.complete(logprobs=20, echo=True, stream=True)):
        assert all(
            value in (None, -9999.0) for value in (chunk["choices"][0]["logprobs"] or {}).get("token_logprobs", [])
        )


@pytest.mark.parametrize(("value", "given"), [(0.0, 0.0), (-9998.5, -9998.5), (-9999.5, LOWEST_LOGPROB)])
def test_numbers_above_the_lowest_are_given_as_they_are(value, given):
    assert finite(value) == given


def test_tokens_that_may_begin_a_stop_string_are_told_when_it_does_not_come(api: Api):
    api.engine.script = lambda _: [ids("a"), ids("<"), ids("st"), ids("x"), ("length", None)]
    chunks = streamed(api.chat(logprobs=True, stop="<stop>", stream=True))[1:-1]
    pieces = [
        (chunk["choices"][0]["delta"]["content"], [t["token"] for t in chunk["choices"][0]["logprobs"]["content"]])
        for chunk in chunks
    ]
    assert pieces == [("a", ["a"]), ("<stx", ["<", "s", "t", "x"])]


def test_tokens_of_a_stop_string_are_not_told(api: Api):
    api.engine.script = lambda _: [ids("a<st"), ids("op>b"), ids("more"), ("length", None)]
    for fields in ({"stop": "<stop>"}, {"stop": ["zz", "<"]}):
        choice = api.chat(logprobs=True, **fields).json()["choices"][0]
        assert choice["message"]["content"] == "a"
        assert [token["token"] for token in choice["logprobs"]["content"]] == ["a"]
    chunks = streamed(api.chat(logprobs=True, stop="<stop>", stream=True))
    told = [t["token"] for c in chunks for t in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert told == ["a"]


def test_prompt_scores_have_null_for_the_first_token_and_the_prompts_own_token_first(api: Api):
    api.engine.score = lambda token, count: (token, -3.0, [(END, -0.5), (token, -3.0)][:count])
    answer = api.chat(prompt_logprobs=1, n=2).json()
    scores = answer["prompt_logprobs"]
    assert len(scores) == len(PROMPT) == answer["usage"]["prompt_tokens"]
    assert scores[0] is None
    for token_id, entry in zip(PROMPT[1:], scores[1:], strict=True):
        assert list(entry) == [str(token_id), "256"]
        assert entry[str(token_id)]["rank"] is None
        assert entry["256"] == {"logprob": -0.5, "rank": 1, "decoded_token": "<end>"}
    assert "prompt_logprobs" not in answer["choices"][0]
    assert "prompt_logprobs" not in api.chat().json()
    two = api.complete(prompt="Hi", prompt_logprobs=2).json()["choices"][0]["prompt_logprobs"]
    (token_id,) = ids("i")
    assert two == [None, {str(token_id): {"logprob": -3.0, "rank": 2, "decoded_token": "i"}, "256": two[1]["256"]}]
    none = api.complete(prompt="Hi", prompt_logprobs=0).json()["choices"][0]["prompt_logprobs"]
    assert none[1][str(token_id)] == {"logprob": -3.0, "rank": None, "decoded_token": "i"}


def test_prompt_scores_of_one_token_are_one_null(api: Api):
    assert api.complete(prompt="H", prompt_logprobs=1).json()["choices"][0]["prompt_logprobs"] == [None]


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 1}, {"echo": True, "logprobs": 0}, {"logprobs": 1}])
def test_an_engine_that_leaves_scores_out_is_an_error_and_not_a_shorter_list(api: Api, fields):
    api.engine.script = lambda _: [PromptScores(1), ids("a"), ("stop", None)]
    api.engine.score = lambda _, count: score(0, count)
    if "prompt_logprobs" in fields or "echo" in fields:
        api.engine.lost_prompt_scores = 1
    answer = api.complete(prompt="Hello", **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "generation_failed")
    assert "log-probabilities" in answer.text or "score" in answer.text
