"""helios db."""

from __future__ import annotations

import json


def test_db_says_missing_then_makes_the_store_then_says_current(helios, tmp_path):
    missing = helios("db", "check", "--data-dir", tmp_path, "--json")
    assert (missing.exit_code, json.loads(missing.stdout)["state"]) == (1, "missing")
    assert "helios db upgrade or helios serve creates it" in helios("db", "check", "--data-dir", tmp_path).stdout
    made = helios("db", "upgrade", "--data-dir", tmp_path)
    assert made.exit_code == 0
    assert "upgraded from nothing" in made.stdout
    again = helios("db", "upgrade", "--data-dir", tmp_path)
    assert "already at schema" in again.stdout
    current = helios("db", "check", "--integrity", "--data-dir", tmp_path, "--json")
    assert (current.exit_code, json.loads(current.stdout)["state"]) == (0, "current")


def test_db_refuses_what_is_no_database_with_exit_2(helios, tmp_path):
    path = tmp_path / "letter.db"
    path.write_bytes(b"Dear aunt, " * 1000)
    for command in ("check", "upgrade"):
        result = helios("db", command, "--database", path)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"helios db {command}: ")
        assert result.stderr.count("\n") == 1


def test_db_check_says_whether_the_pages_were_checked(helios, tmp_path):
    command = ("db", "check", "--data-dir", tmp_path)
    assert "integrity not checked: there is no database" in helios(*command, "--integrity").stdout
    helios("db", "upgrade", "--data-dir", tmp_path)
    assert "; integrity ok\n" in helios(*command, "--integrity").stdout
    assert json.loads(helios(*command, "--integrity", "--json").stdout)["integrity"] == "ok"
    assert json.loads(helios(*command, "--json").stdout)["integrity"] == "not checked"
    assert "integrity" not in helios(*command).stdout
