"""A checkpoint taken over by the reference: from then on both schedulers decide alike, whatever was going on."""

from __future__ import annotations

import collections

import pytest

from service.why.reference_state import reference_from
from tests.scheduler.differential import drive
from tests.scheduler.differential.pair import Pair
from tests.scheduler.differential.scenario import (
    learning_scenario,
    level_scenario,
    make_scenario,
    preferring_scenario,
)


class ChangingOver(Pair):
    """At each restart the reference is thrown away and made anew from the fast side's checkpoint."""

    changes = 0

    def restart(self, scenario):
        super().restart(scenario)
        self.plain = reference_from(self.fast.checkpoint())
        self.compare_states()
        ChangingOver.changes += 1


def often(make):
    def scenario(seed):
        made = make(seed)
        made.rates["restart"] = 0.25
        return made

    return scenario


@pytest.mark.parametrize(
    ("make", "seeds"),
    [
        (make_scenario, range(100, 110)),
        (preferring_scenario, range(100, 106)),
        (level_scenario, range(8, 11)),
        (learning_scenario, range(5, 8)),
    ],
    ids=["specified", "preferring", "ties", "learning"],
)
def test_the_reference_goes_on_from_any_checkpoint(monkeypatch, make, seeds):
    monkeypatch.setattr(drive, "Pair", ChangingOver)
    monkeypatch.setattr(ChangingOver, "changes", 0)
    seen = collections.Counter()
    for seed in seeds:
        report = drive.run_scenario(seed, 60, make=often(make))
        assert report.difference is None, report.difference
        seen += report.seen
    assert ChangingOver.changes > 3 * len(seeds)
