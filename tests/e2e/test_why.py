"""A real server's decisions: every one is derived again, and what a bundle tells of them holds no secret."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import zipfile
import zlib

import pytest
import sqlalchemy as sa

from tests.e2e.byte_server import MODEL, MODEL_PATH, OpenStream, answers, long_prompt, short_prompt
from tests.e2e.helios_server import serving

pytestmark = [pytest.mark.e2e, pytest.mark.postgresql, pytest.mark.timeout(300)]

SECRET = "xyzzy-plugh-4711"
PASSWORD = "hunter2-swordfish"
DRAFTS = ("--draft-tokens", "3", "--speculative-token-capacity", "16", "--draft-allocation", "device")
OPTIONS = ("--model", str(MODEL_PATH), "--request-slots", "4", "--threads", "1", *DRAFTS, "--mixed-prefill")


def helios(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def serve(store: str, folder: pathlib.Path) -> list[str]:
    """Streams, one that its client leaves, a change of the policy, and secrets; returns the answers' texts."""
    with serving(folder, "--database", store, *OPTIONS) as server:
        leaving = OpenStream(server, long_prompt(3), 400)
        leaving.take(5)
        prompts = [long_prompt(0), long_prompt(1), short_prompt(5)]
        texts = [answer.text for answer in answers(server, prompts, [40] * 3)]
        leaving.leave()
        tag = server.http.get("/api/policy").headers["ETag"]
        changed = server.http.put("/api/policy", json={"preset": "throughput"}, headers={"If-Match": tag})
        assert changed.status_code == 200, changed.text
        headers = {"Authorization": f"Bearer {SECRET}", "X-Secret": SECRET, "User-Agent": SECRET}
        body = {"model": MODEL, "prompt": f"the word is {SECRET}", "max_tokens": 30, "temperature": 0, "echo": True}
        told = server.http.post("/v1/completions", json=body, headers=headers, timeout=60).json()
        assert SECRET in told["choices"][0]["text"]
        texts.append(told["choices"][0]["text"])
        assert server.stop() == 0
    return texts


def members_of(path: pathlib.Path) -> dict[str, bytes]:
    """The zip, its members, and what is compressed inside them."""
    with zipfile.ZipFile(path) as bundle:
        found = {name: bundle.read(name) for name in bundle.namelist()}
    inside = {f"{name} inside": zlib.decompress(data) for name, data in found.items() if name.startswith("log/")}
    assert inside
    return found | inside | {"the file itself": path.read_bytes()}


def test_every_decision_of_a_server_is_derived_again_and_a_bundle_of_it_holds_no_secret(empty_postgresql_url, tmp_path):
    # The server trusts its clients, so any password will do.
    store = sa.make_url(empty_postgresql_url).set(password=PASSWORD).render_as_string(hide_password=False)
    texts = serve(store, tmp_path / "data")
    kinds = helios("sql", "SELECT DISTINCT run_id, kind FROM plans ORDER BY kind", "--json", "--database", store)
    assert {"mixed", "speculative"} <= {row["kind"] for row in json.loads(kinds)}
    (run_id,) = {row["run_id"] for row in json.loads(kinds)}

    found = json.loads(helios("audit", run_id, "--database", store, "--json"))
    assert (found["difference"], found["skipped"], found["unrecorded"]) == (None, [], 0)
    assert found["decisions"] > 40

    out = tmp_path / "bug.zip"
    told = helios("bundle", "--around", f"{run_id}/30", "--fences", "1000", "--out", str(out), "--database", store)
    assert "Re-executed: the same" in told
    secrets = [SECRET, PASSWORD, *(text[-20:] for text in texts), long_prompt(0)[:20], short_prompt(5)[:20]]
    for name, data in members_of(out).items():
        for secret in secrets:
            token_ids = list(secret.encode())
            for form in (secret, json.dumps(secret)[1:-1], json.dumps(token_ids)[1:-1]):
                assert form.encode() not in data, (name, secret)
            assert bytes(token_ids) not in data
    assert "Re-executed: the same" in helios("explain", f"{run_id}/30", "--bundle", str(out))
    again = json.loads(helios("audit", "--bundle", str(out), "--json"))
    assert (again["difference"], again["decisions"]) == (None, found["decisions"])
