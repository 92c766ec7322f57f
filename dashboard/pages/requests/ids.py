"""Component ids of the Requests page and of one request's page."""

from __future__ import annotations

TEXT = "requests-text"
MODEL = "requests-model"
FINISH = "requests-finish"
RUN = "requests-run"
ORDER = "requests-order"
ASKED = "requests-asked"
NOTE = "requests-note"
GRID = "requests-grid"
PAGER = "requests-pager"
EMPTY = "requests-empty"

SENTENCE = "request-sentence"
PHASES = "request-phases"
LIFE = "request-life"
OPENED = "request-opened"
GAPS = "request-gaps"
WAITS = "request-waits"
PLANS = "request-plans"
