"""A draft in the policy page's address."""

from __future__ import annotations

import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.pages.policy.address import MAX_DRAFT, draft_in, draft_text, preview_in, trial_in
from dashboard.pages.policy.values import all_text, differences, parse_entry
from scheduler.policy import COEFFICIENT_BY_NAME, COEFFICIENTS, NEWCOMER_MEMORIES, PolicyConfig

BALANCED = PolicyConfig.balanced().as_dict()
amounts = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
policies = st.builds(
    PolicyConfig,
    output_token_value=amounts,
    decode_age_price=amounts,
    estimate_ttl_ns=st.integers(1, 2**63 - 1),
    newcomer_memory=st.sampled_from(NEWCOMER_MEMORIES),
)


@given(policies)
def test_a_draft_that_an_address_gives_is_the_one_that_was_put_there(policy: PolicyConfig) -> None:
    changes = differences(BALANCED, policy.as_dict())
    query = urllib.parse.urlencode({"draft": draft_text(changes)})
    found = draft_in(f"?{query}&preview=x")
    assert found.problem == ""
    values = {name: parse_entry(COEFFICIENT_BY_NAME[name], entry) for name, entry in found.entries.items()}
    assert PolicyConfig.balanced().merged(values) == policy


@given(policies)
def test_all_of_a_policy_in_one_text_reads_back_as_the_policy(policy: PolicyConfig) -> None:
    found = draft_in(f"?{urllib.parse.urlencode({'draft': all_text(policy.as_dict())})}")
    assert set(found.entries) == {c.name for c in COEFFICIENTS}
    values = {name: parse_entry(COEFFICIENT_BY_NAME[name], entry) for name, entry in found.entries.items()}
    assert PolicyConfig(**values) == policy


def test_what_cannot_be_used_is_named_and_the_rest_is_taken() -> None:
    found = draft_in("?draft=token_fairness:20,<img src=x>:3,decode_age_price:-1,newcomer_memory:luck,terminal_value")
    assert found.entries == {"token_fairness": "20"}
    for refused in ("<img src=x>:3", "decode_age_price:-1", "newcomer_memory:luck", "terminal_value"):
        assert refused in found.problem


@pytest.mark.parametrize("text", ["x" * (MAX_DRAFT + 1), "token_fairness:" + "1" * 500])
def test_a_draft_that_is_too_long_is_left_out(text: str) -> None:
    found = draft_in(f"?draft={text}")
    assert found.entries == {}
    assert 0 < len(found.problem) < 300


@given(st.text(max_size=60))
def test_no_address_is_too_odd(text: str) -> None:
    draft_in(text)
    preview_in(text)
    trial_in(text)


def test_previews_and_trials_are_named_by_the_address() -> None:
    assert preview_in("?preview=0abc-1&draft=") == "0abc-1"
    assert preview_in("?preview=../../etc") is None
    assert trial_in("?trial=5") == 5
    assert trial_in("?trial=five") is None
