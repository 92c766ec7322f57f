"""The official client against the real server and a scripted engine."""

from __future__ import annotations

import httpx
import openai
import pytest
from fake_engine import CONTEXT, HOLD, MODEL, Api, ids

from service.ipc.errors import EngineLost

HI = [{"role": "user", "content": "Hi"}]


def chat(api: Api, **fields):
    return api.openai.chat.completions.create(model=MODEL, messages=fields.pop("messages", HI), **fields)


def test_a_chat_is_answered(api):
    answer = chat(api)
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    prompt = len("[user]Hi[assistant]")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 7)
    assert answer.usage.total_tokens == prompt + 7
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"


def test_a_streamed_chat_joins_to_the_same_text(api):
    chunks = list(chat(api, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello!"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_completion_is_answered_streamed_and_not(api):
    whole = api.openai.completions.create(model=MODEL, prompt="Hi")
    parts = list(api.openai.completions.create(model=MODEL, prompt="Hi", stream=True))
    assert whole.choices[0].text == "".join(part.choices[0].text for part in parts) == "Hello!"
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"


def test_ids_are_new_each_time_and_cannot_be_guessed(api):
    made = {chat(api).id for _ in range(5)}
    assert len(made) == 5
    assert all(len(one) == len("chatcmpl-") + 32 for one in made)
    assert {submit.request_id for submit in api.engine.submits} == made


def test_what_was_asked_reaches_the_engine(api):
    chat(api, max_completion_tokens=5, temperature=0, top_p=0.5, seed=-3, stop=["x"], user="u", metadata={"a": "b"})
    submit = api.engine.submits[0]
    assert submit.max_output_tokens == 5
    assert (submit.sampling.temperature, submit.sampling.top_p, submit.sampling.seed) == (0.0, 0.5, -3)
    assert submit.host_stop
    assert submit.prompt_token_ids == ids("[user]Hi[assistant]")


def test_defaults_are_the_rest_of_the_context_for_chat_and_sixteen_for_completions(api):
    chat(api)
    api.openai.completions.create(model=MODEL, prompt="Hi")
    assert [submit.max_output_tokens for submit in api.engine.submits] == [CONTEXT - len("[user]Hi[assistant]"), 16]
    assert not api.engine.submits[0].host_stop


@pytest.mark.parametrize("prompt", ["Hi", ["Hi"], ids("Hi"), [ids("Hi")]])
def test_every_form_of_one_prompt_means_the_same(api, prompt):
    api.openai.completions.create(model=MODEL, prompt=prompt)
    assert api.engine.submits[0].prompt_token_ids == ids("Hi")


def test_text_parts_are_joined_and_developer_means_system(api):
    chat(
        api,
        messages=[
            {"role": "developer", "content": "S"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
    )
    assert api.engine.submits[0].prompt_token_ids == ids("[system]S[user]ab[assistant]")


def test_an_answer_can_be_sent_back_as_the_client_models_it(api):
    message = chat(api).choices[0].message
    chat(api, messages=[*HI, message, *HI])
    assert api.engine.submits[1].prompt_token_ids == ids("[user]Hi[assistant]Hello![user]Hi[assistant]")


def test_length_is_the_reason_when_the_limit_was_reached(api):
    api.engine.script = lambda _: [ids("abc"), ("length", None)]
    assert chat(api).choices[0].finish_reason == "length"
    assert chat(api).usage.completion_tokens == 3


def test_a_character_split_over_messages_arrives_whole(api):
    first, second = ids("é".encode())
    api.engine.script = lambda _: [[first], [second], ids("x"), [first], ("length", None)]
    deltas = [chunk.choices[0].delta.content for chunk in chat(api, stream=True)]
    assert [delta for delta in deltas if delta] == ["é", "x", "\ufffd"]
    assert chat(api).choices[0].message.content == "éx\ufffd"


def test_models_are_listed_and_found(api):
    assert [model.id for model in api.openai.models.list()] == [MODEL]
    assert api.openai.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        api.openai.models.retrieve("other/model")
    assert caught.value.code == "model_not_found"


def test_an_unknown_model_is_404_with_the_model_to_use(api):
    with pytest.raises(openai.NotFoundError, match="use 'tiny'") as caught:
        api.openai.chat.completions.create(model="gpt-9", messages=HI)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_refused_request_is_the_clients_exception(api):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(api, max_tokens=0)
    assert caught.value.param == "max_tokens"
    assert caught.value.type == "invalid_request_error"


def test_a_lost_engine_is_an_exception_in_the_middle_of_a_stream(api):
    api.engine.script = lambda _: [ids("a"), EngineLost("the engine went away")]
    stream = chat(api, stream=True)
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "a"]
    with pytest.raises(openai.APIError, match="went away"):
        next(stream)


def test_closing_a_stream_cancels_the_request(api):
    api.engine.script = lambda _: [ids("a"), ids("b"), HOLD]
    stream = chat(api, stream=True)
    assert [next(stream).choices[0].delta.content for _ in range(3)] == ["", "a", "b"]
    assert api.engine.holding.wait(10)
    stream.close()
    assert api.engine.left.wait(10)
    assert api.engine.cancels == [(api.engine.submits[0].request_id, "abort")]


def test_a_client_that_leaves_a_plain_request_cancels_it(api):
    api.engine.script = lambda _: [ids("a"), HOLD]
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{api.url}/v1/chat/completions", json={"model": MODEL, "messages": HI}, timeout=httpx.Timeout(5, read=0.3)
        )
    assert api.engine.left.wait(10)
    assert api.engine.cancels == [(api.engine.submits[0].request_id, "abort")]


def test_tokenize_gives_the_ids_that_a_request_would_send(api):
    assert api.http.post("/v1/tokenize", json={"prompt": "Hé"}).json() == {
        "model": MODEL,
        "tokens": ids("Hé"),
        "count": 3,
        "max_model_len": CONTEXT,
    }
    assert api.http.post("/v1/tokenize", json={"messages": HI, "model": MODEL}).json()["tokens"] == ids(
        "[user]Hi[assistant]"
    )
