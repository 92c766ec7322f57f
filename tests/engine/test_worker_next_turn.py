"""Conversations over the real CPU device and the byte-level model: the next turn finds what the last one computed."""

from __future__ import annotations

from gpu.draft_heads import SHIPPED
from service.ipc.messages import Sampling
from service.journal.records import RequestAdmitted
from tests.engine.test_worker_real_device import END, RealRig


def byte_rig(directory, **settings) -> RealRig:
    """The shipped byte-level model with its draft head."""
    sizes = {"draft_tokens": 3, "draft_head": SHIPPED / "byte-model.safetensors", "verification": "fixed:4"}
    rig = RealRig(directory, path=SHIPPED.parent / "byte-model", **(sizes | settings))
    rig.device.journal = None
    return rig


def ask(rig, name: str, token_ids: list[int], stop: int) -> list[int]:
    rig.submit(name, token_ids=token_ids, output=60, sampling=Sampling(0.0), stop=[stop])
    rig.settle()
    return rig.text(name)


def test_the_next_turn_starts_at_the_end_of_an_answer_that_ended_inside_a_round(tmp_path, monkeypatch):
    """Greedy conversations whose first answers end at one byte after the other, some of them before accepted drafts."""
    prompt, more = list(b"KING RICHARD:\nMy lord, the"), list(b"\n\nQUEEN:\nAnd")
    bare, rig = byte_rig(tmp_path / "bare", snapshot_rows=0), byte_rig(tmp_path / "rig", snapshot_rows=64)
    results = []
    collect = rig.device.collect
    monkeypatch.setattr(rig.device, "collect", lambda: results.append(collect()) or results[-1])
    try:
        text = ask(bare, "text", prompt, END)
        stops = [byte for place, byte in enumerate(text) if place >= 8 and byte not in text[:place]]
        inside = 0
        for stop in stops:
            results.clear()
            answer = ask(rig, f"{stop}", prompt, stop)
            assert answer == text[: text.index(stop)]
            emitted = [token for done in results if done for lane in done.lanes for token in lane.emitted_tokens]
            inside += len(emitted) > len(answer) + 1
            turn = prompt + answer + more
            assert ask(rig, f"{stop} next", turn, END) == ask(bare, f"{stop} next", turn, END)
            admitted = {record.request_id: record for record in rig.journal.of(RequestAdmitted)}
            assert admitted[f"{stop} next"].cached_tokens == len(prompt) + len(answer)
        assert inside > 0
    finally:
        for one in (bare, rig):
            one.device.shut_down(abandon=False)
    assert rig.device.used_pages() == 0


def test_the_next_turn_starts_at_the_end_of_an_answer_that_a_stop_string_ended(tmp_path):
    """Greedy conversations cut after one byte after the other, told to the engine as late as a service would."""
    prompt, more = list(b"KING RICHARD:\nMy lord, the"), list(b"\n\nQUEEN:\nAnd")
    bare, rig = byte_rig(tmp_path / "bare", snapshot_rows=0), byte_rig(tmp_path / "rig", snapshot_rows=64)
    try:
        text = ask(bare, "text", prompt, END)
        for kept in (3, 8, 9, 10, 11, 17):
            answer, name = text[:kept], f"{kept}"
            rig.submit(name, token_ids=prompt, output=60, sampling=Sampling(0.0), stop=[END], host_stop=True)
            while len(rig.text(name)) <= kept:
                rig.step()
            rig.cancel(name, "stop", answer_tokens=kept)
            rig.settle()
            assert rig.ending(name).finish_reason == "stop"
            turn = prompt + answer + more
            assert ask(rig, f"{kept} next", turn, END) == ask(bare, f"{kept} next", turn, END)
            admitted = {record.request_id: record for record in rig.journal.of(RequestAdmitted)}
            assert admitted[f"{kept} next"].cached_tokens == len(prompt) + kept
    finally:
        for one in (bare, rig):
            one.device.shut_down(abandon=False)
    assert rig.device.used_pages() == 0
