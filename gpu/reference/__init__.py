"""Slow, obvious twins of the fast code. Only tests and self checks import them."""
