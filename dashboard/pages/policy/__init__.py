"""Policy page: every coefficient, changed in a form, applied live, versioned, with who and when."""

from dashboard.pages.policy.callbacks import register
from dashboard.pages.policy.layout import page

__all__ = ["page", "register"]
