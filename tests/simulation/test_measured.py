"""Measured catalogs: rows, context lengths, and the shapes that come of them."""

from __future__ import annotations

import pytest

from scheduler.shapes import Allocation, GraphKind
from scheduler.simulation.errors import InvalidTable
from scheduler.simulation.measured import ContextCurve, Extent, parse_catalog, scheduler_shapes

HEADER = "kind,B,D,W,P,prefill_capacity,duration_ms"
PREFILL = "prefill,1,0,0,64,64,3"


def table(*lines: str, header: str = HEADER):
    return parse_catalog("\n".join((header, *lines)), "c.csv")


def labels(prepared) -> list[str]:
    return [shape.label for shape in prepared.shapes]


def test_the_ordinary_mode_loads_decode_and_width_one_mixed_graphs(catalog_csv):
    prepared = scheduler_shapes(parse_catalog(catalog_csv, "c.csv"))
    assert labels(prepared)[3:] == [
        "decode:B1", "decode:B2", "decode:B4",
        "mixed:B2:D0:W1:P2:C64", "mixed:B2:D0:W1:P2:C256", "mixed:B4:D0:W1:P4:C64", "mixed:B4:D0:W1:P4:C256",
    ]  # fmt: skip
    report = prepared.report
    assert (report.loaded, report.single_mixed, report.other_mode) == (10, 2, 12)
    assert report.mixed_counts_one_more == 4
    assert not any(shape.speculation_enabled for shape in prepared.shapes)


def test_the_speculative_mode_turns_decode_rows_into_width_one_programs(catalog_csv):
    prepared = scheduler_shapes(parse_catalog(catalog_csv, "c.csv"), draft_tokens=3)
    kinds = {shape.kind for shape in prepared.shapes}
    assert kinds == {GraphKind.PREFILL, GraphKind.SPECULATIVE, GraphKind.MIXED}
    widths = {(s.draft_depth, s.target_width, s.allocation) for s in prepared.shapes if s.kind is not GraphKind.PREFILL}
    assert widths == {(0, 1, Allocation.NONE), (1, 2, Allocation.HOST), (3, 4, Allocation.HOST)}
    assert all(shape.speculation_enabled for shape in prepared.shapes if shape.kind is not GraphKind.PREFILL)


def test_a_mixed_row_keeps_its_batch_and_leaves_prompt_rows_out_of_the_target_rows(catalog_csv):
    prepared = scheduler_shapes(parse_catalog(catalog_csv, "c.csv"), draft_tokens=3)
    mixed = next(s for s in prepared.shapes if s.kind is GraphKind.MIXED and s.target_width == 4)
    assert (mixed.batch_capacity, mixed.target_rows, mixed.prefill_capacity) == (2, 8, 64)


def test_a_width_one_program_of_the_tables_own_wins_over_the_decode_row_and_stays_out_of_the_ordinary_mode():
    found = table(PREFILL, "decode,4,0,1,4,0,5", "speculative,4,0,1,4,0,5.5", "speculative,4,1,2,8,0,6")
    prepared = scheduler_shapes(found, draft_tokens=1)
    assert labels(prepared)[1:] == ["speculative:B4:D0:W1:P4", "speculative:B4:D1:W2:P8"]
    assert prepared.curves[prepared.shapes[1]].reference_ms == 5.5
    assert labels(scheduler_shapes(found))[1:] == ["decode:B4"]


def test_drafts_beyond_the_allowed_depth_and_batches_beyond_the_slots_are_left_out(catalog_csv):
    prepared = scheduler_shapes(parse_catalog(catalog_csv, "c.csv"), request_slots=2, draft_tokens=2)
    assert {(s.draft_depth, s.batch_capacity) for s in prepared.shapes if s.kind is GraphKind.SPECULATIVE} == {
        (0, 1), (0, 2), (1, 1), (1, 2),
    }  # fmt: skip
    assert prepared.report.beyond_slots == 4  # decode, chain of one draft, two mixed
    assert prepared.report.other_mode == 9  # chains of three drafts, and mixed graphs with them


def test_three_slots_keep_the_batch_of_four_that_covers_them(catalog_csv):
    prepared = scheduler_shapes(parse_catalog(catalog_csv, "c.csv"), request_slots=3)
    assert "decode:B4" in labels(prepared)


def test_rows_that_verify_trees_are_left_out_and_counted():
    prepared = scheduler_shapes(table(PREFILL, "decode,1,0,1,1,0,5", "speculative,1,3,8,8,0,6"), draft_tokens=7)
    assert (labels(prepared), prepared.report.tree_verification) == (
        ["prefill:B1:C64", "speculative:B1:D0:W1:P1"], 1,
    )  # fmt: skip


def test_a_ragged_row_keeps_its_target_rows_and_gets_the_allocation():
    found = table(PREFILL, "decode,4,0,1,4,0,5", "speculative,4,3,4,9,0,6")
    prepared = scheduler_shapes(found, draft_tokens=3, allocation=Allocation.DEVICE)
    ragged = prepared.shapes[-1]
    assert (ragged.target_rows, ragged.allocation) == (9, Allocation.DEVICE)


def test_a_curve_is_linear_between_contexts_and_goes_on_beyond_them():
    curve = ContextCurve({1024: 10.0, 2048: 12.0, 4096: 20.0})
    assert [curve.at(c) for c in (1024, 1536, 2048, 3072, 4096)] == [10.0, 11.0, 12.0, 16.0, 20.0]
    assert curve.at(5120) == 24.0
    assert curve.at(0) == 8.0
    assert curve.reference_ms == 10.0


def test_a_falling_curve_never_drops_below_half_of_its_end():
    curve = ContextCurve({1000: 10.0, 2000: 4.0})
    assert (curve.at(2500), curve.at(9000)) == (2.0, 2.0)


def test_context_lengths_of_one_graph_make_one_curve():
    header = HEADER + ",ctx"
    found = table("prefill,1,0,0,64,64,3,0", "decode,2,0,1,2,0,5,1024", "decode,2,0,1,2,0,9,3072", header=header)
    assert found.by_context
    assert found.curves[Extent(GraphKind.DECODE, 2)].at(2048) == 7.0
    assert not table(PREFILL, "decode,2,0,1,2,0,5").by_context


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("warmup,1,0,1,1,0,5", "kind is 'warmup'; it must be one of prefill, decode, speculative, mixed"),
        ("decode,2,0,1,3,0,5", "P is '3'; it must be B*W + prefill_capacity, here 2"),
        ("speculative,4,3,4,3,0,5", "P is '3'; it must be B*W + prefill_capacity, here 16, or less down to 4"),
        ("decode,0,0,1,1,0,5", "B is '0'"),
        ("decode,1,3,4,4,0,5", "D is '3'; it must be 0, and W 1: a wider graph is speculative"),
        ("decode,2,0,1,2,0,0", "duration_ms is '0'; it must be above 0"),
        ("decode,2,0,1,2,0,-3", "duration_ms is '-3'"),
        ("prefill,1,0,0,0,0,3", "prefill_capacity is '0'"),
        (PREFILL, "prefill B=1 is listed twice"),
    ],
)
def test_a_malformed_row_is_refused_with_the_place(line, words):
    with pytest.raises(InvalidTable) as caught:
        table(PREFILL, line)
    assert "c.csv, line 3" in str(caught.value)
    assert words in str(caught.value)


def test_a_table_that_cannot_prefill_or_generate_is_refused():
    with pytest.raises(InvalidTable, match="no prompt can be read"):
        scheduler_shapes(table("decode,1,0,1,1,0,5"))
    with pytest.raises(InvalidTable, match="nothing can be generated"):
        scheduler_shapes(table(PREFILL))


def test_a_graph_that_helios_cannot_prepare_is_refused_in_words():
    with pytest.raises(InvalidTable, match="cannot prepare"):
        scheduler_shapes(table("prefill,1,0,0,9999999,9999999,3", "decode,1,0,1,1,0,5"))
