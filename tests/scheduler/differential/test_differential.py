"""A slice of the differential run, and the proof that it would notice: every planted fault is found."""

from __future__ import annotations

import collections

import pytest

from tests.scheduler.differential.drive import run_scenario
from tests.scheduler.differential.faults import FAULTS
from tests.scheduler.differential.planting import noticed
from tests.scheduler.differential.preference_faults import PREFERENCE_FAULTS
from tests.scheduler.differential.scenario import learning_scenario, level_scenario, pooled_scenario

SLICE = 40
PLANS = 60


def test_both_schedulers_agree_over_a_slice_of_the_scenarios():
    seen, plans = collections.Counter(), 0
    for seed in range(SLICE):
        report = run_scenario(seed, PLANS)
        assert report.difference is None, report.difference
        seen += report.seen
        plans += report.plans
    assert plans > SLICE * PLANS // 2
    for reason in ("ordinary", "discovery", "solo_prefill", "timing_refresh", "acceptance_learning", "token_budget"):
        assert seen[f"reason {reason}"], f"the slice has no plan of reason {reason}"
    for prompts in range(5):
        assert seen[f"prompts {prompts}"], f"the slice has no plan of {prompts} prompts"


def test_both_schedulers_agree_where_drafts_of_different_depths_tie():
    seen = collections.Counter()
    for seed in range(8, 13):  # in most of these the order of equal drafts changes a decision
        report = run_scenario(seed, PLANS, make=level_scenario)
        assert report.difference is None, report.difference
        seen += report.seen
    assert seen["rounds ragged host adaptive"]
    assert seen["rounds ragged device adaptive"]


def test_both_schedulers_agree_where_acceptance_probes_are_common():
    learnt = 0
    for seed in range(1, 7):
        report = run_scenario(seed, PLANS, make=learning_scenario)
        assert report.difference is None, report.difference
        learnt += report.seen["reason acceptance_learning"]
    assert learnt >= 8


def test_both_schedulers_agree_where_new_requests_start_from_the_pool():
    seen = collections.Counter()
    for seed in range(8):
        report = run_scenario(seed, PLANS, make=pooled_scenario)
        assert report.difference is None, report.difference
        seen += report.seen
    assert seen["rounds ragged host adaptive"]
    assert seen["rounds ragged device adaptive"]


@pytest.mark.parametrize("fault", [*FAULTS, *PREFERENCE_FAULTS], ids=lambda fault: fault.name)
def test_a_planted_fault_is_noticed(fault):
    assert noticed(fault) is not None
