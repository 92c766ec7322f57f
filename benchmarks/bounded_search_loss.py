"""How much the two bounded searches lose against exhaustive enumeration, over random small states.

    python -m benchmarks.bounded_search_loss [--states 5000] [--seed 0] [--json]

Up to six requests each. Losses are shares of the best choice's useful value per ms (before the waiting cost, which can
make a score negative). Adaptive ragged rounds: against the best cohort under the same causal division of rows, and
against the best of all divisions that a host could prescribe. Longer chains: the best complete continuation among the
lanes that the index chose, against the best among all lanes of the stage (the index prices waiting over the first
graph only: after it the scheduler plans again). Each state is decided under random coefficients and under the balanced
policy. Deterministic for a seed; run it from the repository's root.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from rich.console import Console
from rich.progress import track
from rich.table import Table

from scheduler.policy import PolicyConfig
from scheduler.reference.oracle import OracleChoice, OracleState
from scheduler.reference.oracle_bounds import chain_choices, ragged_allocations, ragged_cohorts, sequence_rate
from tests.scheduler.oracle_fast import SLOTS, fast_scheduler
from tests.scheduler.oracle_states import Dice, chain_state, ragged_state

Losses = dict[tuple[str, str], list[float]]


def main() -> None:
    """Measures and prints one row for each search and comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--states", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    losses: Losses = {}
    console = Console(stderr=True)
    for seed in track(range(arguments.seed, arguments.seed + arguments.states), "states", console=console):
        ragged, chain = ragged_state(Dice(seed, dyadic=False)), chain_state(Dice(seed, dyadic=False))
        for policy, changes in (("any", {}), ("balanced", {"policy": PolicyConfig.balanced()})):
            found = *ragged_losses(replace(ragged, **changes)), *chain_losses(replace(chain, **changes))
            for name, loss in found:
                losses.setdefault((name, policy), []).append(loss)
    rows = [summary(*names, found) for names, found in sorted(losses.items())]
    print(json.dumps(rows)) if arguments.json else Console().print(table(rows))


def ragged_losses(state: OracleState) -> Iterator[tuple[str, float]]:
    """Losses of one adaptive ragged round."""
    plan = fast_scheduler(state).plan()
    if plan is None:
        return
    kind = plan.shape.allocation.value
    comparisons: list[tuple[str, Callable[..., Iterator[OracleChoice]]]] = [("cohorts", ragged_cohorts)]
    if kind == "host":
        comparisons.append(("cohorts and divisions", ragged_allocations))
    for name, choices in comparisons:
        best = max(choices(state, 0), key=lambda choice: choice.score)
        yield f"adaptive ragged, {kind}: all {name}", loss_of(plan.score, best.score, best.score + best.parts[4])


def chain_losses(state: OracleState) -> Iterator[tuple[str, float]]:
    """Losses of one prerequisite in front of longer chains, where not all lanes of the stage fit."""
    best = max(chain_choices(state, 0), key=lambda choice: choice.score, default=None)
    if best is None or len(state.in_stage(state.shapes[0].kind.value)) <= state.shapes[0].batch_capacity:
        return
    scheduler = fast_scheduler(state)
    scheduler.plan()
    label = state.shapes[0].label
    *_, chain = [c for c in scheduler.all_candidates() if c[:2] == (label, None)]
    yield "longer chain: index over all cohorts", loss_of(chain[5], best.score, best.score + best.parts[4])
    found, _ = sequence_rate(state, 0, chain[2])
    most, gross = sequence_rate(state, 0, tuple(range(SLOTS)))
    yield "longer chain: complete continuations", loss_of(found, most, gross)


def loss_of(found: float, best: float, gross: float) -> float:
    """What is missing, as a share of the best one's useful value per ms; rounding is no loss."""
    missing = best - found
    return missing / gross if gross > 0.0 and missing > 1e-12 * gross else 0.0


def summary(name: str, policy: str, losses: list[float]) -> dict[str, object]:
    """One comparison's figures."""
    lossless = sum(loss == 0.0 for loss in losses) / len(losses)
    mean = sum(losses) / len(losses)
    return {
        "search": name,
        "policy": policy,
        "states": len(losses),
        "optimal": lossless,
        "mean_loss": mean,
        "largest_loss": max(losses),
    }


def table(rows: list[dict[str, object]]) -> Table:
    """The rows for reading."""
    shown = Table("search", "policy", "states", "optimal", "mean loss", "largest loss")
    for row in rows:
        figures = [f"{row[name]:.4%}" for name in ("optimal", "mean_loss", "largest_loss")]
        shown.add_row(str(row["search"]), str(row["policy"]), f"{row['states']:,}", *figures)
    return shown


if __name__ == "__main__":
    main()
