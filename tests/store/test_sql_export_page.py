"""docs/sql-export.md: each example runs and gives the rows that the store holds."""

from __future__ import annotations

import pathlib
import re
import shlex

import duckdb
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from factories import fill_store

from service.cli import main
from service.store.engines import open_database, parse_url
from service.store.tables import plans

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "sql-export.md"
COLUMNS = (plans.c.run_id, plans.c.fence, plans.c.committed_at, plans.c.speculation_enabled, plans.c.device_ms)
EXTENSIONS = {"sqlite": "duckdb_extension_sqlite_scanner", "postgresql": "duckdb_extension_postgres_scanner"}


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


EXAMPLES = [(kind, number) for kind in ("sqlite", "postgresql") for number in range(len(blocks(f"python {kind}")))]


def filled_rows(engine):
    fill_store(engine, plans=30, requests=4)
    with engine.connect() as connection:
        found = connection.execute(sa.select(*COLUMNS).order_by(plans.c.run_id, plans.c.fence))
        return [dict(row) for row in found.mappings()]


def records(frame):
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def run(code):
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert str(names["frame"]["committed_at"].dt.tz) == "UTC"
    assert names["frame"]["speculation_enabled"].dtype == bool
    return records(names["frame"])


@pytest.fixture
def extensions(monkeypatch):
    """DuckDB's extensions from their packages, since tests fetch nothing."""
    connect = duckdb.connect

    def with_extension(name):
        package = pytest.importorskip(name, reason="DuckDB's extensions are not packaged for this machine")
        (file,) = pathlib.Path(package.__file__).parent.rglob("*.duckdb_extension")

        def connected():
            session = connect()
            session.execute(f"LOAD '{file}'")
            return session

        monkeypatch.setattr(duckdb, "connect", connected)

    return with_extension


def test_the_page_shows_both_programs_on_both_databases_and_a_file():
    for kind in ("parquet", "sqlite", "postgresql"):
        shown = "\n".join(blocks(f"python {kind}"))
        assert "import duckdb" in shown
        assert "import pandas" in shown


@pytest.mark.parametrize(
    ("kind", "number"),
    [pytest.param(*one, marks=pytest.mark.postgresql) if one[0] == "postgresql" else one for one in EXAMPLES],
)
def test_an_example_on_the_store_gives_its_rows(kind, number, request, tmp_path, monkeypatch, extensions):
    url = parse_url(request.getfixturevalue(f"{kind}_url"))
    engine = open_database(url)
    expected = filled_rows(engine)
    engine.dispose()
    code = blocks(f"python {kind}")[number]
    if "import duckdb" in code:
        extensions(EXTENSIONS[kind])
    if kind == "sqlite":
        monkeypatch.chdir(pathlib.Path(url.database).parent)
    else:
        address = url.set(drivername="postgresql").render_as_string(hide_password=False).partition("://")[2]
        assert "helios@db/helios" in code
        code = code.replace("helios@db/helios", address)
    assert run(code) == expected


def test_the_examples_on_a_file_give_its_rows(any_store, store_url, tmp_path, monkeypatch):
    expected = filled_rows(any_store)
    monkeypatch.chdir(tmp_path)
    (command,) = blocks("sh")
    result = CliRunner().invoke(main, [*shlex.split(command)[1:], "--database", store_url])
    assert result.exit_code == 0, result.stderr
    examples = blocks("python parquet")
    assert len(examples) == 2
    for code in examples:
        assert run(code) == expected
