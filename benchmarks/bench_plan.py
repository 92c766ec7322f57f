"""How long plan() takes with one round in flight: `helios bench plan` as a script, with the same options.

python benchmarks/bench_plan.py [--plans 2000] [--requests 8 ...] [--seed 0] [--no-growth] [--json]
"""

from service.cli.bench import plan

if __name__ == "__main__":
    plan()
