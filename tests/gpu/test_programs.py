"""Chunks, batches, padding and stale memory do not change what a request's tokens compute."""

import itertools

import numpy as np
import pytest
import torch
from lane_works import resident, tokens_at, whole_prompt

from gpu.model.weights import load_model, open_source
from gpu.pages import PADDING_WRITE_ROW, PAGE_TOKENS, KvCache
from gpu.programs.decode import DecodeProgram
from gpu.programs.prefill import PrefillProgram
from gpu.reference.forward import sequence_logits

COLUMNS = 32
PAGES = 120


class Programs:
    """A model, a cache and programs over them."""

    def __init__(self, model) -> None:
        self.cache = KvCache(model.config, PAGES, model.dtype)
        self.prefills = {size: PrefillProgram(model, self.cache, size, COLUMNS) for size in (16, 64, 128)}
        self.decodes = {size: DecodeProgram(model, self.cache, size, COLUMNS) for size in (1, 2, 4, 8)}

    def prefill(self, capacity, *works):
        with torch.inference_mode():
            return self.prefills[capacity].run(works)

    def decode(self, batch, *works):
        with torch.inference_mode():
            return self.decodes[batch].run(works)

    def poison(self, *kept) -> None:
        """NaN into every KV row but the padding page's zero rows and the written rows of (request, tokens) pairs."""
        for tensor in (*self.cache.keys, *self.cache.values):
            keep = tensor.clone()
            tensor.fill_(torch.nan)
            tensor[PADDING_WRITE_ROW + 1 : PAGE_TOKENS] = keep[PADDING_WRITE_ROW + 1 : PAGE_TOKENS]
            for request, tokens in kept:
                rows = [request.pages[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS for at in range(tokens)]
                tensor[rows] = keep[rows]


@pytest.fixture(scope="module", params=[False, True], ids=["one copy", "one-row copies"])
def model(tiny_checkpoint, request):
    return load_model(open_source(tiny_checkpoint), torch.float32, 512, one_row_copies=request.param)


@pytest.fixture
def programs(model):
    return Programs(model)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, size=length).tolist()


def assert_close(actual, expected) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * float(np.abs(expected).max()))


@pytest.mark.parametrize("cuts", [(16,), (16, 32, 48), (1, 2, 3), (15, 31, 47, 60), (50,)])
def test_a_prompt_in_chunks_ends_like_the_prompt_at_once(cuts, programs):
    prompt = prompt_of(61)
    expected = programs.prefill(64, whole_prompt(prompt))
    request = resident(prompt, first_page=40)
    edges = [0, *cuts, len(prompt)]
    for start, end in itertools.pairwise(edges):
        actual = programs.prefill(16 if end - start <= 16 else 64, tokens_at(request, prompt[start:end], start))
    assert_close(actual, expected)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 64])
def test_prefill_and_decode_agree_with_the_reference(length, programs, tiny_checkpoint):
    prompt, more = prompt_of(length), prompt_of(20, seed=1)
    expected = sequence_logits(open_source(tiny_checkpoint), prompt + more).numpy()
    request = resident(prompt, outputs=32)
    assert_close(programs.prefill(64, tokens_at(request, prompt, 0))[0], expected[length - 1])
    for at, token in enumerate(more, start=length):
        assert_close(programs.decode(1, tokens_at(request, [token], at))[0], expected[at])


@pytest.mark.parametrize(("batch", "lanes"), [(2, 2), (4, 3), (8, 5), (8, 8), (8, 1)])
def test_a_batch_gives_each_lane_what_it_gets_alone(batch, lanes, programs):
    lengths = [3, 64, 16, 31, 1, 47, 17, 60][:lanes]
    works, alone = [], []
    for lane, length in enumerate(lengths):
        request = resident(prompt_of(length, seed=lane), first_page=1 + 6 * lane)
        programs.prefill(64, tokens_at(request, request.prompt.tolist(), 0))
        works.append(tokens_at(request, [7 + lane], length))
        alone.append(programs.decode(1, works[-1])[0])
    together = programs.decode(batch, *works)
    assert_close(together, np.stack(alone))
    assert together.argmax(axis=1).tolist() == [int(row.argmax()) for row in alone]
    assert_close(programs.decode(batch, *reversed(works)), np.stack(alone[::-1]))


def test_no_program_reads_memory_that_its_requests_did_not_write(programs):
    prompt = prompt_of(37)
    request, other = resident(prompt), resident(prompt_of(20, seed=9), first_page=60)
    expected_prefill = programs.prefill(64, tokens_at(request, prompt, 0))
    programs.prefill(64, tokens_at(other, other.prompt.tolist(), 0))
    works = tokens_at(request, [9], 37), tokens_at(other, [8], 20)
    expected_decode = programs.decode(4, *works)

    programs.poison((request, 37), (other, 20))
    np.testing.assert_array_equal(programs.decode(4, *works), expected_decode)
    programs.poison((request, 20))
    np.testing.assert_array_equal(
        programs.prefill(64, tokens_at(request, prompt[20:], 20)).argmax(), expected_prefill.argmax()
    )
    programs.poison()
    np.testing.assert_array_equal(programs.prefill(64, tokens_at(request, prompt, 0)), expected_prefill)


def test_leftovers_in_the_static_buffers_change_nothing(programs):
    short = resident(prompt_of(5), first_page=1)
    expected_prefill = programs.prefill(64, tokens_at(short, short.prompt.tolist(), 0))
    expected_decode = programs.decode(8, tokens_at(short, [4], 5))
    long = [resident(prompt_of(60, seed=lane), first_page=10 + 6 * lane) for lane in range(8)]
    for request in long:
        programs.prefill(64, tokens_at(request, request.prompt.tolist(), 0))
    programs.decode(8, *(tokens_at(request, [1], 60) for request in long))
    np.testing.assert_array_equal(programs.prefill(64, tokens_at(short, short.prompt.tolist(), 0)), expected_prefill)
    np.testing.assert_array_equal(programs.decode(8, tokens_at(short, [4], 5)), expected_decode)


@pytest.mark.parametrize("warm_up_only", [True, False])
def test_padding_rows_write_to_the_padding_page_only(warm_up_only, programs):
    for tensor in (*programs.cache.keys, *programs.cache.values):
        tensor[PAGE_TOKENS:].fill_(123.0)
    request = resident(prompt_of(5), first_page=3)
    if warm_up_only:
        programs.prefill(16)
        programs.decode(8)
        written = 0
    else:
        programs.prefill(64, tokens_at(request, request.prompt.tolist(), 0))
        programs.decode(8, tokens_at(request, [4], 5))
        written = 6
    for tensor in (*programs.cache.keys, *programs.cache.values):
        untouched = (tensor == 123.0).all(dim=1)
        own = torch.zeros(len(tensor), dtype=torch.bool)
        own[3 * PAGE_TOKENS : 3 * PAGE_TOKENS + written] = True
        assert torch.equal(untouched[PAGE_TOKENS:], ~own[PAGE_TOKENS:])
        assert not tensor[PADDING_WRITE_ROW + 1 : PAGE_TOKENS].any()


def test_the_last_position_of_the_context_can_be_decoded(programs, tiny_checkpoint):
    prompt = prompt_of(511)
    request = resident(prompt, outputs=1)
    for start in range(0, 511, 128):
        programs.prefill(128, tokens_at(request, prompt[start : start + 128], start))
    expected = sequence_logits(open_source(tiny_checkpoint), [*prompt, 77])[-1].numpy()
    assert_close(programs.decode(4, tokens_at(request, [77], 511))[0], expected)
