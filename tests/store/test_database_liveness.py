"""A SQLite file that is deleted or replaced while it is open."""

from __future__ import annotations

import pathlib
import shutil

import pytest
import sqlalchemy as sa

from service.store.database import open_database
from service.store.engines import read_transaction, write_transaction
from service.store.errors import StoreReplaced, StoreUnavailable
from service.store.liveness import was_replaced


@pytest.fixture
def opened(sqlite_url):
    path = pathlib.Path(sqlite_url.removeprefix("sqlite:///"))
    engine = open_database(sqlite_url)
    assert not was_replaced(engine)
    with write_transaction(engine) as connection:
        connection.execute(sa.text("DELETE FROM plans"))
    assert not was_replaced(engine)
    yield engine, path
    engine.dispose()


def refuses_writes(engine):
    assert was_replaced(engine)
    with pytest.raises(StoreReplaced, match="removed or replaced; restart the server"), write_transaction(engine):
        pass


def test_a_deleted_file_is_noticed_at_the_next_write_and_not_made_anew(opened):
    engine, path = opened
    path.unlink()
    refuses_writes(engine)
    engine.dispose()
    with pytest.raises(StoreUnavailable), read_transaction(engine):
        pass
    assert not path.exists()


def test_a_deleted_directory_is_noticed(opened):
    engine, path = opened
    moved = path.parent.with_name("elsewhere")
    path.parent.rename(moved)
    refuses_writes(engine)
    moved.rename(path.parent)
    assert not was_replaced(engine)


def test_a_file_that_another_one_was_renamed_over_is_noticed(opened):
    engine, path = opened
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    copy.replace(path)
    refuses_writes(engine)


def test_a_store_without_a_file_is_never_replaced():
    assert not was_replaced(open_database("postgresql://nobody@127.0.0.1:1/helios"))
