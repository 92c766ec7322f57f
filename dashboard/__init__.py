"""The control room: what the scheduler decided, why, and the policy form. Reads the store, speaks to control."""

from dashboard.app import create_dashboard

__all__ = ["create_dashboard"]
