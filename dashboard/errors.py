"""Typed errors of the dashboard.

DashboardError
└── RefusedInput    a callback was called with a value that the page never offers; answered with HTTP 422
"""

from __future__ import annotations


class DashboardError(Exception):
    """Base of every error that the dashboard raises on purpose."""


class RefusedInput(DashboardError, ValueError):
    """A callback's input lies outside what the page offers; `name` says which input, `problem` what is allowed."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"{name}: {problem}")
