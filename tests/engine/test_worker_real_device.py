"""The worker over the real CPU device and a tiny model: speculation, preemption and caching change no answer."""

from __future__ import annotations

import random
import select
import time

import pytest
import torch
from tiny_checkpoint import write_tiny_checkpoint
from tiny_draft_head import write_tiny_draft_head

from gpu import create_device
from gpu.model.weights import open_source
from scheduler.policy import PolicyConfig
from service.ipc.messages import Sampling
from tests.engine.conftest import Rig

torch.set_num_threads(1)
END = 256
REQUESTS = 6


class RealRig(Rig):
    """A rig over a device that runs by itself."""

    def make_device(self, path, **settings):
        sizes = {"prefill_capacities": (16, 64), "decode_batches": (1, 2, 4), "request_slots": 4, "threads": 1}
        return time.monotonic_ns, create_device(path, **(sizes | settings))

    def check(self) -> None:
        device = self.device
        assert 0 <= device.free_pages() <= device.free_pages() + device.used_pages() <= device.limits.kv_pages

    def settle(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            self.step()
            if self.worker.drained and not len(self.core.table):
                return
            if self.worker.wait_ns():
                select.select([self.device.completion_fd], [], [], 60)
        raise AssertionError("the engine does not come to rest")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a checkpoint, and a draft head for it."""
    directory = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(directory)
    write_tiny_draft_head(directory / "head", open_source(directory).config)
    return directory


@pytest.fixture(scope="module")
def serve(tiny, tmp_path_factory):
    """Answers of a device with these settings, by name, and its rig."""

    def serve(sampling: Sampling, **settings):
        if settings.pop("head", False):
            settings["draft_head"] = tiny / "head"
        rig = RealRig(tmp_path_factory.mktemp("rig"), path=tiny, **settings)
        rig.device.journal = None
        choose = random.Random(3)
        common = [choose.randrange(256) for _ in range(40)]
        for number in range(REQUESTS):
            tail = [choose.randrange(256) for _ in range(5 + number * 3)]
            prompt = common + tail if number % 2 else tail * 3
            rig.submit(
                f"r{number}", token_ids=prompt, output=14 + 11 * number, sampling=sampling, stop=[END],
                boundaries=[40] if number % 2 else [],
            )  # fmt: skip
            rig.step()
        rig.settle()
        rig.device.shut_down(abandon=False)
        assert rig.device.used_pages() == 0
        return {f"r{n}": rig.text(f"r{n}") for n in range(REQUESTS)}, rig

    return serve


GREEDY = Sampling(0.0)
SEEDED = Sampling(1.0, 0.95, 7)


SAMPLINGS = {"greedy": GREEDY, "seeded": SEEDED}


@pytest.fixture(scope="module")
def plain(serve):
    """What a device without any of it answers, by sampling."""
    return {name: serve(sampling, snapshot_rows=0)[0] for name, sampling in SAMPLINGS.items()}


@pytest.mark.parametrize(
    ("sampling", "settings"),
    [
        ("greedy", {}),
        ("greedy", {"kv_pages": 12}),
        ("seeded", {"kv_pages": 12, "snapshot_rows": 1}),
        ("greedy", {"draft_tokens": 3}),
        ("seeded", {"draft_tokens": 3, "head": True, "kv_pages": 12}),
        ("greedy", {"draft_tokens": 4, "head": True, "allocation": "device", "speculative_token_capacity": 8}),
        ("seeded", {"draft_tokens": 2, "head": True, "allocation": "host", "mixed": True}),
        ("greedy", {"draft_tokens": 3, "head": True, "verification": "fixed:4", "snapshot_rows": 0}),
    ],
    ids=str,
)
def test_answers_do_not_depend_on_pages_drafts_or_caching(plain, serve, sampling, settings):
    answers, rig = serve(SAMPLINGS[sampling], **settings)
    assert answers == plain[sampling]
    endings = [rig.ending(name) for name in answers]
    assert all(ending.finish_reason in ("length", "stop") and ending.preemptions <= 1 for ending in endings)
    lanes = [lane for done in rig.completions() for lane in done.lanes]
    assert sum(lane.committed_tokens for lane in lanes) == sum(ending.output_tokens for ending in endings)
    if settings.get("head"):
        assert sum(lane.offered_tokens for lane in lanes) > 0


@pytest.mark.parametrize("settings", [{}, {"snapshot_rows": 1}, {"draft_tokens": 3, "head": True}], ids="-".join)
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_requests_that_block_each_other_are_preempted_and_answered_as_if_alone(
    tiny, tmp_path_factory, sampling, settings
):
    """Each takes 3 pages for its prompt and needs 10 of 12 to end. Prompts go first by the policy, however long
    programs take here: so all have started, and none can end beside the two others.
    """
    settings = dict(settings)
    if settings.pop("head", False):
        settings["draft_head"] = tiny / "head"
    prompts_first = PolicyConfig(output_token_value=1e-3, delivery_fairness=0.0, decode_age_price=0.0)
    texts, preemptions = [], []
    for pool in (60, 12):
        rig = RealRig(tmp_path_factory.mktemp("rig"), path=tiny, kv_pages=pool, policy=prompts_first, **settings)
        rig.device.journal = None
        names = [f"r{number}" for number in range(3)]
        for number, name in enumerate(names):
            prompt = [(number + 2) * at % 256 for at in range(33)]
            rig.submit(name, token_ids=prompt, output=120, sampling=sampling, stop=[])
        rig.settle()
        rig.device.shut_down(abandon=False)
        assert rig.device.used_pages() == 0
        texts.append([rig.text(name) for name in names])
        preemptions.append(sum(rig.ending(name).preemptions for name in names))
    assert texts[0] == texts[1]
    assert preemptions[0] == 0
    assert preemptions[1] > 0


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_prompt_that_needs_the_whole_pool_is_answered_although_its_beginning_is_cached(
    tiny, tmp_path_factory, draft_tokens
):
    """The cached state's last page is held beside the request's copy of it: together they are a page too many."""
    pool = 12
    rig = RealRig(tmp_path_factory.mktemp("rig"), path=tiny, kv_pages=pool, draft_tokens=draft_tokens)
    rig.device.journal = None
    prompt = [number * 7 % 256 for number in range(pool * 16 - draft_tokens - 2)]
    try:
        rig.submit("beginning", token_ids=prompt[:100], output=2)
        rig.settle()
        assert rig.device.match_prefix(prompt) > 0
        rig.submit("whole", token_ids=prompt, output=2)
        rig.submit("behind", token_ids=[5, 6, 7], output=2)
        for _ in range(300):
            rig.step()
            select.select([rig.device.completion_fd], [], [], 0.02 if rig.core.in_flight else 0)
    finally:
        rig.device.shut_down(abandon=False)
    assert [len(rig.text(name)) for name in ("whole", "behind")] == [2, 2]
    assert rig.device.used_pages() == 0
