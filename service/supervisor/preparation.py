"""The store, the model and the policy, before the first process starts and before each new engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa

from scheduler.errors import InvalidPolicy
from service.control.errors import ControlError
from service.control.policy import PolicyVersion, resolve_initial_policy
from service.model_source import ModelSourceError, resolve_model
from service.settings import Settings
from service.store.database import open_database, upgrade
from service.store.errors import StoreError
from service.supervisor.errors import ModelRefused, PolicyRefused, StoreRefused


def check_model(settings: Settings) -> str:
    """The name that clients know the model by; its files are there and whole. Raises ModelRefused."""
    try:
        return resolve_model(settings.model).name
    except ModelSourceError as error:
        raise ModelRefused(str(error)) from error


def prepare_store(settings: Settings) -> None:
    """Create or upgrade the database. Raises StoreRefused."""
    try:
        upgrade(settings.database)
    except StoreError as error:
        raise StoreRefused(str(error)) from error


def first_policy(settings: Settings) -> PolicyVersion:
    """The newest applied version, or a new one where a flag differs from it. Raises StoreRefused or PolicyRefused."""
    try:
        with _opened(settings.database) as engine:
            return resolve_initial_policy(engine, settings)
    except InvalidPolicy as error:
        raise PolicyRefused(str(error)) from error
    except (StoreError, ControlError) as error:
        raise StoreRefused(str(error)) from error


@contextlib.contextmanager
def _opened(url: str) -> Iterator[sa.Engine]:
    engine = open_database(url)
    try:
        yield engine
    finally:
        engine.dispose()
