"""How fast the dashboard's pages are over a million plans: `helios bench dashboard`.

python benchmarks/bench_dashboard.py [--plans 1000000] [--rounds 5] [--json]
"""

from __future__ import annotations

from service.cli.bench_dashboard import dashboard

if __name__ == "__main__":
    dashboard()
