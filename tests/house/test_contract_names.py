"""docs/contracts.md and the code name the same commands, routes, columns and metrics."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import click
import pytest
import sqlalchemy as sa

from service.api.routes import ROUTES
from service.cli import main
from service.store.database import upgrade
from service.store.tables import metadata
from service.telemetry.metric_table import METRICS


@pytest.fixture(scope="module")
def sections(root: pathlib.Path) -> dict[str, str]:
    text = (root / "docs" / "contracts.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def documented_columns(section: str) -> dict[str, list[str]]:
    """Each table's or view's columns, in order."""
    found = re.findall(r"^- `(\w+)`(?: \(.*?\))?: ((?:.|\n  )+)", section, flags=re.MULTILINE)
    return {table: [name.strip() for name in columns.split(",")] for table, columns in found}


def test_every_table_and_column_is_documented_and_exists(sections, tmp_path):
    url = f"sqlite:///{tmp_path}/helios.db"
    upgrade(url)
    engine = sa.create_engine(url)
    inspector = sa.inspect(engine)
    names = [*inspector.get_table_names(), *inspector.get_view_names()]
    made = {name: {column["name"] for column in inspector.get_columns(name)} for name in names}
    made.pop("alembic_version")
    engine.dispose()
    documented = documented_columns(sections["SQL"])
    assert {name: set(columns) for name, columns in documented.items()} == made
    declared = {table.name: {column.name for column in table.columns} for table in metadata.tables.values()}
    assert {name: columns for name, columns in made.items() if name in declared} == declared


def test_every_metric_is_documented_with_its_labels_and_type(sections):
    documented = set(re.findall(r"^- `([a-z_]+(?:\{[a-z_,]+\})?)` (\w+)$", sections["Metrics"], flags=re.MULTILINE))
    labels = {metric.name: "{" + ",".join(metric.label_names) + "}" if metric.labels else "" for metric in METRICS}
    assert documented == {(metric.name + labels[metric.name], metric.type.value) for metric in METRICS}


def test_every_route_is_documented(sections):
    documented = set(re.findall(r"`(GET|PUT|POST|DELETE) (/[^`]*)`", sections["HTTP"].partition("\n\n- Lists")[0]))
    served = {
        (str(getattr(method, "value", method)), re.sub(r":\w+\}", "}", path))
        for handler in ROUTES
        for path in handler.paths
        for method in handler.http_methods
    }
    assert documented == {route for route in served if route[0] not in ("HEAD", "OPTIONS")}


def options(command: click.Command, path: str = "helios") -> Iterator[tuple[str, set[str]]]:
    """Every command that does something, with its long options."""
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from options(child, f"{path} {name}")
    else:
        names = (name for option in command.params for name in (*option.opts, *option.secondary_opts))
        yield path, {name for name in names if name.startswith("--")}


def test_every_command_and_option_is_documented(sections):
    rows = re.findall(r"^\| `(helios [a-z ]+)` \| `([^`]*)` \|$", sections["Command line"], flags=re.MULTILINE)
    assert {name: set(text.split()) for name, text in rows} == dict(options(main))
