"""Slow, obvious twins of the fast path, written from the formulas alone. Only tests and audits import them."""
