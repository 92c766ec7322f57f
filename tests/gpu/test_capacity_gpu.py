"""The catalog that limits give."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.capacity import (
    CatalogLimits,
    MixedSizes,
    batch_buckets,
    build_catalog,
    catalog_summary,
    draft_capacity,
    state_buckets,
)
from gpu.device import InvalidSettings
from scheduler.capacity import select
from scheduler.shapes import Allocation, GraphKind

PROMPTS = tuple(64 * n for n in range(1, 11))
KINDS = [kind for kind in GraphKind if kind is not GraphKind.VISION]


def catalog(**changes):
    values = {"batches": (1, 2, 4), "prefill_capacities": (64, 256)}
    return build_catalog(CatalogLimits(**(values | changes)))


def of_kind(shapes, kind):
    return [shape for shape in shapes if shape.kind is kind]


@pytest.mark.parametrize(
    ("concurrency", "buckets"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 4)), (16, (1, 2, 4, 8, 16)), (17, (1, 2, 4, 8, 16, 32))],
)
def test_batches_are_powers_of_two_through_padded_concurrency(concurrency, buckets):
    assert batch_buckets(concurrency) == buckets


def test_state_programs_take_every_second_bucket():
    assert [state_buckets(batches) for batches in [(1,), (1, 2), (4, 2), (1, 16, 8), (1, 17)]] == [
        (1,),
        (1,),
        (1, 4),
        (1, 4, 16),
        (1, 4, 16),
    ]


def test_the_issues_mixed_catalog_has_22_speculative_and_20_ordinary_graphs():
    limits = {"batches": (2, 4), "prefill_capacities": PROMPTS, "mixed_prefill": True, "mixed_declared": True}
    drafting = {"draft_tokens": 5, "speculative_token_capacity": 6}
    speculative = of_kind(catalog(**limits, **drafting), GraphKind.MIXED)
    assert len(speculative) == 22
    wide = [(s.batch_capacity, s.target_width, s.prefill_capacity) for s in speculative if s.target_width > 1]
    assert wide == [(2, 2, 192), (2, 3, 192)]  # of 64 to 640, 192 is the least far from both ends
    assert all(shape.speculation_enabled for shape in speculative)
    ordinary = of_kind(catalog(**limits), GraphKind.MIXED)
    assert len(ordinary) == 20
    assert not any(shape.speculation_enabled for shape in ordinary)


def test_finer_sizes_and_several_prompts_leave_the_other_programs_alone():
    limits = {"batches": (1, 2, 4), "prefill_capacities": (16, 64, 256), "mixed_prefill": True, "mixed_declared": True}
    coarse = catalog(**limits)
    finer = catalog(**limits, mixed_sizes=MixedSizes(3, 8, 64), concurrency=10)
    others = [shape for shape in coarse if shape.kind is not GraphKind.MIXED]
    assert [shape for shape in finer if shape.kind is not GraphKind.MIXED] == others
    mixed = of_kind(finer, GraphKind.MIXED)
    assert {shape.prefill_capacity for shape in mixed} == {64, 128, 192, 256}
    assert {shape.batch_capacity: shape.prompt_rows for shape in mixed} == {2: 2, 4: 3, 8: 3, 16: 3}
    assert len(mixed) == 16
    assert catalog_summary(coarse) == ("10 programs, up to 259 token rows; 4 mixed, with 1 prompt at the most")
    assert catalog_summary(finer) == "22 programs, up to 271 token rows; 16 mixed, with 3 prompts at the most"
    assert catalog_summary(others) == "6 programs, up to 256 token rows"


@pytest.mark.parametrize(("flag", "declared", "count"), [(True, True, 4), (True, False, 0), (False, True, 0)])
def test_mixed_programs_need_the_flag_and_the_models_declaration(flag, declared, count):
    assert len(of_kind(catalog(mixed_prefill=flag, mixed_declared=declared), GraphKind.MIXED)) == count


def test_without_drafts_decoding_is_plain_and_in_catalog_order():
    labels = [shape.label for shape in catalog(scored_capacities=(64,), state_batches=(1, 4))]
    assert labels == [
        *("init:B1", "init:B4", "restore:B1", "restore:B4", "snapshot:B1", "snapshot:B4"),
        *("terminal_snapshot:B1", "terminal_snapshot:B4", "prefill:B1:C64", "prefill:B1:C256"),
        *("scored_prefill:B1:C64", "decode:B1", "decode:B2", "decode:B4"),
    ]


def test_rectangular_rounds_stay_within_the_rows():
    shapes = catalog(draft_tokens=3, speculative_token_capacity=6)
    rounds = [(s.batch_capacity, s.draft_depth, s.target_width, s.target_rows) for s in shapes[2:]]
    assert rounds == [
        (1, 0, 1, 1),
        (1, 1, 2, 2),
        (1, 2, 3, 3),
        (1, 3, 4, 4),
        (2, 0, 1, 2),
        (2, 1, 2, 4),
        (2, 2, 3, 6),
        (4, 0, 1, 4),
    ]
    assert draft_capacity(shapes) == 3
    assert draft_capacity(catalog()) == 1


@pytest.mark.parametrize("allocation", [Allocation.HOST, Allocation.DEVICE])
def test_ragged_rounds_draft_to_the_full_depth(allocation):
    shapes = catalog(draft_tokens=3, speculative_token_capacity=8, allocation=allocation)[2:]
    rounds = [(s.batch_capacity, s.draft_depth, s.target_rows) for s in shapes if s.target_width > 1]
    assert rounds == [(1, 3, 2), (1, 3, 4), (2, 3, 4), (2, 3, 8), (4, 3, 8)]
    assert {s.allocation for s in shapes if s.target_width > 1} == {allocation}
    assert [s.batch_capacity for s in shapes if s.target_width == 1] == [1, 2, 4]


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(tuple)


@settings(max_examples=60)
@given(
    batches=SIZES,
    prompts=st.lists(st.sampled_from([16, 64, 128, 512]), min_size=1).map(lambda sizes: (64, *sizes)),
    drafts=st.integers(0, 9),
    rows=st.integers(2, 40),
    allocation=st.sampled_from(Allocation),
    mixed=st.booleans(),
    finer=st.sampled_from(
        [
            {},
            {"mixed_sizes": MixedSizes(4, 16), "concurrency": 99},
            {"mixed_sizes": MixedSizes(2, prompt_step=64)},
        ]
    ),
    states=st.lists(st.integers(1, 8), max_size=3).map(tuple),
)
def test_every_catalog_loads_and_keeps_its_limits(batches, prompts, drafts, rows, allocation, mixed, finer, states):
    limits = CatalogLimits(
        batches=(2, *batches),
        prefill_capacities=prompts,
        scored_capacities=prompts[:1],
        draft_tokens=drafts,
        speculative_token_capacity=rows,
        allocation=allocation if drafts else Allocation.NONE,
        mixed_prefill=mixed,
        mixed_declared=True,
        state_batches=states,
        **finer,
    )
    shapes = build_catalog(limits)
    select(shapes, completion_token_capacity=max(8, drafts + 1))
    counts = collections.Counter(shape.kind for shape in shapes)
    assert len(set(shapes)) == len(shapes)
    assert [KINDS.index(s.kind) for s in shapes if s.kind.value in ("prefill", "scored_prefill", "decode")] == sorted(
        KINDS.index(s.kind) for s in shapes if s.kind.value in ("prefill", "scored_prefill", "decode")
    )
    assert (counts[GraphKind.DECODE] == 0) == (drafts > 0) == (counts[GraphKind.SPECULATIVE] > 0)
    assert (counts[GraphKind.MIXED] > 0) == mixed
    for shape in shapes:
        assert shape.draft_depth <= drafts
        if shape.target_width > 1:
            assert shape.target_rows <= rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": ()}, "decode_batches need at least one"),
        ({"prefill_capacities": ()}, "at least one entry"),
        ({"batches": (0, 1)}, "decode_batches are .*at least 1"),
        ({"scored_capacities": (0,)}, "scored_capacities .*at least 1"),
        ({"batches": (5000,)}, "1 to 4096"),
        ({"draft_tokens": -1}, "0 to 63"),
        ({"draft_tokens": 64, "speculative_token_capacity": 99}, "0 to 63"),
        ({"draft_tokens": 2, "speculative_token_capacity": 1}, "at least 2"),
        ({"allocation": Allocation.HOST}, "set draft_tokens"),
        (
            {
                "batches": (1, 128),
                "draft_tokens": 2,
                "speculative_token_capacity": 256,
                "allocation": Allocation.DEVICE,
            },
            "at most 64 requests",
        ),
        ({"batches": (1, 3), "mixed_prefill": True, "mixed_declared": True}, "power of two"),
        ({"mixed_prefill": True, "mixed_declared": True, "mixed_sizes": MixedSizes(batch_step=6)}, "multiple of 4"),
        ({"mixed_prefill": True, "mixed_declared": True, "mixed_sizes": MixedSizes(prompt_step=32)}, "multiple of 64"),
        ({"prefill_capacities": (16,), "mixed_prefill": True, "mixed_declared": True}, "multiple of 64"),
    ],
)
def test_limits_that_cannot_work_are_refused(changes, message):
    with pytest.raises(InvalidSettings, match=message):
        catalog(**changes)


@pytest.mark.parametrize("rows", [0, 5])
def test_a_mixed_program_carries_one_to_four_prompts(rows):
    with pytest.raises(InvalidSettings, match=f"are {rows}; a mixed program carries 1 to 4"):
        MixedSizes(rows)
