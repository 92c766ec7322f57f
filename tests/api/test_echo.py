"""The prompt in front of the answer, with and without log-probabilities, and prompts that are only scored."""

from __future__ import annotations

import json

import pytest
from fake_engine import CONTEXT, HOLD, MODEL, Api, PromptScores, ids, score

from tests.waiting import wait_until

END = 256


def logprob(character: str) -> float:
    return score(ids(character)[0], 0)[1]


def chunks_of(answer) -> list[dict]:
    assert answer.status_code == 200, answer.text
    return [json.loads(block.removeprefix("data: ")) for block in answer.text.split("\n\n")[:-2]]


def joined(answer) -> tuple[str, dict[str, list]]:
    """The text of a stream and its four lists, one after another."""
    return joined_chunks(chunks_of(answer))


def joined_chunks(chunks: list[dict]) -> tuple[str, dict[str, list]]:
    """The same of one choice's chunks."""
    text, lists = "", {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in chunks:
        choice = chunk["choices"][0]
        text += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            lists[name] += values
    return text, lists


@pytest.mark.parametrize("prompt", ["Say é ", ids("Say é "), "a<end>b"])
def test_an_answer_begins_with_the_prompt(api: Api, prompt):
    text = prompt if isinstance(prompt, str) else "Say é "
    whole = api.openai.completions.create(model=MODEL, prompt=prompt, echo=True)
    assert whole.choices[0].text == text + "Hello!"
    assert whole.choices[0].logprobs is None
    assert whole.usage.completion_tokens == 7
    assert joined(api.complete(prompt=prompt, echo=True, stream=True))[0] == text + "Hello!"
    assert api.engine.submits[0].prompt_logprobs is None


def test_an_echo_with_logprobs_lists_the_prompts_tokens_too_and_offsets_go_on(api: Api):
    answer = api.openai.completions.create(model=MODEL, prompt="Hé", echo=True, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "HéHello!"
    assert logprobs.tokens == ["H", "bytes:\\xc3", "bytes:\\xa9", *"Hello!"]
    assert logprobs.text_offset == [0, 1, 1, 2, 3, 4, 5, 6, 7]
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert logprobs.token_logprobs[3:] == [logprob(character) for character in "Hello!"]
    assert len(logprobs.top_logprobs) == 9
    assert (api.engine.submits[0].logprobs, api.engine.submits[0].prompt_logprobs) == (1, 1)


def test_max_tokens_0_answers_with_the_scored_prompt_alone(api: Api):
    api.engine.script = lambda _: [PromptScores(2), ids("x"), ("length", None)]
    answer = api.openai.completions.create(model=MODEL, prompt="Hello", echo=True, logprobs=1, max_tokens=0)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == ("Hello", "length")
    assert choice.logprobs.tokens == list("Hello")
    assert choice.logprobs.token_logprobs == [None, *(logprob(character) for character in "ello")]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 0)
    (submit,) = api.engine.submits
    assert (submit.max_output_tokens, submit.logprobs, submit.prompt_logprobs, submit.host_stop) == (1, None, 1, False)


@pytest.mark.parametrize("last", ["stop", "length"])
def test_max_tokens_0_without_logprobs_gives_the_prompt_back(api: Api, last):
    api.engine.script = lambda _: [ids("x"), (last, None)]
    for fields in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
        answer = api.complete(prompt="Hi", echo=True, max_tokens=0, stop="H", n=2, **fields)
        parts = chunks_of(answer) if fields else [answer.json()]
        choices = [choice for part in parts for choice in part["choices"]]
        for index in (0, 1):
            assert "".join(choice["text"] for choice in choices if choice["index"] == index) == "Hi"
            assert [c["finish_reason"] for c in choices if c["index"] == index and c["finish_reason"]] == ["length"]
        assert parts[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}


def test_the_longest_prompt_that_can_be_scored_leaves_room_for_the_token_that_is_not_published(api: Api):
    fields = {"echo": True, "max_tokens": 0, "logprobs": 0}
    assert api.complete(prompt="x" * (CONTEXT - 1), **fields).status_code == 200
    assert api.complete(prompt="x" * CONTEXT, **fields).json()["error"]["code"] == "context_length_exceeded"


def test_stop_strings_are_not_looked_for_in_the_prompt(api: Api):
    answer = api.complete(prompt="He", echo=True, stop="l", logprobs=0).json()["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == ("HeHe", "stop")
    assert answer["logprobs"]["tokens"] == list("HeHe")


def test_a_prompt_is_told_as_far_as_it_is_scored(api: Api):
    api.engine.script = lambda _: [PromptScores(2), HOLD, ("stop", None)]
    body = {"model": MODEL, "prompt": "Hello", "echo": True, "logprobs": 0, "stream": True}
    with api.http.stream("POST", "/v1/completions", json=body) as answer:
        first = json.loads(next(answer.iter_lines()).removeprefix("data: "))["choices"][0]
        assert (first["text"], first["logprobs"]["tokens"]) == ("Hel", list("Hel"))
        api.engine.release()


@pytest.mark.parametrize("prompt", ["H", "Hé!", [END, *ids("é")], [*ids("a"), *ids("é")[:1]], [END]])
@pytest.mark.parametrize("steps", [[1, 1], [2, 0, 1], [0], [9]])
def test_echoes_streamed_in_any_cut_equal_the_whole_answer(api: Api, prompt, steps):
    api.engine.script = lambda _: [*map(PromptScores, steps), ids("xy"), ids("é")[:1], ("length", None)]
    whole = api.complete(prompt=prompt, echo=True, logprobs=3, n=1).json()["choices"][0]
    text, lists = joined(api.complete(prompt=prompt, echo=True, logprobs=3, stream=True))
    assert (text, lists) == (whole["text"], whole["logprobs"])
    assert text == api.complete(prompt=prompt, echo=True).json()["choices"][0]["text"]
    count = len(api.engine.submits[0].prompt_token_ids)
    assert [len(values) for values in lists.values()] == [count + 3] * 4


def test_more_likeliest_tokens_of_the_prompt_than_of_the_answer_can_be_asked(api: Api):
    choice = api.complete(prompt="Hi", echo=True, logprobs=1, prompt_logprobs=3).json()["choices"][0]
    assert api.engine.submits[0].prompt_logprobs == 3
    assert len(choice["prompt_logprobs"][1]) == 3
    assert len(choice["logprobs"]["top_logprobs"][1]) == 1


def test_a_prompt_that_the_engine_cannot_score_whole_is_an_error(api: Api):
    api.engine.lost_prompt_scores = 1
    answer = api.complete(prompt="Hello", echo=True, logprobs=0)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "generation_failed")


@pytest.mark.parametrize("fields", [{"logprobs": 1}, {"logprobs": 1, "max_tokens": 0}, {"prompt_logprobs": 1}])
def test_a_prompt_is_scored_once_for_all_choices(api: Api, fields):
    single = api.complete(prompt="Hé", echo=True, **fields).json()["choices"][0]
    answer = api.complete(prompt="Hé", echo=True, n=3, **fields).json()
    assert [choice | {"index": 0} for choice in answer["choices"]] == [single] * 3
    assert [submit.prompt_logprobs for submit in api.engine.submits[1:]] == [1, None, None]
    if "logprobs" in fields:
        joins = joined(api.complete(prompt="Hé", echo=True, stream=True, **fields))
        chunks = chunks_of(api.complete(prompt="Hé", echo=True, stream=True, n=3, **fields))
        for index in range(3):
            assert joined_chunks([c for c in chunks if c["choices"][0]["index"] == index]) == joins


def test_the_other_choices_wait_for_the_scores_and_fail_with_them(api: Api):
    first = [PromptScores(2), PromptScores(1), ids("a"), ("stop", None)]
    api.engine.script = lambda submit: [ids("b"), ("stop", None)] if submit.prompt_logprobs is None else first
    answer = api.complete(prompt="Hello", echo=True, logprobs=0, n=2).json()
    assert [choice["text"] for choice in answer["choices"]] == ["Helloa", "Hellob"]
    assert [choice["logprobs"]["tokens"] for choice in answer["choices"]] == [list("Helloa"), list("Hellob")]
    first[:] = [PromptScores(2), ("error", "logits are not finite")]
    answer = api.complete(prompt="Hello", echo=True, logprobs=0, n=2)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "generation_failed")
    assert "logits are not finite" in answer.text


def test_a_choice_that_waits_for_the_scores_still_ends_at_its_stop_string(api: Api):
    first = [HOLD, PromptScores(4), ids("a"), ("stop", None)]
    api.engine.script = lambda submit: [ids("bX"), HOLD, ("length", None)] if submit.prompt_logprobs is None else first
    body = {"model": MODEL, "prompt": "Hello", "echo": True, "logprobs": 0, "n": 2, "stop": "X", "stream": True}
    with api.http.stream("POST", "/v1/completions", json=body) as answer:
        wait_until(lambda: [reason for _, reason in api.engine.cancels] == ["stop"], "the second choice's end")
        api.engine.release()
        blocks = "".join(answer.iter_text()).split("\n\n")[:-2]
    told = [json.loads(block.removeprefix("data: "))["choices"][0] for block in blocks]
    assert ["".join(c["text"] for c in told if c["index"] == index) for index in (0, 1)] == ["Helloa", "Hellob"]
