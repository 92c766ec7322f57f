"""Timeline page: the last plans as bars and as a table, live while requests run."""

from dashboard.pages.timeline.callbacks import register
from dashboard.pages.timeline.layout import layout

__all__ = ["layout", "register"]
