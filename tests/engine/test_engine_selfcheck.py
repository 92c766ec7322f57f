"""The self-check's process: what it says where there is no CUDA, and a load that does not end well."""

from __future__ import annotations

import json

import pytest

from gpu.selfcheck.outcome import CheckFailed
from service.engine import selfcheck, selfcheck_serving
from service.engine.selfcheck_serving import Load, serve_load

LOAD = Load(model="tiny", streams=2, prompt_tokens=5, output_tokens=4, dtype="float32")


def test_without_cuda_it_says_what_to_do(capsys, monkeypatch):
    monkeypatch.setattr("torch.version.cuda", None)
    assert selfcheck.main("cuda") == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "--device cpu" in json.loads(lines[0])["unavailable"]


def test_a_load_is_served_to_its_end(tmp_path):
    found = serve_load(LOAD, "cpu", tmp_path)
    assert "plan calls, longest" in found
    assert "device busy" in found


def test_answers_that_are_not_complete_fail(tmp_path, monkeypatch):
    send = selfcheck_serving._Client.send

    def lose(self, client, events):
        return send(self, client, [event for event in events if getattr(event, "request_id", "") != "stream-1"])

    monkeypatch.setattr(selfcheck_serving._Client, "send", lose)
    monkeypatch.setattr(selfcheck_serving, "_DEADLINE_S", 0.5)
    with pytest.raises(CheckFailed, match="1 streams have ended"):
        serve_load(LOAD, "cpu", tmp_path)


def test_an_exit_code_tells_of_a_failure(capsys, monkeypatch):
    from gpu.selfcheck.outcome import NamedCheck

    def fail() -> str:
        raise CheckFailed("off by one")

    checks = (NamedCheck("good", lambda: "fine"), NamedCheck("bad", fail))
    monkeypatch.setattr(selfcheck, "all_checks", lambda device, folder: checks)
    assert selfcheck.main("cpu") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"checks": ["good", "bad"]}
    assert [line["status"] for line in lines if "status" in line] == ["passed", "failed"]
