"""What a baseline's step costs: smallest graphs that hold it, or interpolation, on a small table with simple times."""

from __future__ import annotations

import pytest

from scheduler.plans import Reason
from scheduler.shapes import GraphKind
from scheduler.simulation.baselines.batcher import BaselineStep
from scheduler.simulation.baselines.naming import step_costs
from scheduler.simulation.baselines.steps import StepGraphs
from scheduler.simulation.errors import InvalidTable
from scheduler.simulation.measured import parse_catalog

HEADER = "kind,B,D,W,P,prefill_capacity,duration_ms,ctx"


def _catalog(lines: list[str]) -> StepGraphs:
    return StepGraphs(parse_catalog("\n".join([HEADER, *lines]), "small.csv"))


def _lines() -> list[str]:
    """decode B 1, 2, 4: 10 + B; prefill C 64, 128: 10 + C/16; mixed B 1, 2: decode + C/16."""
    lines = [f"decode,{b},0,1,{b},0,{10 + b},1024" for b in (1, 2, 4)]
    lines += [f"prefill,1,0,0,{c},{c},{10 + c / 16},0" for c in (64, 128)]
    lines += [f"mixed,{b},0,1,{b + c},{c},{10 + b + c / 16},1024" for b in (1, 2) for c in (64, 128)]
    return lines


def _speculative_lines() -> list[str]:
    return [f"speculative,{b},3,4,{4 * b},0,{20 + b},1024" for b in (1, 2, 4)]


def _ms(graphs: StepGraphs, decoders: int, prompt_tokens: int, unpadded: bool, context: float | None = None) -> float:
    shape = graphs.counted_shape(decoders, prompt_tokens)
    step = BaselineStep(shape, (), decoders, prompt_tokens, Reason.ORDINARY)
    return step_costs(graphs, unpadded, context is not None).step_ms(step, context or 0.0)


@pytest.mark.parametrize(
    ("decoders", "prompt_tokens", "expected_ms"),
    [
        (1, 0, 11),
        (3, 0, 14),  # decode B = 4
        (4, 0, 14),
        (9, 0, 14 + 14 + 11),  # two of B = 4, one of B = 1
        (0, 1, 14),
        (0, 65, 18),
        (0, 300, 18 + 18 + 14),  # 128 + 128 + 44
        (1, 64, 15),
        (2, 65, 20),
        (2, 200, 20 + 18),  # the mixed graph's 128, then a prefill graph for 72
        (4, 64, 16 + 12),  # two decoders beyond the largest mixed batch
    ],
)
def test_a_padded_step_takes_the_smallest_graphs_that_hold_it(
    decoders: int, prompt_tokens: int, expected_ms: float
) -> None:
    assert _ms(_catalog(_lines()), decoders, prompt_tokens, unpadded=False) == expected_ms


@pytest.mark.parametrize(
    ("decoders", "prompt_tokens", "expected_ms"),
    [
        (1, 0, 11),
        (3, 0, 13),
        (6, 0, 16),  # the last segment goes on
        (0, 1, 14),  # never below the smallest prefill graph
        (0, 96, 16),
        (0, 256, 26),
        (1, 32, 13),  # half way between the decode graph and 64 prompt tokens
        (2, 96, 18),
        (2, 192, 24),
        (3, 64, 17),  # one decoder more than the largest mixed batch adds what it adds to a decode step
    ],
)
def test_an_unpadded_step_is_interpolated_between_measured_sizes(
    decoders: int, prompt_tokens: int, expected_ms: float
) -> None:
    assert _ms(_catalog(_lines()), decoders, prompt_tokens, unpadded=True) == pytest.approx(expected_ms)


def test_an_unpadded_step_of_measured_sizes_costs_what_the_padded_one_does() -> None:
    graphs = _catalog(_lines())
    for decoders in (0, 1, 2):
        for prompt_tokens in (0, 64, 128):
            if decoders or prompt_tokens:
                padded = _ms(graphs, decoders, prompt_tokens, unpadded=False)
                assert _ms(graphs, decoders, prompt_tokens, unpadded=True) == pytest.approx(padded)


def test_without_mixed_graphs_of_its_width_a_step_runs_generation_and_prefill_one_after_the_other() -> None:
    table = parse_catalog("\n".join([HEADER, *_lines(), *_speculative_lines()]), "small.csv")
    graphs = StepGraphs(table, target_width=4)
    assert _ms(graphs, 2, 100, unpadded=False) == 22 + 18
    assert _ms(graphs, 3, 96, unpadded=True) == pytest.approx(23 + 16)


def test_a_step_follows_the_context_where_the_table_knows_it() -> None:
    lines = [*_lines(), "decode,4,0,1,4,0,24,2048"]
    assert _ms(_catalog(lines), 3, 0, unpadded=False, context=1536) == 19
    assert _ms(_catalog(lines), 3, 0, unpadded=True, context=1536) == pytest.approx((12 + 19) / 2)


@pytest.mark.parametrize(
    ("decoders", "prompt_tokens", "kind", "label"),
    [
        (3, 0, GraphKind.DECODE, "decode:B4"),
        (0, 65, GraphKind.PREFILL, "prefill:B1:C128"),
        (3, 65, GraphKind.MIXED, "mixed:B4:D0:W1:P4:C128"),
    ],
)
def test_a_step_is_counted_as_its_kind_at_padded_sizes(
    decoders: int, prompt_tokens: int, kind: GraphKind, label: str
) -> None:
    shape = _catalog(_lines()).counted_shape(decoders, prompt_tokens)
    assert (shape.kind, shape.label) == (kind, label)


def test_a_speculative_step_says_how_many_drafts_its_decoders_propose() -> None:
    table = parse_catalog("\n".join([HEADER, *_lines(), *_speculative_lines()]), "small.csv")
    shape = StepGraphs(table, target_width=4).counted_shape(2, 0)
    assert (shape.kind, shape.draft_depth, shape.target_width) == (GraphKind.SPECULATIVE, 3, 4)


def test_a_width_that_was_not_measured_is_refused_with_its_name() -> None:
    table = parse_catalog("\n".join([HEADER, *_lines()]), "small.csv")
    with pytest.raises(InvalidTable, match="no speculative W=3 graphs"):
        StepGraphs(table, target_width=3)


def test_a_hole_in_the_mixed_graphs_is_refused_with_its_sizes() -> None:
    with pytest.raises(InvalidTable, match="no mixed graph of B=2 W=1 C=128"):
        _catalog(_lines()[:-1])
