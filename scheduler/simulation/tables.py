"""CSV text to rows of checked values. Files are read by the caller; `name` is what error messages call them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence

from scheduler.simulation.errors import InvalidTable

LARGEST_COUNT = 2**31 - 1


class Row:
    """One line of a CSV file, by column name."""

    def __init__(self, name: str, line: int, values: dict[str, str]) -> None:
        self._name = name
        self._line = line
        self._values = values

    def text(self, column: str) -> str:
        """The cell, without surrounding blanks; empty when the column is missing."""
        return (self._values.get(column) or "").strip()

    def has(self, column: str) -> bool:
        """Whether the file has this column."""
        return column in self._values

    @property
    def joined(self) -> str:
        """All cells in one text."""
        return " ".join(self._values.values())

    def number(self, column: str, minimum: float = 0.0, maximum: float = math.inf) -> float:
        """A finite number from `minimum` to `maximum`; raises InvalidTable."""
        try:
            value = float(self.text(column))
        except ValueError:
            raise self.wrong(column, "a number") from None
        if not (math.isfinite(value) and minimum <= value <= maximum):
            upper = "" if maximum == math.inf else f" and at most {maximum:g}"
            raise self.wrong(column, f"a finite number of at least {minimum:g}{upper}")
        return value

    def count(self, column: str, minimum: int = 0) -> int:
        """A whole number from `minimum` to 2**31 - 1; raises InvalidTable."""
        text = self.text(column)
        if not (text.isascii() and text.isdigit() and minimum <= int(text[:12]) <= LARGEST_COUNT and len(text) <= 12):
            raise self.wrong(column, f"a whole number from {minimum} to {LARGEST_COUNT}")
        return int(text)

    def wrong(self, column: str, wanted: str) -> InvalidTable:
        """The error that says what this cell should be."""
        return InvalidTable(f"{self._name}, line {self._line}: {column} is {self.text(column)!r}; it must be {wanted}")


def read_rows(text: str, name: str, columns: Sequence[str]) -> Iterator[Row]:
    """The data rows of CSV `text`. Raises InvalidTable for a missing column, a malformed line or no rows at all."""
    reader = csv.reader(text.splitlines(), strict=True)
    header: list[str] | None = None
    found = False
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _checked_header(cells, name, columns)
                continue
            if len(cells) != len(header):
                raise InvalidTable(f"{name}, line {reader.line_num}: {len(cells)} values for {len(header)} columns")
            found = True
            yield Row(name, reader.line_num, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise InvalidTable(f"{name}, line {reader.line_num}: {error}") from None
    if header is None:
        needs = f"; it needs the columns {', '.join(columns)}" if columns else ""
        raise InvalidTable(f"{name} is empty{needs}")
    if not found:
        raise InvalidTable(f"{name} has a header but no rows")


def _checked_header(cells: list[str], name: str, columns: Sequence[str]) -> list[str]:
    header = [cell.strip().removeprefix("\ufeff") for cell in cells]
    twice = sorted({column for column in header if column and header.count(column) > 1})
    if twice:
        raise InvalidTable(f"{name} has the column {twice[0]} twice")
    missing = [column for column in columns if column not in header]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise InvalidTable(f"{name} lacks the column{plural} {', '.join(missing)}; it has {', '.join(header)}")
    return header
