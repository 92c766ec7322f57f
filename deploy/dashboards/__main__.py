"""`python -m deploy.dashboards` writes deploy/grafana/dashboards/*.json and removes what is no longer made."""

from __future__ import annotations

import pathlib
import sys

from deploy.dashboards.board import to_json
from deploy.dashboards.decisions import decisions
from deploy.dashboards.exploration import exploration
from deploy.dashboards.pipeline import pipeline
from deploy.dashboards.plans import plans
from deploy.dashboards.serving import serving
from deploy.dashboards.speculation import speculation

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "grafana" / "dashboards"
BOARDS = (serving, decisions, exploration, speculation, pipeline, plans)


def files() -> dict[str, str]:
    """Every file's text by its name."""
    return {f"{make.__name__}.json": to_json(make()) for make in BOARDS}


def main() -> int:
    """Write them."""
    made = files()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.json"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(made)} dashboards to {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
