"""The scheduler on a real device: its count of pages is the device's, and whatever it picks says the same tokens."""

import dataclasses
import itertools
import select

import pytest
from device_driver import GREEDY, DeviceDriver
from tiny_checkpoint import write_tiny_checkpoint
from tiny_draft_head import write_tiny_draft_head

from gpu import create_device
from gpu.device import Frame, FrameLane, PagesExhausted
from gpu.model.weights import open_source
from scheduler import Catalog, PolicyConfig, RequestScheduler, RequestSpec
from scheduler.plans import Role
from scheduler.records import CompletionRecord, ExecutionTiming, RequestHandle
from scheduler.shapes import GraphKind

VOCABULARY, CONTEXT, SLOTS = 6, 128, 4
OUTPUTS = 24
FEW_PAGES = 8
SHARED = [(3 * at + at * at) % VOCABULARY for at in range(35)]
PROMPTS = [SHARED + [(number + 5 * at) % VOCABULARY for at in range(3 + 7 * number)] for number in range(6)]


@dataclasses.dataclass
class Life:
    """One request over all its lives."""

    name: str
    prompt: list[int]
    said: list[int] = dataclasses.field(default_factory=list)
    preempted: int = 0


class Loop:
    """A worker loop without messages, on a clock that counts its iterations."""

    def __init__(self, device) -> None:
        self.device, shapes = device, device.shapes
        drafts = device.limits.draft_tokens
        self.scheduler = RequestScheduler(
            Catalog(shapes), PolicyConfig.balanced(), SLOTS, completion_token_capacity=max(8, drafts + 1)
        )
        self.sources = ("learned", "copy") if device.limits.learned_drafts else ("copy",)
        self.waiting, self.lives = [], {}
        self.residents: dict[RequestHandle, Life] = {}
        self.in_flight, self.kinds, self.cached = [], set(), 0
        self.fences, self.deepest = itertools.count(1), 0

    def serve(self, prompts):
        self.waiting = [Life(str(number), prompt) for number, prompt in enumerate(prompts)]
        lives = list(self.waiting)
        for now in itertools.count(1):
            self.scheduler.advance_to(now * 1_000_000)
            if self.in_flight and (len(self.in_flight) == 2 or not self._start()):
                self._complete()
            elif not self.in_flight:
                self._admit()
                if not self._start() and not self._preempt():
                    break
        assert not self.waiting
        assert not self.residents
        return lives

    def _admit(self):
        while self.waiting and self.scheduler.resident_count < SLOTS:
            life = self.waiting[0]
            prompt = life.prompt + life.said
            whole = -(-(len(life.prompt) + OUTPUTS + self.device.limits.draft_tokens) // 16)
            if life.preempted and self.residents and whole * (1 + len(self.residents)) > self.device.free_pages():
                return
            self._count()
            cached = self.device.match_prefix(prompt)
            left = OUTPUTS - len(life.said)
            boundaries = (35,) if cached < 35 else ()
            spec = RequestSpec(
                f"{life.name}.{life.preempted}", len(prompt), left, CONTEXT, cached, boundaries,
                proposal_sources=self.sources,
            )  # fmt: skip
            handle = self.scheduler.admit(spec)
            try:
                self.device.open_request(
                    handle.slot, prompt, left, GREEDY,
                    cached_tokens=cached, boundaries=boundaries, emitted_before=len(life.said),
                )  # fmt: skip
            except PagesExhausted:
                self.scheduler.cancel(handle)
                return
            self.cached += cached
            self.residents[handle] = self.waiting.pop(0)

    def _count(self):
        self.scheduler.set_resources(self.device.free_pages(), self.device.free_snapshot_rows())

    def _start(self) -> bool:
        self._count()
        plan = self.scheduler.plan()
        if plan is None:
            return False
        fence = next(self.fences)
        self.scheduler.commit(plan, fence)
        lanes = tuple(
            FrameLane(p.handle.slot, p.query_length, p.proposal_source == "copy", p.role is Role.TERMINAL)
            for p in plan.lanes
        )
        self.device.submit(Frame(fence, plan.shape, lanes))  # PagesExhausted would end the test
        slots = [lane.handle.slot for lane in plan.lanes]
        held = [len(self.device._requests[slot].memory.pages) for slot in slots]
        assert held == self.scheduler._state.slots["pages_held"][slots].tolist()
        self.in_flight.append((fence, plan))
        self.kinds.add(plan.shape.kind)
        self.deepest = max(self.deepest, len(self.in_flight))
        return True

    def _complete(self):
        assert select.select([self.device.completion_fd], [], [], 60)[0]
        result = self.device.collect()
        assert result.error is None
        fence, plan = self.in_flight.pop(0)
        assert result.fence == fence
        records = [
            CompletionRecord(
                lane.handle, did.consumed_prompt_tokens, did.emitted_tokens, did.accepted_tokens,
                offered_tokens=did.offered_tokens,
            )
            for lane, did in zip(plan.lanes, result.lanes, strict=True)
        ]  # fmt: skip
        cost_ns = 1_000_000 + 50_000 * (plan.shape.physical_rows or plan.shape.batch_capacity)  # the same on every run
        timing = ExecutionTiming((cost_ns,), cost_ns)
        if result.confidence is None:
            tokens = self.scheduler.complete(fence, records, timing)
        else:
            sidecars = (result.confidence, result.survival)
            tokens = self.scheduler.complete_packed_round_with_survival(fence, records, timing, *sidecars)
        for token in tokens:
            self.residents[token.handle].said.append(token.token_id)
        for handle in {token.handle for token in tokens if self.scheduler.is_resident(token.handle)}:
            self.scheduler.published_output(handle, fence)
        for handle in [handle for handle in self.residents if not self.scheduler.is_resident(handle)]:
            self._leave(handle)
        self._offer(plan)

    def _leave(self, handle):
        life = self.residents.pop(handle)
        self.device.close_request(handle.slot)
        if len(life.said) < OUTPUTS:
            life.preempted += 1
            self.waiting.insert(0, life)

    def _offer(self, plan):
        busy = {lane.handle for _, other in self.in_flight for lane in other.lanes}
        for lane in plan.lanes:
            handle = lane.handle
            if plan.shape.kind is GraphKind.SPECULATIVE and handle in self.residents and handle not in busy:
                life = self.residents[handle]
                count = self.device.copy_proposals(handle.slot) if len(life.said) % 3 else 0
                if len(life.said) < OUTPUTS:
                    self.scheduler.offer_proposals(handle, "copy", count)

    def _preempt(self) -> bool:
        victim = self.scheduler.preemption_victim()
        if victim is None:
            return False
        self.scheduler.preempt(victim)
        return True


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    directory = tmp_path_factory.mktemp("six")
    write_tiny_checkpoint(directory, seed=11, vocab_size=VOCABULARY, eos_token_id=None)
    write_tiny_draft_head(directory / "head", open_source(directory).config, seed=1)
    return directory


def device_for(six, **settings):
    defaults = {"prefill_capacities": (16, 64), "decode_batches": (1, 2, 4), "max_context": CONTEXT, "request_slots": 4}
    return create_device(six, **(defaults | settings))


@pytest.fixture(scope="module")
def plain(six):
    driver = DeviceDriver(device_for(six))
    said = [driver.generate(0, prompt, OUTPUTS) for prompt in PROMPTS]
    driver.device.shut_down(abandon=False)
    return said


DRAFTS = {"draft_tokens": 3, "speculative_token_capacity": 16}


@pytest.mark.parametrize(
    ("settings", "pages"),
    [
        ({"mixed": True}, FEW_PAGES),
        (DRAFTS, 60),
        (DRAFTS | {"draft_head": "head", "mixed": True}, FEW_PAGES),
        (DRAFTS | {"draft_head": "head", "allocation": "host"}, 60),
        (DRAFTS | {"draft_head": "head", "allocation": "device"}, FEW_PAGES),
    ],
    ids=["plain mixed", "copies", "learned mixed", "host", "device"],
)
def test_whatever_is_picked_says_what_plain_decoding_says(settings, pages, six, plain):
    head = {"draft_head": six / "head"} if "draft_head" in settings else {}
    device = device_for(six, kv_pages=pages, **(settings | head))
    loop = Loop(device)
    lives = loop.serve(PROMPTS + PROMPTS[:2])
    assert [life.said for life in lives] == plain + plain[:2]
    assert loop.cached > 0
    assert {GraphKind.INIT, GraphKind.RESTORE, GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT} <= loop.kinds
    assert loop.deepest == 2
    if pages == FEW_PAGES:
        assert any(life.preempted for life in lives)
        assert max(life.preempted for life in lives) <= 2
    assert (device.used_pages(), device.free_pages()) == (0, pages)
    device.shut_down(abandon=False)
