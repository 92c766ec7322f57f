"""The rules of the baselines, by hand-made residents."""

from __future__ import annotations

import pytest

from scheduler.records import RequestHandle
from scheduler.simulation.baselines.naming import named_baseline
from scheduler.simulation.baselines.rules import Resident, chunked_prefill, prefill_first
from scheduler.simulation.errors import SimulationError


def _decoders(*output_left: int) -> list[Resident]:
    return [Resident(RequestHandle(i, 1), f"d{i}", 0, left) for i, left in enumerate(output_left)]


def _prompts(*prompt_left: int) -> list[Resident]:
    return [Resident(RequestHandle(100 + i, 1), f"p{i}", left, 10) for i, left in enumerate(prompt_left)]


def _rows(shares: list[tuple[Resident, int]]) -> dict[str, int]:
    return {resident.request_id: rows for resident, rows in shares}


def test_a_budget_serves_every_decoder_and_then_prompts_in_order_until_it_is_used_up() -> None:
    shares = chunked_prefill(512)(_decoders(5, 5, 5), _prompts(300, 300, 300))
    assert _rows(shares) == {"d0": 1, "d1": 1, "d2": 1, "p0": 300, "p1": 209}


def test_a_budget_cuts_one_prompt_and_admits_nobody_behind_it() -> None:
    assert _rows(chunked_prefill(256)([], _prompts(1000, 10))) == {"p0": 256}


def test_several_prompts_share_a_step_when_the_budget_holds_them() -> None:
    assert _rows(chunked_prefill(8192)([], _prompts(64, 128, 3000))) == {"p0": 64, "p1": 128, "p2": 3000}


def test_a_step_limited_to_one_prompt_leaves_the_rest_of_its_budget_unused() -> None:
    shares = chunked_prefill(8192, prompts_per_step=1)(_decoders(5), _prompts(64, 128))
    assert _rows(shares) == {"d0": 1, "p0": 64}


def test_drafts_count_in_the_budget_and_prompts_get_what_they_leave() -> None:
    assert _rows(chunked_prefill(20, decode_rows=4)(_decoders(9, 9), _prompts(500))) == {"d0": 4, "d1": 4, "p0": 12}


def test_no_decoder_takes_rows_past_its_last_token() -> None:
    assert _rows(chunked_prefill(512, decode_rows=4)(_decoders(1, 3, 9), [])) == {"d0": 1, "d1": 3, "d2": 4}


def test_decoders_past_the_budget_wait() -> None:
    assert _rows(chunked_prefill(6, decode_rows=4)(_decoders(9, 9, 9), _prompts(5))) == {"d0": 4, "d1": 2}


def test_prefill_first_leaves_every_decoder_out_while_a_prompt_is_incomplete() -> None:
    assert _rows(prefill_first(8192)(_decoders(5, 5), _prompts(300, 9000))) == {"p0": 300, "p1": 7892}


def test_prefill_first_serves_all_decoders_when_no_prompt_waits() -> None:
    assert _rows(prefill_first(64)(_decoders(5, 1, 5), [])) == {"d0": 1, "d1": 1, "d2": 1}


def test_nobody_resident_gives_an_empty_step() -> None:
    assert chunked_prefill(512)([], []) == []
    assert prefill_first(512)([], []) == []


def test_names_give_their_numbers() -> None:
    found = {name: named_baseline(name) for name in ("budget:512", "prefill_first", "prefill_first:64", "fixed:4")}
    assert {name: (b.target_width, b.budget) for name, b in found.items() if b is not None} == {
        "budget:512": (1, 512),
        "prefill_first": (1, 8192),
        "prefill_first:64": (1, 64),
        "fixed:4": (4, 2048),
    }


@pytest.mark.parametrize("name", ["balanced", "budget512", "budget:-1", "budget:x", "fixed:4:2", ""])
def test_what_names_no_baseline_is_left_to_others(name: str) -> None:
    assert named_baseline(name) is None


@pytest.mark.parametrize("name", ["budget", "budget:0", "fixed", "fixed:0", "prefill_first:0"])
def test_a_baseline_without_its_number_or_with_zero_is_refused(name: str) -> None:
    with pytest.raises(SimulationError, match="number"):
        named_baseline(name)
