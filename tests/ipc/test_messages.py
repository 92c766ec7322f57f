"""Messages as bytes: every field comes back, infinities too, and senders without the later fields are understood."""

from __future__ import annotations

import math

import msgspec
import pytest

from service.ipc.messages import Events, Sampling, Submit, Tokens, encode, events_decoder, to_engine_decoder

SAMPLING = Sampling(0.5, 0.25, -7, 40, 0.125, 1.25, -2.0, 1.5, [(5, -100.0), (256, 0.5)])
SUBMIT = Submit("r", "m", [1, 2, 3], 8, SAMPLING, [0], True, 4, 5, None, [2, 3], 0, 20)


def test_a_request_comes_back_with_every_field():
    assert to_engine_decoder.decode(encode(SUBMIT)) == SUBMIT


def test_log_probabilities_come_back_with_their_infinities():
    scores = [(7, -math.inf, [(8, -0.5), (9, -math.inf)]), (1, -1.25, [])]
    sent = Tokens("r", [7, 1], 3, 2, None, None, scores, [(2, math.nan, [])])
    (got,) = events_decoder.decode(encode(Events([sent]))).items
    assert isinstance(got, Tokens)
    assert got.logprobs == scores
    assert got.prompt_logprobs is not None
    assert math.isnan(got.prompt_logprobs[0][1])
    assert msgspec.structs.replace(got, prompt_logprobs=sent.prompt_logprobs) == sent


@pytest.mark.parametrize("later", ["message_boundaries", "logprobs", "prompt_logprobs"])
def test_a_request_without_a_later_field_has_its_default(later):
    fields = msgspec.msgpack.decode(encode(SUBMIT))
    del fields[later]
    assert getattr(to_engine_decoder.decode(encode(fields)), later) in ([], None)


def test_a_request_of_the_first_version_asks_for_nothing_new():
    fields = msgspec.msgpack.decode(encode(SUBMIT))
    fields["sampling"] = {"temperature": 0.5, "top_p": 0.25, "seed": 3}
    for later in ("message_boundaries", "logprobs", "prompt_logprobs"):
        del fields[later]
    got = to_engine_decoder.decode(encode(fields))
    assert got.sampling == Sampling(0.5, 0.25, 3)
    assert (got.message_boundaries, got.logprobs, got.prompt_logprobs) == ([], None, None)


def test_defaults_are_not_shared_between_messages():
    Sampling().logit_bias.append((1, 1.0))
    assert Sampling().logit_bias == []
