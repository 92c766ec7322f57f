"""A policy change takes effect between two plans, whole, and can be withdrawn."""

from __future__ import annotations

import itertools

import pytest

from scheduler.policy import PolicyConfig
from service.ipc.messages import ConfigurePolicy, Hello, PolicyAcknowledged
from service.journal.records import (
    PolicyApplied,
)

MS = 1_000_000


def configure(rig, version, **changes):
    coefficients = {**PolicyConfig().as_dict(), **changes}
    rig.transport.inbox.append((b"A", ConfigurePolicy(version, coefficients)))


def acknowledgements(rig):
    return [e for _, e in rig.transport.sent if isinstance(e, PolicyAcknowledged)]


def test_a_policy_change_holds_from_the_next_plan_and_names_the_last_fence(rig):
    rig.device.automatic = False
    rig.submit("a", output=3)
    rig.step()
    configure(rig, 2, output_token_value=7.0)
    rig.step()
    assert acknowledgements(rig) == [PolicyAcknowledged(2, 1)]
    rig.device.automatic = True
    rig.settle()
    assert [plan.policy_version for plan in rig.plans()] == [1, 2, 2]
    first, second = rig.journal.of(PolicyApplied)
    assert (first.version, first.fence, second.version, second.fence) == (1, 0, 2, 1)
    assert second.coefficients["output_token_value"] == 7.0
    assert rig.metric("flare_scheduler_policy", coefficient="output_token_value") == 7.0
    assert rig.metric("flare_scheduler_policy_version") == 2


def test_a_plan_of_the_same_iteration_is_made_under_the_new_policy(rig):
    configure(rig, 2, output_token_value=7.0)
    rig.submit("a", output=1)
    rig.step()
    assert [plan.policy_version for plan in rig.plans()] == [2]
    assert rig.core.scheduler.policy.output_token_value == 7.0


@pytest.mark.parametrize("bad", [{"token_fairness": -1.0}, {"decode_age_price": float("nan")}, {"no_such": 1.0}])
def test_one_bad_coefficient_changes_nothing(rig, bad):
    configure(rig, 2, output_token_value=7.0, delivery_fairness=9.0, **bad)
    rig.submit("a")
    rig.settle()
    (answer,) = acknowledgements(rig)
    assert next(iter(bad)) in answer.error
    assert {plan.policy_version for plan in rig.plans()} == {1}
    assert rig.core.scheduler.policy == PolicyConfig()
    assert len(rig.journal.of(PolicyApplied)) == 1


def test_a_hundred_changes_a_second_under_load_give_each_plan_one_version_and_its_prices(rig):
    values = {1: PolicyConfig().output_token_value}
    rig.submit("a", output=200)
    for version in range(2, 102):
        values[version] = float(version)
        configure(
            rig,
            version,
            output_token_value=values[version],
            token_fairness=0.0,
            delivery_fairness=0.0,
            decode_age_price=0.0,
        )
        rig.step()
    rig.settle()
    decodes = [plan for plan in rig.plans() if plan.shape.kind == "decode" and plan.policy_version > 1]
    assert len({plan.policy_version for plan in decodes}) > 90
    for plan in decodes:
        assert plan.lanes[0].lane_value == pytest.approx(values[plan.policy_version])


def test_a_policy_version_that_went_back_is_refused_and_a_repeated_one_is_acknowledged_again(rig):
    configure(rig, 3, output_token_value=7.0)
    configure(rig, 2, output_token_value=8.0)
    configure(rig, 3, output_token_value=7.0)
    configure(rig, 3, output_token_value=9.0)
    rig.step()
    assert [a.error is None for a in acknowledgements(rig)] == [True, False, True, False]
    assert rig.core.policy.output_token_value == 7.0
    assert len(rig.journal.of(PolicyApplied)) == 2


BALANCED = PolicyConfig().as_dict()
CHANGED = {2: {**BALANCED, "token_fairness": 2.0}, 3: {**BALANCED, "token_fairness": 3.0}}


def tell(rig, version, withdraws=None):
    rig.transport.inbox.append((b"A", ConfigurePolicy(version, CHANGED.get(version, BALANCED), withdraws)))


def in_force(rig):
    assert rig.core.ready.policy_version == rig.core.policy_version
    assert (
        rig.core.scheduler.policy == rig.core.policy == PolicyConfig(**CHANGED.get(rig.core.policy_version, BALANCED))
    )
    return rig.core.policy_version


def test_the_engine_goes_back_from_a_withdrawn_version_and_says_so(rig):
    tell(rig, 2)
    tell(rig, 1, withdraws=2)
    rig.transport.inbox.append((b"A", Hello("w")))
    rig.step()
    assert [(a.version, a.withdraws, a.error) for a in acknowledgements(rig)] == [(2, None, None), (1, 2, None)]
    assert in_force(rig) == 1
    assert [applied.version for applied in rig.journal.of(PolicyApplied)] == [1, 2, 1]
    ready = rig.transport.sent[-1][1]
    assert (ready.policy_version, ready.policy_withdrawn) == (1, 2)
    assert rig.metric("flare_scheduler_policy_version") == 1


def test_only_versions_up_to_the_withdrawn_one_are_left(rig):
    tell(rig, 3)
    tell(rig, 1, withdraws=2)
    rig.step()
    assert [a.error is None for a in acknowledgements(rig)] == [True, False]
    assert in_force(rig) == 3


@pytest.mark.parametrize(
    ("connections", "expected"),
    [
        (([(2, None)], [(1, 2)]), {1}),
        (([(2, None), (1, 2)], [(3, None)]), {3}),
        (([(2, None), (1, 2)], [(3, None), (1, 3)]), {1}),
        (([(2, None)], [(3, None), (1, 3)]), {1}),
        (([(2, None)], [(3, None), (2, 3)]), {2}),
        (([(2, None), (3, None)], [(2, None)]), {3}),
    ],
)
def test_messages_of_two_connections_end_the_same_in_every_order(make_rig, connections, expected):
    first, second = connections
    ends = set()
    for places in itertools.combinations(range(len(first) + len(second)), len(first)):
        rig, left, right = make_rig(), iter(first), iter(second)
        for place in range(len(first) + len(second)):
            tell(rig, *next(left if place in places else right))
            rig.step()
        ends.add(in_force(rig))
    assert ends == expected
