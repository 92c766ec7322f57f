"""What a load may use of its catalog."""

from __future__ import annotations

import pytest

from scheduler.capacity import mixed_batch_buckets, mixed_prompt_buckets, mixed_shapes, select, speculative_shapes
from scheduler.errors import InvalidCatalog
from scheduler.shapes import Allocation, GraphKind, GraphShape

PROMPTS = (64, 128, 192, 256, 384, 512, 1024, 2048, 3072, 4096)


def shape(kind, batch=1, depth=0, width=1, rows=0, prompt=0, speculation=False, allocation=Allocation.NONE):
    return GraphShape(kind, batch, depth, width, rows, prompt, speculation, allocation)


DECODE = shape(GraphKind.DECODE, 2)
ROUND = shape(GraphKind.SPECULATIVE, 2, 3, 4, 8, speculation=True)
NARROW = shape(GraphKind.SPECULATIVE, 2, 0, 1, 2, speculation=True)
JOINT = shape(GraphKind.MIXED, 2, 3, 4, 8, 64, True)
PLAIN_JOINT = shape(GraphKind.MIXED, 2, 0, 1, 2, 64)


def test_a_catalog_with_rounds_is_of_the_speculative_mode():
    shapes = (DECODE, ROUND, JOINT, PLAIN_JOINT)
    assert select(shapes).usable == (False, True, True, False)
    assert select((DECODE, JOINT, PLAIN_JOINT)).usable == (True, False, True)


def test_fixed_verification_uses_one_width_only():
    chosen = select((ROUND, NARROW, JOINT, DECODE, shape(GraphKind.PREFILL, prompt=64)), "fixed:4")
    assert (chosen.fixed_width, chosen.usable) == (4, (True, False, True, False, True))


@pytest.mark.parametrize("verification", ["fixed:0", "fixed:65", "fixed:", "fixed:a", "Fixed:1", "", "fixed:4 "])
def test_a_verification_that_cannot_be_read_is_refused(verification):
    with pytest.raises(InvalidCatalog, match="write adaptive"):
        select((ROUND,), verification)


@pytest.mark.parametrize("shapes", [(ROUND, NARROW), (DECODE,)])
def test_a_load_that_would_generate_nothing_is_refused(shapes):
    with pytest.raises(InvalidCatalog, match="none of the catalog's generation graphs"):
        select(shapes, "fixed:3")


def test_a_catalog_without_generation_graphs_may_be_loaded():
    assert select((shape(GraphKind.PREFILL, prompt=64),), "fixed:3").usable == (True,)


def test_fixed_verification_refuses_graphs_that_divide_their_own_rows():
    device = shape(GraphKind.SPECULATIVE, 2, 3, 4, 6, allocation=Allocation.DEVICE)
    select((device, ROUND))
    with pytest.raises(InvalidCatalog, match="device allocation needs adaptive"):
        select((device, ROUND), "fixed:4")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (shape(GraphKind.PREFILL, 2, prompt=64), "B = 1"),
        (shape(GraphKind.SCORED_PREFILL, 2, prompt=64), "B = 1"),
        (shape(GraphKind.SPECULATIVE, 2, 3, 4, 6), "needs an allocation"),
        (shape(GraphKind.MIXED, 1, prompt=64), "power of two"),
        (shape(GraphKind.MIXED, 3, prompt=64), "power of two or a multiple of 4"),
        (shape(GraphKind.MIXED, 10, prompt=64), "power of two or a multiple of 4"),
        (shape(GraphKind.MIXED, 72, prompt=64), "from 2 to 64"),
        (GraphShape(GraphKind.MIXED, 8, prefill_capacity=64, prompt_rows=5), "at most 4 prompts"),
        (shape(GraphKind.MIXED, 2, 8, 9, prompt=64), "at most 8"),
        (shape(GraphKind.MIXED, 2, prompt=96), "multiple of 64"),
        (shape(GraphKind.MIXED, 2, 3, 4, 6, 64, allocation=Allocation.HOST), "rectangular"),
    ],
)
def test_shapes_outside_their_bounds_are_refused_at_load(bad, says):
    with pytest.raises(InvalidCatalog, match=says):
        select((bad,))


def test_a_wider_completion_makes_wider_mixed_rounds_loadable():
    select((shape(GraphKind.MIXED, 2, 8, 9, prompt=64),), completion_token_capacity=9)


def test_the_joint_catalog_has_22_speculative_and_20_ordinary_graphs():
    speculative = mixed_shapes((1, 2, 4), PROMPTS, 5, 6, speculation=True)
    ordinary = mixed_shapes((1, 2, 4), PROMPTS, 5, 6, speculation=False)
    assert (len(set(speculative)), len(set(ordinary))) == (22, 20)
    wide = [s for s in speculative if s.target_width > 1]
    assert [(s.batch_capacity, s.draft_depth, s.prefill_capacity) for s in wide] == [(2, 1, 512), (2, 2, 512)]
    select((*speculative, ROUND))
    select((*ordinary, DECODE))


def test_a_finer_joint_catalog_loads_and_carries_as_many_prompts_as_it_has_rows():
    batches, prompts = mixed_batch_buckets((1, 2, 4, 8, 128), 8, 20), mixed_prompt_buckets((16, 64, 320), 64)
    assert (batches, prompts) == ((2, 4, 8, 16, 24), (64, 128, 192, 256, 320))
    shapes = mixed_shapes(batches, prompts, 3, 16, speculation=True, prompt_rows=3)
    assert len(set(shapes)) == 5 * 5 + 7  # widths 2, 3, 4 for batches of 2 and 4, 2 for 8
    assert {s.batch_capacity: s.prompt_rows for s in shapes} == {2: 2, 4: 3, 8: 3, 16: 3, 24: 3}
    select((*shapes, ROUND))


@pytest.mark.parametrize(
    ("step", "concurrency", "buckets"),
    [(0, 64, (2, 8)), (8, 0, (2, 8)), (8, 8, (2, 8)), (8, 9, (2, 8, 16)), (24, 64, (2, 8, 24, 48)),
     (32, 200, (2, 8, 32, 64))],
)  # fmt: skip
def test_batch_steps_go_through_the_concurrency(step, concurrency, buckets):
    assert mixed_batch_buckets((1, 2, 3, 8), step, concurrency) == buckets


def test_steps_that_no_graph_can_have_are_refused():
    with pytest.raises(InvalidCatalog, match="steps of 10; it must be a multiple of 4"):
        mixed_batch_buckets((2,), 10, 64)
    with pytest.raises(InvalidCatalog, match="steps of 96 tokens; it must be a multiple of 64"):
        mixed_prompt_buckets((64,), 96)
    assert mixed_prompt_buckets((16, 64, 300), 0) == (64,)
    assert mixed_prompt_buckets((16, 64, 300), 128) == (64, 128, 256)


def test_rounds_stay_within_the_envelope():
    rectangular = speculative_shapes((1, 2, 4), 3, 8)
    assert [(s.batch_capacity, s.target_width) for s in rectangular if s.draft_depth] == [
        (1, 2), (1, 3), (1, 4), (2, 2), (2, 3), (2, 4), (4, 2)
    ]  # fmt: skip
    ragged = speculative_shapes((1, 2, 4, 16), 7, 16, Allocation.DEVICE)
    assert [(s.batch_capacity, s.target_rows) for s in ragged if s.draft_depth] == [
        (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (2, 16), (4, 8), (4, 16)
    ]  # fmt: skip
    assert [s.batch_capacity for s in ragged if not s.draft_depth] == [1, 2, 4, 16]
    select(rectangular)
    select(ragged)
