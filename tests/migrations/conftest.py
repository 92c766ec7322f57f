"""Migration tests change the schema, so each has a PostgreSQL database of its own."""

from __future__ import annotations

import pytest

from service.store.database import upgrade


@pytest.fixture
def postgresql_url(empty_postgresql_url: str) -> str:
    """The address of a fresh, upgraded PostgreSQL store."""
    upgrade(empty_postgresql_url)
    return empty_postgresql_url
