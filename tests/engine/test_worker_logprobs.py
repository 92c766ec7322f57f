"""Log-probabilities on their way to the client: one per visible token, prompts scored once."""

from __future__ import annotations

import math

import pytest

from gpu.device import PagesExhausted
from service.ipc.messages import Events, Sampling, encode, events_decoder


def told(rig, request_id: str) -> list:
    return [score for message in rig.tokens(request_id) for score in message.logprobs or []]


def prompt_told(rig, request_id: str) -> list:
    return [score for message in rig.tokens(request_id) for score in message.prompt_logprobs or []]


def test_each_visible_token_has_its_log_probability(rig):
    rig.device.scripts[10] = [50, 60, 70, 1]
    rig.submit("a", output=20, logprobs=2)
    rig.settle()
    assert rig.text("a") == [50, 60, 70]
    assert [(token, value) for token, value, _ in told(rig, "a")] == [(50, -0.5), (60, -0.6), (70, -0.7)]
    assert told(rig, "a")[0][2] == [(50, -0.5), (2, -math.inf)]
    assert all(len(message.token_ids) == len(message.logprobs or []) for message in rig.tokens("a"))


def test_infinite_values_reach_the_service(rig):
    rig.submit("a", output=2, logprobs=1)
    rig.settle()
    sent = events_decoder.decode(encode(Events(rig.tokens("a"))))
    assert sent.items[0].logprobs[0][2][1] == (2, -math.inf)


def test_nothing_is_told_unasked(rig):
    rig.submit("a", output=4)
    rig.settle()
    assert all(message.logprobs is None and message.prompt_logprobs is None for message in rig.tokens("a"))


@pytest.mark.parametrize("prompt", [1, 2, 64, 65, 150])
def test_a_scored_prompt_is_told_whole_and_once(make_rig, prompt):
    rig = make_rig(scored=True, states=True)
    for name, tokens in (("a", prompt), ("b", prompt + 5)):
        rig.submit(name, prompt=tokens, output=3, prompt_logprobs=0)
        rig.settle()
        assert [token for token, *_ in prompt_told(rig, name)] == [11] * (tokens - 1)
    assert {plan.shape.kind for plan in rig.plans()} >= {"scored_prefill"}
    assert rig.metric("flare_prefix_cache_tokens_total", result="hit") == 0, "what is cached cannot be scored"


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_a_scored_prompt_that_starts_anew_halfway_is_told_once(make_rig, chunks):
    rig = make_rig(scored=True, states=True)
    prompt = list(range(2, 92)) * 2
    rig.submit("a", token_ids=prompt, output=5, prompt_logprobs=0)
    while sum(plan.shape.kind == "scored_prefill" for plan in rig.plans()) < chunks + 1:
        rig.device.refusals.clear()
        rig.step()
        rig.device.refuse("none left", PagesExhausted)
    rig.step()
    rig.device.refusals.clear()
    rig.settle()
    assert rig.ending("a").preemptions == 1
    assert [token for token, *_ in prompt_told(rig, "a")] == prompt[1:]
    assert rig.ending("a").output_tokens == 5


def test_a_prompt_cannot_be_scored_without_a_program_for_it(rig):
    rig.submit("a", prompt_logprobs=1)
    rig.submit("b")
    rig.settle()
    assert rig.refusal("a").code == "invalid"
    assert rig.ending("b").finish_reason == "length"


@pytest.mark.parametrize(
    "change",
    [
        {"sampling": Sampling(1.0, top_k=-1)},
        {"sampling": Sampling(1.0, min_p=1.5)},
        {"sampling": Sampling(1.0, min_p=float("nan"))},
        {"sampling": Sampling(1.0, repetition_penalty=0.0)},
        {"sampling": Sampling(1.0, repetition_penalty=float("inf"))},
        {"sampling": Sampling(1.0, presence_penalty=float("nan"))},
        {"sampling": Sampling(1.0, frequency_penalty=float("inf"))},
        {"sampling": Sampling(1.0, logit_bias=[(100, 1.0)])},
        {"sampling": Sampling(1.0, logit_bias=[(-1, 1.0)])},
        {"sampling": Sampling(1.0, logit_bias=[(5, float("nan"))])},
        {"logprobs": -1},
        {"logprobs": 101},
    ],
)
def test_options_that_no_device_can_take_are_refused(rig, change):
    rig.submit("bad", **change)
    rig.submit("good")
    rig.settle()
    assert rig.refusal("bad").code == "invalid"
    assert rig.ending("good").finish_reason == "length"


def test_every_option_reaches_the_device(rig):
    seen = []
    opened = rig.device.open_request
    rig.device.open_request = lambda slot, prompt, most, sampling, **more: (
        seen.append(sampling),
        opened(slot, prompt, most, sampling, **more),
    )
    sampling = Sampling(0.5, 0.9, 3, 7, 0.1, 1.1, 0.2, 0.3, [(4, -1.0)])
    rig.submit("a", sampling=sampling, logprobs=2)
    rig.settle()
    (got,) = seen
    assert (got.temperature, got.top_p, got.seed, got.top_k, got.min_p) == (0.5, 0.9, 3, 7, 0.1)
    assert (got.repetition_penalty, got.presence_penalty, got.frequency_penalty) == (1.1, 0.2, 0.3)
    assert (got.logit_bias, got.reproducible, got.logprobs) == (((4, -1.0),), True, 2)
