"""Plan page: one decision, what it was chosen over, and why."""

from dashboard.pages.plan.page import page

__all__ = ["page"]
