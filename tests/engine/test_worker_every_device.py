"""Random load on every kind of device: answers are what the script says, nothing is held, every count agrees."""

from __future__ import annotations

import random

import pytest

from scheduler.shapes import Allocation
from service.ipc.messages import Accepted

MS = 1_000_000
DEVICES = {
    "plain": {},
    "states": {"states": True},
    "states in a narrow pool": {"states": True, "pages": 20, "rows": 3},
    "states in a tiny pool": {"states": True, "pages": 14, "rows": 1, "slots": 4},
    "drafts": {"drafts": 3},
    "copies": {"drafts": 3, "learned": False},
    "drafts, host": {"drafts": 4, "allocation": Allocation.HOST},
    "drafts, device, states": {"drafts": 4, "allocation": Allocation.DEVICE, "states": True},
    "all of it in a narrow pool": {"drafts": 3, "states": True, "pages": 20, "rows": 2, "scored": True},
    "fixed": {"drafts": 3, "verification": "fixed:4"},
}


def script(first: int) -> list[int]:
    return [40 + (first * 7 + place * place) % 50 for place in range(400)]


class Load:
    """Submits and cancels at random, with two clients."""

    def __init__(self, rig, seed: int) -> None:
        self.rig, self.random = rig, random.Random(seed)
        self.expected: dict[str, list[int]] = {}
        self.aborted: set[str] = set()

    def submit(self) -> None:
        choose, rig = self.random, self.rig
        first = choose.randrange(5, 40)
        name, prompt, output = f"r{len(self.expected)}", choose.randrange(1, 110), choose.randrange(1, 60)
        rig.device.scripts[first] = [*script(first)[: first * 2], 1]
        boundaries = sorted(choose.sample(range(1, prompt), min(prompt - 1, choose.randrange(3))))
        scored = choose.choice([None, 0]) if any(s.kind.value == "scored_prefill" for s in rig.device.shapes) else None
        rig.submit(
            name, prompt, output, choose.choice([b"A", b"B"]), first=first, boundaries=boundaries,
            host_stop=choose.random() < 0.2, prompt_logprobs=scored,
        )  # fmt: skip
        self.expected[name] = script(first)[: min(output, first * 2)]

    def step(self) -> None:
        choose, rig = self.random, self.rig
        match choose.randrange(10):
            case 0 | 1 | 2:
                self.submit()
            case 3 if self.expected:
                name = choose.choice(list(self.expected))
                self.aborted.add(name)
                for client in (b"A", b"B"):
                    rig.cancel(name, choose.choice(["abort", "stop"]), client)
            case _:
                if rig.device.running is not None:
                    rig.device.right = choose.randrange(5)
                    rig.device.copied = choose.randrange(4)
                    rig.device.finish(choose.randrange(1, 20 * MS))
        rig.step()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("device", DEVICES)
def test_every_answer_is_the_scripts_and_nothing_stays(make_rig, device, seed):
    rig = make_rig(**DEVICES[device])
    rig.device.automatic = False
    load = Load(rig, seed)
    for _ in range(160):
        load.step()
    rig.device.automatic = True
    rig.settle(20_000)
    assert rig.device.held_pages() == 0
    assert rig.core.scheduler.resident_count == 0
    assert not rig.core.leaving
    accepted = [e.request_id for _, e in rig.transport.sent if isinstance(e, Accepted)]
    assert len(accepted) > 20
    for name in accepted:
        text, expected = rig.text(name), load.expected[name]
        assert text == expected[: len(text)]
        assert len(text) == len(expected) or rig.ending(name).finish_reason in ("abort", "stop")
        if name not in load.aborted:
            assert text == expected
    endings = [rig.ending(name) for name in accepted]
    lanes = [lane for done in rig.completions() for lane in done.lanes]
    committed = sum(lane.committed_tokens for lane in lanes)
    assert rig.metric("flare_output_tokens_total") == committed == sum(e.output_tokens for e in endings)
    assert rig.metric("flare_kv_pages_used") == 0
    assert all(0 <= lane.accepted_tokens <= lane.offered_tokens <= lane.draft_tokens for lane in lanes)
    assert all(lane.accepted_tokens <= lane.committed_tokens for lane in lanes)
    assert len(rig.plans()) == len(rig.completions())
    assert all(ending.preemptions <= 1 for ending in endings)
