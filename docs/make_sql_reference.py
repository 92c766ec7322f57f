"""Makes what the dashboard's SQL page offers: the cookbook's questions, and every table and view with its columns.

Run `python docs/make_sql_reference.py` after a change of docs/sql-cookbook.md or docs/sql-schema.md; a test compares.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

HERE = pathlib.Path(__file__).parent
TARGET = HERE.parent / "dashboard" / "assets" / "sql-reference.json"
DIALECTS = ("sqlite", "postgresql")


def reference() -> dict[str, Any]:
    """`questions` in their order, and `tables`."""
    cookbook, schema = ((HERE / f"sql-{name}.md").read_text(encoding="utf-8") for name in ("cookbook", "schema"))
    return {"questions": questions(cookbook), "tables": tables(schema)}


def questions(page: str) -> list[dict[str, str]]:
    """Each question with its group, how its answer is read, and its statement in both dialects."""
    found = []
    for group, body in _sections(page, "## "):
        for question, text in _sections(body, "### "):
            blocks = re.findall(r"^```sql ?(\w*)\n(.*?)\n```$", text, flags=re.MULTILINE | re.DOTALL)
            statements = {name or dialect: sql for name, sql in blocks for dialect in DIALECTS if name in ("", dialect)}
            how = _plain(text.split("```")[0])
            found.append({"group": group, "question": question, "how": how, **statements})
    return found


def tables(page: str) -> list[dict[str, Any]]:
    """Each table and view with what it is and its columns: [name, type, meaning]."""
    found = []
    for title, text in _sections(page[page.index("\n## Tables") :], "### "):
        about, _, rows = text.partition("\n| column |")
        columns = []
        for line in rows.splitlines()[2:]:
            if not line.startswith("| "):
                break
            cells = [_plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
            columns.append([cells[0], cells[1], " | ".join(cells[3:] if is_table(title) else cells[2:])])
        about = _plain(re.sub(r"Primary key: .*", "", about)).removesuffix(", and with them:")
        found.append({"name": title.removesuffix(" (view)"), "is_view": not is_table(title), "about": about,
                      "columns": columns})  # fmt: skip
    return found


def is_table(title: str) -> bool:
    """Whether a heading names a table."""
    return not title.endswith(" (view)")


def _sections(page: str, mark: str) -> list[tuple[str, str]]:
    parts = re.split(rf"^{mark}", page, flags=re.MULTILINE)[1:]
    return [(title, body) for title, _, body in (part.partition("\n") for part in parts)]


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "").replace("\\|", "|").split())


def text() -> str:
    """The file's text."""
    return json.dumps(reference(), ensure_ascii=False, indent=0, sort_keys=True) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(f"{TARGET}: {len(TARGET.read_bytes()):,} bytes")
