"""docs/sql-schema.md names every table, view and column of both databases, with its type and whether it may be NULL."""

from __future__ import annotations

import pathlib
import re

import pytest
import sqlalchemy as sa

from service.store.engines import read_transaction

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "sql-schema.md"
ROW = re.compile(
    r"^\| (?!column )(?P<name>\w+) \| (?P<type>\w+) \|(?: (?P<null>yes|) \|)? (?P<meaning>\S.*) \|$", re.MULTILINE
)
SQLITE_COLUMNS = 'SELECT name, type, "notnull" FROM pragma_table_info(?) ORDER BY cid'
POSTGRESQL_COLUMNS = (
    "SELECT column_name, data_type, is_nullable = 'NO' FROM information_schema.columns"
    " WHERE table_schema = current_schema() AND table_name = %s ORDER BY ordinal_position"
)


def types(dialect):
    """What the page's types are called in a database."""
    rows = re.findall(
        r"^\| (\w+) \| (\w+|\(none\)) \| ([a-z ]+) \| .*\|$", PAGE.read_text().partition("## Tables")[0], re.MULTILINE
    )
    return {row[0]: row[1] if dialect == "sqlite" else row[2] for row in rows if row[0] != "type"}


def documented():
    """(name, whether it is a view) -> [(column, type, may be NULL)], as the page has them."""
    sections = re.split(r"^### (\w+)( \(view\))?$", PAGE.read_text(), flags=re.MULTILINE)
    return {
        (name, bool(view)): [(row["name"], row["type"], row["null"] == "yes") for row in ROW.finditer(body)]
        for name, view, body in zip(sections[1::3], sections[2::3], sections[3::3], strict=True)
    }


PARTITION = re.compile(r"^plan\w+_(\d{8}|default)$")


def columns(connection, name):
    if connection.dialect.name == "sqlite":
        return connection.exec_driver_sql(SQLITE_COLUMNS, (name,)).all()
    return connection.exec_driver_sql(POSTGRESQL_COLUMNS, (name,)).all()


def test_every_table_and_view_is_there(any_store):
    with read_transaction(any_store) as connection:
        inspector = sa.inspect(connection)
        tables = {(name, False) for name in inspector.get_table_names() if not PARTITION.match(name)}
        views = {(name, True) for name in inspector.get_view_names()}
    assert set(documented()) == (tables | views) - {("alembic_version", False)}


def test_every_column_has_its_type_and_says_whether_it_may_be_null(any_store):
    called = types(any_store.dialect.name)
    with read_transaction(any_store) as connection:
        for (name, is_view), everything in documented().items():
            found = sorted(columns(connection, name))  # an added column stands where each database puts it
            page = sorted(column for column in everything if called[column[1]] != "(none)")
            assert [row[0] for row in found] == [row[0] for row in page], name
            for (column, real, required), (_, kind, null) in zip(found, page, strict=True):
                # SQLite says nothing, or since 3.41 only a rough class, of what a view computes.
                if real in set(called.values()) or any_store.dialect.name == "postgresql" or not is_view:
                    assert real == called[kind], (name, column)
                if not is_view:
                    assert required != null, (name, column)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| fence | bigint |  | number", "| fence | text |  | number"),
        ("| fence | bigint |  | number", "| fence | bigint | yes | number"),
        ("| since_arrival_ms | float |", "| since_arrival_us | float |"),
    ],
)
def test_a_page_that_is_wrong_is_noticed(old, new, any_store, tmp_path, monkeypatch):
    text = PAGE.read_text()
    assert text.count(old) == 1
    wrong = tmp_path / "page.md"
    wrong.write_text(text.replace(old, new))
    monkeypatch.setitem(globals(), "PAGE", wrong)
    with pytest.raises(AssertionError):
        test_every_column_has_its_type_and_says_whether_it_may_be_null(any_store)
