from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import COEFFICIENTS, PRESETS, PolicyConfig
from scheduler.errors import InvalidPolicy


def test_coefficients_and_fields_are_the_same_list_with_the_same_defaults():
    fields = dataclasses.fields(PolicyConfig)
    assert [f.name for f in fields] == [c.name for c in COEFFICIENTS]
    assert [f.default for f in fields] == [c.default for c in COEFFICIENTS]
    assert PolicyConfig.balanced().as_dict() == {c.name: c.default for c in COEFFICIENTS}


def test_throughput_drops_delivery_fairness_and_the_age_price_only():
    changed = {
        k: v for k, v in PolicyConfig.throughput().as_dict().items() if v != PolicyConfig.balanced().as_dict()[k]
    }
    assert changed == {"delivery_fairness": 0.0, "decode_age_price": 0.0}
    assert set(PRESETS) == {"balanced", "throughput", "interactive"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, -0.1, True, "1", None, 10**400, [1]])
def test_every_numeric_coefficient_refuses_what_is_no_finite_number_from_zero(value):
    for coefficient in COEFFICIENTS:
        with pytest.raises(InvalidPolicy) as caught:
            PolicyConfig().merged({coefficient.name: value})
        assert list(caught.value.problems) == [coefficient.name]


def test_alpha_adaptation_and_ttl_refuse_zero_and_ttl_refuses_fractions():
    for name in ("adaptive_verification_alpha", "adaptation_ms", "estimate_ttl_ns"):
        with pytest.raises(InvalidPolicy, match="above 0"):
            PolicyConfig().merged({name: 0})
    with pytest.raises(InvalidPolicy, match="whole number"):
        PolicyConfig().merged({"estimate_ttl_ns": 1.5})
    with pytest.raises(InvalidPolicy, match="below 2"):
        PolicyConfig().merged({"estimate_ttl_ns": 2**63})


def test_every_problem_is_named_at_once_and_nothing_is_changed():
    policy = PolicyConfig()
    with pytest.raises(InvalidPolicy) as caught:
        policy.merged({"token_fairness": -1, "no_such": 1, "newcomer_memory": "x", "decode_age_price": 0.5})
    assert set(caught.value.problems) == {"token_fairness", "no_such", "newcomer_memory"}
    assert policy == PolicyConfig()


@given(st.dictionaries(st.sampled_from([c.name for c in COEFFICIENTS if not c.choices]), st.integers(1, 10**6)))
def test_merging_changes_exactly_what_was_named(changes):
    merged = PolicyConfig().merged(changes).as_dict()
    assert merged == PolicyConfig().as_dict() | changes


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(InvalidPolicy, match=r"balanced, interactive, throughput, or budget:N with N from 1 to"):
        PolicyConfig.preset("fast")


@pytest.mark.parametrize("number", [1, 64, 512, 1 << 20])
def test_a_budget_is_the_defaults_with_that_token_budget(number):
    policy = PolicyConfig.preset(f"budget:{number}")
    assert policy == PolicyConfig(token_budget=number)
    assert policy.preset_name == f"budget:{number}"


@pytest.mark.parametrize(
    "name", ["budget", "budget:", "budget:0", "budget:-1", "budget:1.5", "budget:1048577", "budget:٣", "budget:5 ", ""]
)
def test_another_budget_is_refused_with_the_form_that_is_meant(name):
    with pytest.raises(InvalidPolicy, match=r"budget:N with N from 1 to 1,048,576 tokens a step"):
        PolicyConfig.preset(name)


def test_a_policy_is_called_by_the_preset_that_it_equals():
    assert {name: policy.preset_name for name, policy in PRESETS.items()} == {name: name for name in PRESETS}
    assert PolicyConfig(token_fairness=17.0).preset_name is None
    assert PolicyConfig(token_budget=512, token_fairness=17.0).preset_name is None
    assert PolicyConfig(token_budget=(1 << 20) + 1).preset_name is None


def test_interactive_prices_waits_and_late_gaps_and_keeps_the_rest():
    changed = PolicyConfig.interactive().as_dict().items() - PolicyConfig.balanced().as_dict().items()
    assert dict(changed) == {
        "prompt_wait_price": 1000.0,
        "prompt_rank_age_ms": 1000.0,
        "decode_gap_weight": 0.7,
        "decode_late_price": 300.0,
        "decode_cadence": "on",
        "acceptance_model": "pooled",
    }


def test_very_many_unknown_names_make_a_short_error_that_counts_them():
    names = {f"{n:06d}" + "x" * 1_000: 1 for n in range(100_000)}
    wrong = {c.name: [] for c in COEFFICIENTS}
    with pytest.raises(InvalidPolicy) as caught:
        PolicyConfig().merged({**names, **wrong})
    unknown = set(caught.value.problems) - set(wrong)
    assert len(unknown) == 9  # eight by name, and how many more
    assert set(caught.value.problems) >= set(wrong)
    assert "99,992 more" in caught.value.problems["…"]
    assert len(str(caught.value)) < 4_000


def test_the_known_names_are_listed_once():
    with pytest.raises(InvalidPolicy) as caught:
        PolicyConfig().merged({"b": 1, "a": 1, "c": 1})
    assert str(caught.value).count("the coefficients are") == 1
    assert str(caught.value).startswith("a: no such coefficient; the coefficients are output_token_value, ")
    assert caught.value.problems["c"] == "no such coefficient"
