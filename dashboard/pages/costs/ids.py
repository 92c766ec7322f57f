"""Component ids of the Costs page."""

from __future__ import annotations

RUN = "costs-run"
RUN_ASKED = "costs-run-asked"
NOTE = "costs-note"
MAPS = "costs-maps"
CHOSEN = "costs-chosen"
DRIFT = "costs-drift"
ERRORS = "costs-errors"
GRID = "costs-grid"
EMPTY = "costs-empty"
