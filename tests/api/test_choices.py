"""n above 1: several answers to one prompt, whole and interleaved."""

from __future__ import annotations

import httpx
import openai
import pytest
from fake_engine import HOLD, MODEL, Api, ids

from service.ipc.errors import EngineLost, EngineRefused
from service.ipc.messages import Submit
from tests.waiting import wait_until

HI = [{"role": "user", "content": "Hi"}]
PROMPT = len("[user]Hi[assistant]")


def by_seed(submit: Submit) -> list:
    """Choice i of seed 10 says its own seed and then i more letters."""
    seed = submit.sampling.seed
    return [ids(str(seed)), *([ids("x")] * (seed - 10)), ("length" if seed == 11 else "stop", None)]


def settle(api: Api, cancels: int) -> None:
    """Waits until no answer is open and so many requests were cancelled."""
    wait_until(lambda: not api.app.state.context.open and len(api.engine.cancels) >= cancels, f"{cancels} cancels")


def test_each_choice_is_a_request_of_its_own_with_its_own_seed_and_usage_adds_up(api: Api):
    api.engine.script = by_seed
    answer = api.openai.chat.completions.create(model=MODEL, messages=HI, n=3, seed=10)
    assert [choice.message.content for choice in answer.choices] == ["10", "11x", "12xx"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length", "stop"]
    assert [submit.sampling.seed for submit in api.engine.submits] == [10, 11, 12]
    assert [submit.request_id for submit in api.engine.submits] == [answer.id, f"{answer.id}-1", f"{answer.id}-2"]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT, 3 + 3 + 5)
    assert answer.usage.total_tokens == PROMPT + 11


def test_a_choice_is_the_answer_of_a_single_request_with_its_seed(api: Api):
    api.engine.script = by_seed
    several = api.openai.completions.create(model=MODEL, prompt="Hi", n=3, seed=10, extra_body={"best_of": 3})
    single = [api.openai.completions.create(model=MODEL, prompt="Hi", seed=10 + i) for i in range(3)]
    assert [choice.text for choice in several.choices] == [answer.choices[0].text for answer in single]


def test_streams_of_choices_interleave_by_index_and_join_to_the_whole_answers(api: Api):
    api.engine.script = by_seed
    chunks = list(
        api.openai.chat.completions.create(
            model=MODEL, messages=HI, n=3, seed=10, stream=True, stream_options={"include_usage": True}
        )
    )
    texts, reasons, roles = ["", "", ""], [None] * 3, [0] * 3
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        assert reasons[choice.index] is None, "a choice goes on after its end"
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role == "assistant"
        reasons[choice.index] = choice.finish_reason
    assert texts == ["10", "11x", "12xx"]
    assert reasons == ["stop", "length", "stop"]
    assert roles == [1, 1, 1]
    assert (chunks[-1].choices, chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == ([], PROMPT, 11)
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_choice_that_is_held_up_does_not_hold_up_the_others(api: Api):
    api.engine.script = lambda submit: [ids("a"), HOLD] if submit.sampling.seed == 0 else [ids("b"), ("stop", None)]
    stream = api.openai.completions.create(model=MODEL, prompt="Hi", n=2, seed=0, stream=True)
    seen: list[tuple[int, str, str | None]] = []
    for chunk in stream:
        choice = chunk.choices[0]
        seen.append((choice.index, choice.text, choice.finish_reason))
        if choice.finish_reason is not None and choice.index == 1:
            api.engine.release()
    assert sorted(seen[:3]) == [(0, "a", None), (1, "", "stop"), (1, "b", None)]
    assert seen[3:] == [(0, "", "stop")]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_every_choice(api: Api, stream):
    api.engine.script = lambda _: [ids("a"), HOLD]
    body = {"model": MODEL, "messages": HI, "n": 3, "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{api.url}/v1/chat/completions", json=body, timeout=httpx.Timeout(5, read=0.3))
    settle(api, 3)
    assert sorted(api.engine.cancels) == sorted((submit.request_id, "abort") for submit in api.engine.submits)


@pytest.mark.parametrize(
    ("step", "code"), [(EngineLost("the engine went away"), "engine_lost"), (("error", "broken"), "generation_failed")]
)
def test_a_choice_that_fails_ends_the_answer_and_cancels_the_others(api: Api, step, code):
    api.engine.script = lambda submit: [ids("a"), step if submit.sampling.seed == 1 else HOLD]
    answer = api.chat(n=3, seed=0)
    assert answer.json()["error"]["code"] == code
    assert sorted(reason for _, reason in api.engine.cancels) == ["abort", "abort"]
    with pytest.raises(openai.APIError):
        list(api.openai.chat.completions.create(model=MODEL, messages=HI, n=3, seed=0, stream=True))
    settle(api, 4)
    assert len(api.engine.cancels) == 4


@pytest.mark.parametrize("stream", [True, False])
def test_a_refused_choice_refuses_the_whole_answer(api: Api, stream):
    api.engine.refusal = EngineRefused("queue_full", "the queue is full")
    answer = api.chat(n=4, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
    assert api.app.state.context.open == set()


def test_choices_without_a_seed_leave_it_to_the_engine(api: Api):
    api.chat(n=2)
    assert [submit.sampling.seed for submit in api.engine.submits] == [None, None]


def test_stop_strings_end_each_choice_by_itself(api: Api):
    api.engine.script = lambda submit: [ids("one." if submit.sampling.seed == 0 else "two"), ("length", None)]
    answer = api.chat(n=2, seed=0, stop=".").json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["one", "two"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length"]
