"""Between a form's text and coefficient values."""

from __future__ import annotations

import dash
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.errors import RefusedInput
from dashboard.pages.policy.callbacks import BUDGET_PROBLEM, _from_preset
from dashboard.pages.policy.form import FURTHER_GROUPS, GROUPS
from dashboard.pages.policy.outcome import draft_preview
from dashboard.pages.policy.values import (
    BUDGET,
    Loaded,
    budget_preset,
    differences,
    parse_entry,
    read_draft,
    read_entries,
    readable,
    rebased,
    show,
    show_with_hint,
)
from scheduler.policy import COEFFICIENT_BY_NAME, COEFFICIENTS, PRESETS, PolicyConfig

BALANCED = PolicyConfig.balanced().as_dict()
LOADED = Loaded(7, BALANCED)


def entries(**changes: str) -> dict[str, str]:
    return {c.name: changes.get(c.name, show(BALANCED[c.name])) for c in COEFFICIENTS}


def test_the_form_as_loaded_changes_nothing() -> None:
    draft = read_draft(LOADED, None, entries())
    assert (draft.changes, draft.problems, draft.to_send) == ([], {}, {})


def test_only_what_differs_is_sent() -> None:
    draft = read_draft(LOADED, None, entries(decode_age_price="0.25", token_fairness="16.0"))
    assert draft.to_send == {"decode_age_price": 0.25}
    assert [(c.coefficient.name, c.before, c.after) for c in draft.changes] == [("decode_age_price", 0.1, 0.25)]


def test_a_preset_is_sent_by_name_with_only_what_differs_from_it() -> None:
    throughput = {name: show(value) for name, value in PRESETS["throughput"].as_dict().items()}
    draft = read_draft(LOADED, "throughput", {**throughput, "token_fairness": "3"})
    assert draft.preset == "throughput"
    assert draft.to_send == {"token_fairness": 3.0}
    assert {c.coefficient.name for c in draft.changes} == {"delivery_fairness", "decode_age_price", "token_fairness"}


def test_the_preset_budget_is_sent_by_the_number_in_the_form_with_only_what_differs_from_it() -> None:
    draft = read_draft(LOADED, BUDGET, entries(token_budget="768"))
    assert (draft.preset, draft.to_send) == ("budget:768", {})
    assert [(c.coefficient.name, c.after) for c in draft.changes] == [("token_budget", 768)]
    changed = read_draft(LOADED, BUDGET, entries(token_budget="768", token_fairness="3"))
    assert (changed.preset, changed.to_send) == ("budget:768", {"token_fairness": 3.0})
    off = read_draft(Loaded(8, {**BALANCED, "token_budget": 768}), BUDGET, entries())
    assert (off.preset, off.to_send) == (None, {"token_budget": 0}), "without a number it is no such preset"


@pytest.mark.parametrize("entry", ["", "0", "-5", "1.5", "x", "1048577", "٣", "5 ", "1" * 60])
def test_what_is_no_budget_makes_no_preset(entry: str) -> None:
    assert budget_preset(entry) is None


def test_the_largest_budget_makes_a_preset() -> None:
    assert budget_preset("1048576") == "budget:1048576"


def test_a_draft_that_wants_mixed_graphs_says_so_where_there_are_none() -> None:
    draft = read_draft(LOADED, BUDGET, entries(token_budget="768"))
    assert "budget:768" in str(draft_preview(draft, mixed_prefill=False))
    assert "--mixed-prefill" in str(draft_preview(draft, mixed_prefill=False))
    assert "--mixed-prefill" not in str(draft_preview(draft, mixed_prefill=True))
    other = read_draft(LOADED, None, entries(token_fairness="3"))
    assert "--mixed-prefill" not in str(draft_preview(other, mixed_prefill=False))


@pytest.mark.parametrize("entry", ["", "-1", "nan", "inf", "1e400", "0,5", "1_000", "0x10", "١", "1 2", "--1", "true"])
def test_what_is_no_usable_number_is_a_problem_of_its_field(entry: str) -> None:
    draft = read_draft(LOADED, None, entries(decode_age_price=entry))
    assert set(draft.problems) == {"decode_age_price"}
    assert draft.to_send == {}


@pytest.mark.parametrize(("entry", "value"), [("1e5", 1e5), (".5", 0.5), ("5.", 5.0), ("+2", 2), ("1E-3", 1e-3)])
def test_usual_ways_to_write_numbers_are_understood(entry: str, value: float) -> None:
    assert parse_entry(COEFFICIENT_BY_NAME["decode_age_price"], entry) == value


def test_every_problem_is_found_at_once() -> None:
    draft = read_draft(LOADED, None, entries(adaptation_ms="0", estimate_ttl_ns="1.5", newcomer_memory="luck"))
    assert set(draft.problems) == {"adaptation_ms", "estimate_ttl_ns", "newcomer_memory"}


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_a_shown_number_reads_back_as_itself(value: float) -> None:
    assert float(str(parse_entry(COEFFICIENT_BY_NAME["decode_age_price"], show(value)))) == value


@given(st.integers(min_value=1, max_value=2**63 - 1))
def test_a_shown_whole_number_reads_back_as_itself(value: int) -> None:
    assert parse_entry(COEFFICIENT_BY_NAME["estimate_ttl_ns"], show(value)) == value


@pytest.mark.parametrize(
    ("entry", "words"),
    [("30000000000", "= 30 s"), ("1500000000", "= 1.5 s"), ("20000000", "= 20.0 ms"), ("0", ""), ("x", ""), ("", "")],
)
def test_what_stands_in_a_nanosecond_field_is_said_in_seconds(entry: str, words: str) -> None:
    assert readable(COEFFICIENT_BY_NAME["estimate_ttl_ns"], entry) == words


def test_nanoseconds_carry_a_hint() -> None:
    assert show_with_hint(COEFFICIENT_BY_NAME["estimate_ttl_ns"], 30_000_000_000) == "30000000000 (30 s)"
    assert show_with_hint(COEFFICIENT_BY_NAME["adaptation_ms"], 100.0) == "100"


def test_a_newer_version_keeps_edits_and_brings_the_rest() -> None:
    current = Loaded(8, {**BALANCED, "token_fairness": 20.0, "terminal_value": 300.0})
    kept = rebased(LOADED, entries(decode_age_price="0.7", terminal_value="250"), current)
    assert (kept["decode_age_price"], kept["terminal_value"], kept["token_fairness"]) == ("0.7", "250", "20")


def test_differences_are_in_the_order_of_the_coefficients() -> None:
    other = {**BALANCED, "newcomer_memory": "phase", "token_fairness": 1.0}
    assert [c.coefficient.name for c in differences(BALANCED, other)] == ["token_fairness", "newcomer_memory"]


def test_entries_must_be_one_per_coefficient() -> None:
    ids = [{"type": "coefficient", "name": c.name} for c in COEFFICIENTS]
    with pytest.raises(RefusedInput):
        read_entries(ids, ["1"])
    with pytest.raises(RefusedInput):
        read_entries([{"name": "no_such"}], ["1"])
    assert set(read_entries(ids, ["1"] * len(ids))) == set(COEFFICIENT_BY_NAME)


def test_every_coefficient_stands_in_exactly_one_group_of_the_form() -> None:
    grouped = [name for *_, names in (*GROUPS, *FURTHER_GROUPS) for name in names]
    assert sorted(grouped) == sorted(COEFFICIENT_BY_NAME)


def test_a_budget_s_preset_with_a_wrong_number_sets_what_a_budget_does_not():
    names = ["decode_cadence", "token_budget", "prompt_wait_price"]
    filled, problem = _from_preset(BUDGET, "12 tokens", names, typed=False)
    assert (filled[0], filled[1], float(filled[2]), problem) == ("off", dash.no_update, 0.0, BUDGET_PROBLEM)
    corrected, problem = _from_preset(BUDGET, "512", names, typed=True)
    assert (corrected[0], corrected[1], corrected[2], problem) == (dash.no_update, "512", dash.no_update, None)
