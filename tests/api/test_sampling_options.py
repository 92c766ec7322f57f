"""Every sampling option as the official client sends it, and what the engine is told."""

from __future__ import annotations

import openai
import pytest
from fake_engine import MODEL, MODEL_TEXT, Api, ids

from service.api.openapi_bodies import SEED_GUARANTEE
from service.api.sampling_options import HIGHEST_SEED, LOWEST_SEED, sampling_of_choice
from service.ipc.messages import Sampling

HI = [{"role": "user", "content": "Hi"}]
END = MODEL_TEXT.stop_token_ids[0]
OPTIONS = {
    "temperature": 0.5,
    "top_p": 0.25,
    "seed": 7,
    "presence_penalty": -2,
    "frequency_penalty": 1.5,
    "logit_bias": {"5": -100, "256": 0.5},
}
EXTENSIONS = {"top_k": 40, "min_p": 0.125, "repetition_penalty": 1.25, "stop_token_ids": [3, END, 4]}
WANTED = Sampling(0.5, 0.25, 7, 40, 0.125, 1.25, -2.0, 1.5, [(5, -100.0), (256, 0.5)])


def test_every_option_of_a_chat_reaches_the_engine(api: Api):
    api.openai.chat.completions.create(model=MODEL, messages=HI, **OPTIONS, extra_body=EXTENSIONS)
    (submit,) = api.engine.submits
    assert submit.sampling == WANTED
    assert submit.stop_token_ids == [END, 3, 4]
    assert (submit.logprobs, submit.prompt_logprobs, submit.message_boundaries) == (None, None, [])


def test_every_option_of_a_completion_reaches_the_engine(api: Api):
    api.openai.completions.create(model=MODEL, prompt="Hi", **OPTIONS, extra_body=EXTENSIONS)
    assert api.engine.submits[0].sampling == WANTED


def test_absent_and_null_options_change_nothing(api: Api):
    api.chat()
    api.chat(**dict.fromkeys([*OPTIONS, *EXTENSIONS, "n", "logprobs", "top_logprobs", "prompt_logprobs"]))
    api.complete(**dict.fromkeys([*OPTIONS, *EXTENSIONS, "n", "logprobs", "echo", "best_of", "prompt_logprobs"]))
    for submit in api.engine.submits:
        assert submit.sampling == Sampling()
        assert submit.stop_token_ids == [END]
        assert (submit.logprobs, submit.prompt_logprobs) == (None, None)


@pytest.mark.parametrize("ignored", [True, False])
def test_end_tokens_that_are_ignored_end_nothing_but_the_callers_own_still_do(api: Api, ignored):
    api.chat(ignore_eos=ignored)
    api.complete(ignore_eos=ignored, stop_token_ids=[3, END], stop="x", max_tokens=5)
    chat, completion = api.engine.submits
    assert chat.stop_token_ids == ([] if ignored else [END])
    assert completion.stop_token_ids == ([3, END] if ignored else [END, 3])
    assert (completion.host_stop, completion.max_output_tokens) == (True, 5)


@pytest.mark.parametrize(("sent", "told"), [(-1, 0), (0, 0), (1, 1), (2**31 - 1, 2**31 - 1)])
def test_top_k_keeps_all_tokens_where_clients_say_so_in_either_way(api: Api, sent, told):
    api.complete(top_k=sent)
    assert api.engine.submits[0].sampling.top_k == told


def test_limits_themselves_are_allowed(api: Api):
    low = {"min_p": 0, "repetition_penalty": 0.01, "presence_penalty": -2, "frequency_penalty": -2, "seed": LOWEST_SEED}
    high = {"min_p": 1, "repetition_penalty": 100, "presence_penalty": 2, "frequency_penalty": 2, "seed": HIGHEST_SEED}
    for options in (low, high, {"stop": ["x"] * 16}, {"stop_token_ids": [0] * 64}, {"logit_bias": {"0": 100}}):
        assert api.complete(**options).status_code == 200


def test_a_wrong_option_is_the_clients_exception_and_named(api: Api):
    with pytest.raises(openai.BadRequestError) as caught:
        api.openai.chat.completions.create(model=MODEL, messages=HI, presence_penalty=3)
    assert (caught.value.param, caught.value.type) == ("presence_penalty", "invalid_request_error")
    assert "from -2 to 2" in caught.value.message
    assert api.engine.submits == []


@pytest.mark.parametrize(
    ("seed", "index", "expected"),
    [
        (5, 0, 5),
        (5, 3, 8),
        (-1, 1, 0),
        (HIGHEST_SEED, 0, HIGHEST_SEED),
        (HIGHEST_SEED, 1, LOWEST_SEED),
        (HIGHEST_SEED, 127, LOWEST_SEED + 126),
        (None, 3, None),
    ],
)
def test_the_seed_of_a_choice_is_the_requests_plus_its_index(seed, index, expected):
    sampling = Sampling(temperature=0.5, seed=seed, top_k=3)
    assert sampling_of_choice(sampling, index) == Sampling(temperature=0.5, seed=expected, top_k=3)


def test_the_ends_of_a_chats_messages_are_told_to_the_engine(api: Api):
    messages = [{"role": "system", "content": "S<end>\n"}, {"role": "user", "content": "Hi<end>"}]
    api.chat(messages=messages)
    first = len(ids("[system]S")) + 2
    whole = len(api.engine.submits[0].prompt_token_ids)
    assert whole > first + len(ids("[user]Hi")) + 1, "the prompt goes on with what begins the answer"
    assert api.engine.submits[0].message_boundaries == [first, whole]
    api.complete(prompt="S<end>\nHi")
    assert api.engine.submits[1].message_boundaries == []


def test_the_schema_states_the_seed_guarantee_and_every_limit(api: Api):
    paths = api.http.get("/schema").json()["paths"]
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert body["seed"]["description"] == SEED_GUARANTEE
        assert (body["n"]["minimum"], body["n"]["maximum"]) == (1, 128)
        assert body["presence_penalty"]["minimum"] == -2
        assert body["prompt_logprobs"]["maximum"] == 20
        assert "stop_token_ids" in body
