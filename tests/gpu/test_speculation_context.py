"""Drafts, confidences and the draft layer's pages are those of the slow twin, however the context was absorbed."""

import dataclasses

import numpy as np
import pytest
import torch
from program_host import ProgramHost, decode_shape, mixed_shape, prefill_shape, prompt_of, round_shape
from tiny_checkpoint import write_tiny_checkpoint
from tiny_draft_head import write_tiny_draft_head

from gpu.model.draft_head import load_draft_head
from gpu.model.weights import load_model, open_source
from gpu.programs.interface import LaneInput
from gpu.reference.draft import greedy_drafts

VOCABULARY = 12
DEPTH = 3


@dataclasses.dataclass(frozen=True)
class Drafting:
    """A target, its draft head, and the head's tensors as the twin reads them."""

    source: object
    tensors: dict
    model: object
    head: object

    def expected(self, host, slot, depth=DEPTH):
        """The twin's drafts for what the request has now."""
        return greedy_drafts(self.source, self.tensors, host.prompts[slot] + host.outputs[slot], depth)

    def host(self, slots=8) -> ProgramHost:
        return ProgramHost(self.model, self.head, slots=slots)


@pytest.fixture(scope="module", params=[None, (0, 2, 3, 7, 11)], ids=["whole vocabulary", "drafts a part of it"])
def drafting(request, tmp_path_factory) -> Drafting:
    directory = tmp_path_factory.mktemp("twelve")
    write_tiny_checkpoint(directory, seed=5, vocab_size=VOCABULARY, eos_token_id=None, tie_word_embeddings=False)
    source = open_source(directory)
    model = load_model(source, torch.float32, 512)
    path = directory / "head.safetensors"
    tensors = write_tiny_draft_head(path, source.config, seed=2, draft_token_ids=request.param)
    return Drafting(source, tensors, model, load_draft_head(path, model))


def prompt(length: int, seed: int = 0) -> list[int]:
    return [token % VOCABULARY for token in prompt_of(length, seed)]


def assert_drafts(drafting, host, slots) -> None:
    """A round's proposals and confidences against the twin's."""
    expected = [drafting.expected(host, slot) for slot in slots]
    output, _ = host.run(round_shape(8, DEPTH), *(LaneInput(slot, rows=DEPTH + 1) for slot in slots))
    tokens = host.program(round_shape(8, DEPTH)).drafts[: len(slots)].tolist()
    assert tokens == [[draft.token for draft in drafts] for drafts in expected]
    confidences = [[draft.confidence for draft in drafts] for drafts in expected]
    np.testing.assert_allclose(output.confidence, confidences, rtol=1e-3, atol=1e-5)


def test_first_rounds_after_prompts_of_every_length_draft_like_the_twin(drafting):
    host = drafting.host()
    lengths = (1, 2, 15, 16, 17, 31, 33, 48)
    for slot, length in enumerate(lengths):
        host.open(slot, prompt(length, slot))
        host.prefill(slot)
    assert_drafts(drafting, host, range(8))


def test_prompts_in_chunks_leave_the_context_of_prompts_at_once(drafting):
    host = drafting.host()
    for slot, cuts in enumerate([(), (1,), (16,), (7, 9, 20), (17, 1, 1)]):
        host.open(slot, prompt(45))
        for count in cuts:
            host.prefill(slot, count=count)
        host.prefill(slot)
    assert_drafts(drafting, host, range(5))


def test_every_kind_of_round_keeps_the_context(drafting):
    """Width one, wide learned, copies, ragged, mixed and plain decode rounds, in turn, before each comparison."""
    host = drafting.host()
    for slot, length in enumerate((3, 16, 30, 5)):
        host.open(slot, prompt(length, slot))
        host.prefill(slot)
    copies = np.array([1, 2, 3])
    rounds = [
        [(round_shape(4, 0), [LaneInput(slot) for slot in range(4)])] * 3,
        [(round_shape(4, 3), [LaneInput(slot, rows=4) for slot in range(4)])],
        [(round_shape(4, 3), [LaneInput(slot, rows=4, copies=copies) for slot in range(4)])],
        [(round_shape(4, 3, rows=7), [LaneInput(slot, rows=rows) for slot, rows in enumerate((1, 2, 3, 1))])],
        [(mixed_shape(4, 0, 64), [LaneInput(slot) for slot in (2, 0, 3)])],
        [(decode_shape(4), [LaneInput(slot) for slot in range(4)])] * 2,
    ]
    for steps in rounds:
        for shape, lanes in steps:
            host.run(shape, *lanes)
        assert_drafts(drafting, host, range(4))


def test_a_prompt_in_a_mixed_cohort_leaves_its_context(drafting):
    host = drafting.host()
    for slot in (0, 1):
        host.open(slot, prompt(9 + slot, slot))
        host.prefill(slot)
    host.open(2, prompt(50, seed=8))
    host.run(mixed_shape(4, 3, 64), LaneInput(0, rows=4), host.chunk(2, 20), LaneInput(1, rows=2))
    host.run(mixed_shape(4, 3, 64), host.chunk(2), LaneInput(1, rows=4))
    assert_drafts(drafting, host, range(3))


def test_scored_prefill_leaves_the_context_too(drafting):
    host = drafting.host()
    host.open(0, prompt(40))
    host.run(prefill_shape(64, scored=True), host.chunk(0, 21))
    host.run(prefill_shape(64, scored=True), host.chunk(0))
    assert_drafts(drafting, host, [0])


def test_the_last_hidden_state_is_that_of_the_newest_token_in_the_pages(drafting):
    """Learned rounds of all lengths end like one prefill of the same tokens."""
    host = drafting.host()
    host.open(0, prompt(10))
    host.prefill(0)
    for _ in range(6):
        host.run(round_shape(1, DEPTH), LaneInput(0, rows=4))
    tokens = host.prompts[0] + host.outputs[0]
    host.open(1, tokens[:-1])
    host.prefill(1)
    assert int(host.state.cursor[0]) == int(host.state.cursor[1]) == len(tokens) - 1
    torch.testing.assert_close(host.state.last_hidden[0], host.state.last_hidden[1], rtol=1e-4, atol=1e-4)
    layer = host.cache.keys[-1], host.cache.values[-1]
    for memory in layer:
        rows = [memory[host.kv_rows(slot, len(tokens) - 2)] for slot in (0, 1)]
        torch.testing.assert_close(rows[0], rows[1], rtol=1e-4, atol=1e-4)


def test_drafting_near_the_end_of_the_pages_reads_and_writes_nothing_beyond_them(drafting):
    """The last rounds of a context have fewer rows than drafts; positions past the end are only clamped."""
    host = ProgramHost(drafting.model, drafting.head, slots=2, columns=2)
    host.open(0, prompt(28))
    host.prefill(0)
    host.cache.keys[-1][host.kv_rows(1, 32)] = torch.nan
    while (left := 32 - int(host.state.cursor[0])) > 0:
        output, _ = host.run(round_shape(1, DEPTH), LaneInput(0, rows=min(left, DEPTH + 1)))
        assert output.lanes[0].finite
        assert np.isfinite(output.confidence).all()
    assert bool(host.cache.keys[-1][host.kv_rows(1, 32)].isnan().all())
