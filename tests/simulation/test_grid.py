"""Graphs between the measured ones: which are prepared, and what they take."""

from __future__ import annotations

import pytest

from scheduler.capacity import mixed_prompt_buckets
from scheduler.shapes import GraphKind
from scheduler.simulation.errors import SimulationError
from scheduler.simulation.grid import GraphGrid, shapes_on_grid
from scheduler.simulation.measured import parse_catalog, scheduler_shapes

CATALOG = """kind,B,D,W,P,prefill_capacity,duration_ms
prefill,1,0,0,64,64,3
prefill,1,0,0,256,256,6
decode,1,0,1,1,0,1
decode,4,0,1,4,0,2
decode,16,0,1,16,0,5
speculative,4,3,4,16,0,4
mixed,1,0,1,65,64,4
mixed,1,0,1,257,256,8
mixed,16,0,1,80,64,9
mixed,16,0,1,272,256,13
mixed,16,3,4,128,64,12
"""


@pytest.fixture
def table():
    return parse_catalog(CATALOG, "c.csv")


def by_label(prepared):
    return {shape.label: curve.reference_ms for shape, curve in prepared.curves.items()}


def test_without_a_grid_the_measured_graphs_are_prepared(table):
    assert shapes_on_grid(table, GraphGrid(), 16) == scheduler_shapes(table, 16)


def test_a_grid_adds_batches_and_the_prompt_capacities_of_mixed_graphs_at_times_between_their_neighbours(table):
    found = by_label(shapes_on_grid(table, GraphGrid(prompt_rows=4, batch_step=8, prompt_step=64), 16))
    assert [label for label in found if label.startswith("prefill")] == ["prefill:B1:C64", "prefill:B1:C256"]
    assert [label for label in found if label.startswith("decode")] == [
        "decode:B1", "decode:B4", "decode:B8", "decode:B16"
    ]  # fmt: skip
    assert found["decode:B8"] == pytest.approx(3.0)
    mixed = {label: ms for label, ms in found.items() if label.startswith("mixed")}
    assert set(mixed) == {f"mixed:B{b}:D0:W1:P{b}:C{c}:R4" for b in (8, 16) for c in (64, 128, 192, 256)}
    # Seven decoders at 64 tokens: between 4 ms of one and 9 ms of sixteen. The prompt is the eighth row.
    assert mixed["mixed:B8:D0:W1:P8:C64:R4"] == pytest.approx(4.0 + 6 / 15 * 5.0)
    assert mixed["mixed:B8:D0:W1:P8:C128:R4"] == pytest.approx(4.0 + 4 / 3 + 6 / 15 * 5.0)


def test_prompt_rows_alone_change_no_size(table):
    rows = {s.label: s.prompt_rows for s in shapes_on_grid(table, GraphGrid(prompt_rows=4), 16).shapes}
    assert {label: n for label, n in rows.items() if label.startswith("mixed")} == {
        "mixed:B16:D0:W1:P16:C64:R4": 4, "mixed:B16:D0:W1:P16:C256:R4": 4
    }  # fmt: skip
    assert all(n == 1 for label, n in rows.items() if not label.startswith("mixed"))


def test_wider_graphs_stay_as_they_were_measured(table):
    prepared = shapes_on_grid(table, GraphGrid(prompt_rows=2, batch_step=8, prompt_step=64), 16, draft_tokens=3)
    found = by_label(prepared)
    assert found["speculative:B4:D3:W4:P16"] == 4
    assert found["mixed:B16:D3:W4:P64:C64:R2"] == 12
    assert found["speculative:B8:D0:W1:P8"] == pytest.approx(3.0)
    assert all(s.speculation_enabled for s in prepared.shapes if s.kind is not GraphKind.PREFILL)


def test_batches_and_capacities_between_the_measured_ones():
    measured = [64, 128, 256, 512, 1024]
    assert GraphGrid(prompt_halves=True).capacities(measured) == [64, 128, 192, 256, 384, 512, 768, 1024]
    assert GraphGrid(prompt_halves=True).mixed_capacities(measured) == [64, 128, 192, 256, 384, 512, 768, 1024]
    assert GraphGrid(prompt_step=256).mixed_capacities(measured) == [64, 128, 256, 512, 768, 1024]
    assert GraphGrid(prompt_step=256).capacities(measured) == measured
    assert GraphGrid().batches([1, 2, 4, 8, 16, 32, 64], 40) == [1, 2, 4, 8, 16, 32, 64]
    assert GraphGrid(batch_step=8).batches([1, 2, 4, 8, 16, 32, 64], 40) == [1, 2, 4, 8, 16, 24, 32, 40]


def test_every_batch_is_for_graphs_that_only_decode(table):
    found = by_label(shapes_on_grid(table, GraphGrid(every_batch=True), 6))
    assert [label for label in found if label.startswith("decode")] == [f"decode:B{n}" for n in range(1, 7)]
    assert {label for label in found if label.startswith("mixed")} == {
        "mixed:B16:D0:W1:P16:C64", "mixed:B16:D0:W1:P16:C256"
    }  # fmt: skip


def test_a_catalog_without_mixed_graphs_gets_none_from_a_grid():
    rows = [line for line in CATALOG.splitlines() if not line.startswith("mixed")]
    found = by_label(
        shapes_on_grid(parse_catalog("\n".join(rows), "c.csv"), GraphGrid(batch_step=4, prompt_step=64), 8)
    )
    assert [label for label in found if not label.startswith("decode")] == [
        "prefill:B1:C64", "prefill:B1:C256",
    ]  # fmt: skip


@pytest.mark.parametrize("step", [64, 128, 192, 256])
def test_a_prompt_step_prepares_the_capacities_that_a_server_prepares(table, step):
    prepared = shapes_on_grid(table, GraphGrid(prompt_step=step), 16).shapes
    found = {kind: {s.prefill_capacity for s in prepared if s.kind is kind} for kind in GraphKind}
    assert found[GraphKind.MIXED] == set(mixed_prompt_buckets((64, 256), step))
    assert found[GraphKind.PREFILL] == {64, 256}


def test_a_prompt_step_beyond_the_largest_measured_capacity_is_refused(table):
    with pytest.raises(SimulationError, match="is 512; the largest measured prompt capacity is 256: take a smaller"):
        shapes_on_grid(table, GraphGrid(prompt_step=512), 16)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"prompt_rows": 5}, "from 1 to 4"), ({"batch_step": 3}, "multiple of 4"), ({"prompt_step": 32}, "of 64")],
)
def test_a_grid_that_no_server_could_capture_is_refused(options, words):
    with pytest.raises(SimulationError, match=words):
        GraphGrid(**options)
