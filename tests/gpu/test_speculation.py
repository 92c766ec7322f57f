"""Greedy speculation gives plain greedy decoding's tokens, for every source, width, allocation and mixed cohort."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from program_host import ProgramHost, decode_shape, mixed_shape, prompt_of, round_shape
from tiny_checkpoint import write_tiny_checkpoint
from tiny_draft_head import write_tiny_draft_head

from gpu.device import SamplingParameters
from gpu.model.draft_head import load_draft_head
from gpu.model.weights import load_model, open_source
from gpu.programs.interface import LaneInput
from scheduler.shapes import Allocation

VOCABULARY = 6  # so small that a random draft is right one time in six
TOKENS = 24


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A target of six tokens and a random draft head for it."""

    model: object
    head: object

    def host(self, head=True, parameters=None, lengths=(5, 17, 33, 16)) -> ProgramHost:
        """Slots with prompts that are consumed, one output token pending each."""
        host = ProgramHost(self.model, self.head if head else None)
        for slot, length in enumerate(lengths):
            prompt = [token % VOCABULARY for token in prompt_of(length, seed=slot)]
            if parameters is None:
                host.open(slot, prompt)
            else:
                host.open(slot, prompt, parameters[slot])
            host.prefill(slot)
        return host


@pytest.fixture(scope="module", params=[None, (0, 1, 3, 4, 5)], ids=["whole vocabulary", "drafts a part of it"])
def tiny(request, tmp_path_factory) -> Tiny:
    directory = tmp_path_factory.mktemp("six")
    write_tiny_checkpoint(directory, seed=11, vocab_size=VOCABULARY, eos_token_id=None)
    source = open_source(directory)
    model = load_model(source, torch.float32, 512)
    write_tiny_draft_head(directory / "head.safetensors", source.config, draft_token_ids=request.param)
    return Tiny(model, load_draft_head(directory / "head.safetensors", model))


@pytest.fixture(scope="module")
def plain(tiny) -> dict[int, list[int]]:
    """What one-token steps emit."""
    host = tiny.host(head=False)
    for _ in range(TOKENS + 8):
        host.run(decode_shape(4), *(LaneInput(slot) for slot in range(4)))
    return host.outputs


def assert_plain(host, plain) -> None:
    for slot, tokens in host.outputs.items():
        assert tokens == plain[slot][: len(tokens)]
        assert int(host.state.emitted[slot]) == len(tokens)
        assert int(host.state.cursor[slot]) == len(host.prompts[slot]) + len(tokens) - 1


def lane_of(host, slot, rows, source, plain, generator) -> LaneInput:
    """A decoding lane whose copies are right as far as chance has it."""
    if source == "learned":
        return LaneInput(slot, rows=rows)
    done = len(host.outputs[slot])
    copies = np.array(plain[slot][done : done + rows - 1], dtype=np.int64)
    wrong = generator.random(len(copies)) < 0.3
    copies[wrong] = (copies[wrong] + 1) % VOCABULARY
    return LaneInput(slot, rows=rows, copies=copies)


SHAPES = {
    "rectangular": [round_shape(4, depth) for depth in (0, 1, 3, 5)],
    "narrower than deep": [round_shape(4, 5, width=3), round_shape(4, 3, width=2)],
    "ragged": [round_shape(4, 3, rows=9), round_shape(4, 5, rows=7)],
    "device": [
        round_shape(4, 3, rows=9, allocation=Allocation.DEVICE),
        round_shape(4, 5, rows=6, allocation=Allocation.DEVICE),
    ],
    "mixed": [mixed_shape(4, 3, 64), mixed_shape(4, 0, 64)],
}
SHAPES["any"] = [shape for family in SHAPES.values() for shape in family]


@pytest.mark.parametrize("source", ["learned", "copies", "both"])
@pytest.mark.parametrize("family", SHAPES)
def test_speculation_emits_what_plain_decoding_emits(family, source, tiny, plain):
    generator = np.random.default_rng(3)
    host = tiny.host()
    accepted = offered = 0
    while max(map(len, host.outputs.values())) < TOKENS:
        shape = SHAPES[family][int(generator.integers(len(SHAPES[family])))]
        lanes, left = [], shape.target_rows
        for slot in generator.permutation(4)[: int(generator.integers(1, 5))].tolist():
            rows = int(generator.integers(1, shape.lane_width + 1))
            if shape.allocation is Allocation.NONE:
                rows = max(1, min(rows, left - 3 + len(lanes)))
                left -= rows
            chosen = source if source != "both" else ("learned", "copies")[int(generator.integers(2))]
            lanes.append(lane_of(host, slot, rows, chosen, plain, generator))
        output, _ = host.run(shape, *lanes)
        accepted += sum(lane.accepted for lane in output.lanes)
        offered += sum(lane.offered for lane in output.lanes)
    assert_plain(host, plain)
    assert offered > accepted > 0


@pytest.mark.parametrize("with_head", [True, False], ids=["draft head", "no draft head"])
def test_copies_are_what_is_verified(with_head, tiny, plain):
    """Right copies are all accepted, beside learned lanes or without any; wrong ones up to the first wrong one."""
    host = tiny.host(head=with_head)
    for number in range(6):
        next_tokens = [np.array(plain[slot][len(host.outputs[slot]) :][:3]) for slot in range(4)]
        wrong = np.array([next_tokens[1][0], (next_tokens[1][1] + 1) % VOCABULARY, next_tokens[1][2]])
        rows = 4 if with_head and number % 2 else 1
        lanes = [LaneInput(slot, rows=4, copies=copies) for slot, copies in enumerate((next_tokens[0], wrong))]
        output, _ = host.run(round_shape(4, 3), *lanes, LaneInput(2, rows=rows))
        assert [lane.accepted for lane in output.lanes[:2]] == [3, 1]
    assert_plain(host, plain)


def test_a_prompt_joins_speculative_rows_without_changing_either(tiny, plain):
    host, alone = tiny.host(), tiny.host()
    shape = mixed_shape(4, 3, 64)
    for round_number in range(10):
        prompt = [token % VOCABULARY for token in prompt_of(20 + round_number, seed=99)]
        for each in (host, alone):
            each.open(5, prompt)
        lanes = [LaneInput(slot, rows=4) for slot in range(3)]
        lanes.insert(round_number % 4, host.chunk(5, 12))
        host.run(shape, *lanes)
        host.run(shape, host.chunk(5), LaneInput(3, rows=4))
        alone.prefill(5)
        assert host.outputs[5] == alone.outputs[5]
    del host.outputs[5]
    assert_plain(host, plain)


def test_device_allocation_stays_within_rows_and_limits(tiny):
    host = tiny.host()
    limits = (6, 1, 3, 2)
    output, _ = host.run(
        round_shape(4, 5, rows=7, allocation=Allocation.DEVICE),
        *(LaneInput(slot, rows=rows) for slot, rows in enumerate(limits)),
    )
    rows = [lane.offered + 1 for lane in output.lanes]
    assert sum(rows) == 7
    assert all(1 <= given <= limit for given, limit in zip(rows, limits, strict=True))
    joint = np.cumprod(output.confidence, axis=1)
    given = [joint[lane, depth - 2] for lane, count in enumerate(rows) for depth in range(2, count + 1)]
    left = [joint[lane, count - 1] for lane, count in enumerate(rows) if count < limits[lane]]
    assert min(given) >= max(left)


def test_reproducible_requests_emit_the_same_whatever_the_rounds(tiny):
    parameters = [SamplingParameters(temperature=1.0, seed=slot, reproducible=True) for slot in range(4)]
    plain = tiny.host(head=False, parameters=parameters)
    for _ in range(30):
        plain.run(decode_shape(4), *(LaneInput(slot) for slot in range(4)))
    host = tiny.host(parameters=parameters)
    for depth in (3, 0, 5, 1, 3, 5):
        host.run(round_shape(4, depth), *(LaneInput(slot, rows=depth + 1) for slot in range(4)))
    assert_plain(host, plain.outputs)
    assert sum(map(len, host.outputs.values())) > 4 * 7


def test_sampled_drafts_are_verified_by_what_they_were_drawn_from(tiny):
    """A target that agrees with the head in everything but rounding would accept all; a random one accepts some."""
    parameters = [SamplingParameters(temperature=1.0, seed=slot) for slot in range(4)]
    host = tiny.host(parameters=parameters)
    survival = []
    for _ in range(8):
        output, _ = host.run(round_shape(4, 3), *(LaneInput(slot, rows=4) for slot in range(4)))
        survival.append(output.survival)
    probabilities = np.stack(survival)
    assert ((probabilities > 0) & (probabilities < 1)).any()
    assert (np.diff(probabilities, axis=2) <= 0).all()


def test_the_confidence_in_a_draft_does_not_depend_on_which_token_was_drawn(tiny):
    """A device divides its rows by it: rows that depended on the draft would bias what is emitted."""
    confidences, emitted = [], set()
    for seed in range(6):
        host = tiny.host(parameters=[SamplingParameters(temperature=1.0, seed=seed)] * 4)
        for slot in range(4):  # the same past whatever was drawn in it
            host.state.pending[slot] = 1
        output, _ = host.run(round_shape(4, 2), *(LaneInput(slot, rows=3) for slot in range(4)))
        confidences.append(output.confidence[:, 0])
        emitted.add(tuple(lane.emitted[0] for lane in output.lanes))
    assert len(emitted) > 1
    assert all(np.array_equal(row, confidences[0]) for row in confidences)


def test_confidence_and_survival_cover_the_lanes_that_made_them(tiny):
    host = tiny.host()
    output, _ = host.run(
        mixed_shape(4, 3, 64),
        LaneInput(0, rows=4),
        LaneInput(1, rows=3, copies=np.array([1, 2])),
        LaneInput(2, rows=1),
    )
    assert ((output.confidence[[0, 2]] > 0) & (output.confidence[[0, 2]] < 1)).all()
    assert not output.confidence[1].any()
    assert np.isnan(output.survival).tolist() == [[False] * 3, [False, False, True], [True] * 3]
    assert [lane.offered for lane in output.lanes] == [3, 2, 0]


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(range(len(SHAPES["any"]))), st.booleans()), min_size=1, max_size=8))
def test_any_sequence_of_shapes_gives_plain_tokens(tiny, plain, choices):
    host = tiny.host()
    generator = np.random.default_rng(7)
    for number, copies in choices:
        shape = SHAPES["any"][number]
        rows = shape.lane_width if shape.allocation is Allocation.DEVICE else shape.target_rows // 4
        source = "copies" if copies else "learned"
        host.run(shape, *(lane_of(host, slot, rows, source, plain, generator) for slot in range(4)))
    assert_plain(host, plain)


@pytest.mark.parametrize("allocation", [Allocation.NONE, Allocation.DEVICE])
def test_a_draft_head_that_overflows_proposes_without_confidence(tiny, plain, allocation):
    """The target verifies whatever is proposed; the scheduler refuses a confidence that is no number."""
    weight = torch.full_like(tiny.head.confidence_weight, torch.nan)
    host = Tiny(tiny.model, dataclasses.replace(tiny.head, confidence_weight=weight)).host()
    shape = round_shape(4, 3) if allocation is Allocation.NONE else round_shape(4, 3, rows=8, allocation=allocation)
    for _ in range(3):
        output, _ = host.run(shape, *(LaneInput(slot, rows=4) for slot in range(4)))
        assert output.confidence.tolist() == [[0.0] * 3] * 4
    assert all(host.outputs[slot] == plain[slot][: len(host.outputs[slot])] for slot in range(4))
