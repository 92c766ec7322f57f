"""`python -m tests.scheduler.differential`: many scenarios on both sides; exit 1 on the first difference."""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import sys
import time

from tests.scheduler.differential.drive import run_scenario
from tests.scheduler.differential.scenario import (
    any_scenario,
    learning_scenario,
    level_scenario,
    make_scenario,
    preferring_scenario,
)

KINDS = {
    "any": any_scenario,
    "specified": make_scenario,
    "preferring": preferring_scenario,
    "level": level_scenario,
    "learning": learning_scenario,
}


def work(task):
    seed, plans, kind = task
    return run_scenario(seed, plans, make=KINDS[kind])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=1056)
    parser.add_argument("--plans", type=int, default=230, help="plans of each scenario, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, default="any", help="what the scenarios are about")
    arguments = parser.parse_args()
    tasks = [(arguments.seed + i, arguments.plans, arguments.kind) for i in range(arguments.scenarios)]
    plans, done, seen, started = 0, 0, collections.Counter(), time.monotonic()
    with multiprocessing.Pool(arguments.jobs) as pool:
        for report in pool.imap_unordered(work, tasks):
            plans += report.plans
            done += 1
            seen += report.seen
            if done % 50 == 0:
                print(f"{done} scenarios, {plans:,} plans", file=sys.stderr, flush=True)
            if report.difference is not None:
                print(report.difference)
                print(f"\n{done} scenarios, {plans:,} plans, then a difference in scenario {report.seed}")
                sys.exit(1)
    for name, count in sorted(seen.items()):
        print(f"{name:45} {count:9,}")
    seconds = time.monotonic() - started
    print(f"{done:,} scenarios, {plans:,} plans, no difference, {seconds:.0f} s with {arguments.jobs} jobs")


if __name__ == "__main__":
    main()
