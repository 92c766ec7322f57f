"""Scored prefill reports each prompt token's log-probability under the model, whatever the chunks."""

import itertools
import math

import numpy as np
import pytest
import torch
from program_host import ProgramHost, prefill_shape, prompt_of

from gpu.device import SamplingParameters
from gpu.model.weights import load_model, open_source
from gpu.programs.interface import ExecutionStyle
from gpu.programs.prompt_scores import PromptScores
from gpu.reference.forward import sequence_logits

PROMPT = prompt_of(150, seed=4)


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return load_model(open_source(tiny_checkpoint), torch.float32, 512)


@pytest.mark.parametrize("cuts", [(), (1,), (64, 65), (10, 80, 149)])
def test_scores_are_those_of_the_reference(cuts, model, tiny_checkpoint):
    host = ProgramHost(model, columns=16)
    host.open(0, PROMPT, SamplingParameters(temperature=0.0, prompt_logprobs=4))
    scores = []
    edges = [0, *cuts, len(PROMPT)]
    for start, end in itertools.pairwise(edges):
        output, _ = host.run(prefill_shape(160, scored=True), host.chunk(0, end - start))
        scores += output.lanes[0].prompt_logprobs
    expected = torch.log_softmax(sequence_logits(open_source(tiny_checkpoint), PROMPT), dim=1)
    assert [entry.token_id for entry in scores] == PROMPT[1:]
    chosen = [float(expected[at, token]) for at, token in enumerate(PROMPT[1:])]
    np.testing.assert_allclose([entry.logprob for entry in scores], chosen, rtol=1e-4, atol=1e-4)
    best = expected.topk(4, dim=1)
    np.testing.assert_allclose([[value for _, value in entry.top] for entry in scores], best.values[:-1], atol=1e-3)
    assert host.outputs[0] == [int(expected[-1].argmax())]


def test_an_unscored_prefill_reports_nothing(model):
    host = ProgramHost(model, columns=16)
    host.open(0, PROMPT, SamplingParameters(temperature=0.0, logprobs=2))
    output, logits = host.run(prefill_shape(160), host.chunk(0))
    assert output.lanes[0].prompt_logprobs == ()
    (entry,) = output.lanes[0].logprobs
    assert entry.token_id == int(logits[0].argmax())
    assert math.isclose(entry.logprob, float(torch.log_softmax(torch.from_numpy(logits[0]), 0).max()), rel_tol=1e-4)


@pytest.mark.parametrize("style", list(ExecutionStyle))
@pytest.mark.parametrize("bad", [70, 1])
def test_a_prompt_whose_inner_logits_are_not_finite_fails_its_lane(style, bad, model, monkeypatch):
    """Only a score shows it: the logits that the first token is drawn from are in order."""
    host = ProgramHost(model, columns=16, style=style)
    host.open(0, PROMPT, SamplingParameters(temperature=0.0, prompt_logprobs=1))
    keep = PromptScores.keep

    def keep_damaged(scores, rows, previous_hidden):
        damaged = previous_hidden.clone()
        damaged[bad] = float("nan")
        keep(scores, rows, damaged)

    monkeypatch.setattr(PromptScores, "keep", keep_damaged)
    output, logits = host.run(prefill_shape(160, scored=True), host.chunk(0))
    assert np.isfinite(logits).all()
    (lane,) = output.lanes
    assert (lane.finite, lane.emitted, lane.prompt_logprobs) == (False, (), ())
    monkeypatch.undo()
    host.open(0, PROMPT, SamplingParameters(temperature=0.0, prompt_logprobs=1))
    output, _ = host.run(prefill_shape(160, scored=True), host.chunk(0))
    assert len(output.lanes[0].prompt_logprobs) == len(PROMPT) - 1
