"""helios keys: a key is printed once, listed without itself, and gone when it is revoked."""

from __future__ import annotations

import json
import pathlib

import pytest
import requests

from service.credentials.key_ring import KeyRing
from service.settings import server_key


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "credentials.json"


def run(helios, command: str, file: pathlib.Path, *more: str):
    return helios("keys", command, "--credentials-file", str(file), *more)


def test_a_key_is_printed_alone_on_standard_output_and_opens_the_server(helios, file):
    result = run(helios, "add", file, "--name", "ann", "--role", "operator")
    assert result.exit_code == 0, result.output
    key = result.stdout.strip()
    assert KeyRing(file).holder(key).name == "ann"
    assert key not in result.stderr
    assert "shown once" in result.stderr


def test_a_list_shows_who_and_nothing_that_opens(helios, file):
    given = ("--name", "app", "--role", "client", "--expires-days", "2", "--json")
    made = json.loads(run(helios, "add", file, *given).stdout)
    result = run(helios, "list", file, "--json")
    (item,) = json.loads(result.stdout)["items"]
    key = made.pop("key")
    assert item == made
    assert set(item) == {"name", "role", "id", "created_at", "expires_at", "state"}
    stored = json.loads(file.read_text())
    for secret in (key, stored["secret"], stored["credentials"][0]["salt"], stored["credentials"][0]["digest"]):
        assert secret not in result.stdout + run(helios, "list", file).stdout
    assert "app" in run(helios, "list", file).stdout


def test_a_revoked_key_is_gone(helios, file):
    key = run(helios, "add", file, "--name", "ann", "--role", "viewer").stdout.strip()
    ring = KeyRing(file)
    gone = json.loads(run(helios, "revoke", file, "--name", "ann", "--json").stdout)
    assert (gone["name"], gone["state"]) == ("ann", "revoked")
    assert ring.holder(key) is None
    assert run(helios, "list", file, "--json").stdout.strip() == json.dumps({"items": []}, indent=2)


@pytest.mark.parametrize(
    ("command", "more", "words"),
    [
        ("add", ("--name", "a b", "--role", "client"), "letters"),
        ("add", ("--name", "ann", "--role", "root"), "--role"),
        ("add", ("--name", "ann", "--role", "client", "--expires-days", "0"), "--expires-days"),
        ("list", (), "there is no"),
        ("revoke", ("--name", "ann"), "there is no"),
    ],
)
def test_a_mistake_is_one_line_with_exit_2(helios, file, command, more, words):
    result = run(helios, command, file, *more)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not file.exists()


def test_commands_show_the_key_of_the_environment():
    assert server_key({"HELIOS_KEY": " k\n"}) == "k"
    assert server_key({}) == ""


def test_a_call_of_the_server_carries_the_key_and_a_refusal_says_what_to_do(helios, monkeypatch):
    seen = []

    def answer(self, method, url, **options):
        seen.append(options["headers"])
        refused = requests.Response()
        refused.status_code = 401
        refused._content = b'{"status": 401, "code": "invalid_api_key", "detail": "x"}'
        return refused

    monkeypatch.setattr(requests.Session, "request", answer)
    result = helios("policy", "show", "--server", "http://127.0.0.1:1", env={"HELIOS_KEY": "the-key"})
    assert seen == [{"Authorization": "Bearer the-key"}]
    assert result.exit_code == 1
    assert "$HELIOS_KEY" in result.stderr
    assert "the-key" not in result.output
