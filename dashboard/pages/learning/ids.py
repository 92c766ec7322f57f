"""Component ids of the Learning page."""

from __future__ import annotations

RUN = "learning-run"
RUN_ASKED = "learning-run-asked"
DEPTH = "learning-depth"
RELIABILITY = "learning-reliability"
BOUNDS = "learning-bounds"
CREDIT = "learning-credit"
SPENT = "learning-spent"
EXPLORING = "learning-exploring"
BOUGHT = "learning-bought"
GRAPHS = "learning-graphs"
EPISODES = "learning-episodes"
EMPTY = "learning-empty"
