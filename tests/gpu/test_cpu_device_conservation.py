"""Pages and rows are conserved under any mix of frames, failures, cancels, preemptions and closes (C3, C9)."""

import random
import select

import torch
from device_driver import GREEDY, decode, prefill, state_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.cpu_device import CpuDevice
from gpu.device import DeviceError, DeviceLimits, Frame, FrameLane, InvalidFrame
from gpu.programs.interface import LaneOutput, RoundOutput
from gpu.sampling import SamplingTable
from gpu.state import SlotState
from scheduler.shapes import GraphKind

PAGES, ROWS, SLOTS = 4, 3, 4
COPIES = (GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT)
TEXT = [1, 2, 3, 4, 5, 6, 7, 0] * 8


def unreliable(luck: random.Random, failing: float):
    """Programs that do nothing, and fail with this probability, whole or in one lane."""

    def infer(lanes):
        if luck.random() < failing:
            raise RuntimeError("bad luck")
        outputs = [LaneOutput((0,) * lane.finishes, finite=luck.random() > failing) for lane in lanes]
        return RoundOutput(tuple(LaneOutput((), finite=False) if not out.finite else out for out in outputs))

    def copy(_copies):
        if luck.random() < failing:
            raise RuntimeError("bad luck")

    return infer, copy


def make_device(seed: int, failing: float) -> CpuDevice:
    infer, copy = unreliable(random.Random(seed), failing)
    programs = {state_graph(kind, 2): copy for kind in (GraphKind.INIT, GraphKind.RESTORE, *COPIES)}
    programs |= {prefill(16): infer, decode(2): infer}
    limits = DeviceLimits(64, PAGES, 16, vocab_size=8, request_slots=SLOTS, snapshot_rows=ROWS)
    return CpuDevice(programs, limits, SlotState(SLOTS, 4, 1, torch.float32), SamplingTable(SLOTS, 8), threads=1)


class Worker:
    """Does what an engine does, and much that it never would."""

    def __init__(self, seed: int, failing: float) -> None:
        self.device = make_device(seed, failing)
        self.luck = random.Random(seed + 1)
        self.fence = self.in_flight = self.matched = 0
        self.reached = set()

    def open(self, slot, length, outputs, turn):
        prompt = TEXT[turn : turn + length]
        cached = self.device.match_prefix(prompt)
        self.matched += cached > 0
        self.device.open_request(slot, prompt, outputs, GREEDY, cached_tokens=cached, boundaries=(8, 20))
        self.set_up(slot)

    def set_up(self, slot):
        """Whichever of the two the request needs; it is refused when it needs none."""
        try:
            self.submit(state_graph(GraphKind.INIT, 2), (slot, 1))
        except InvalidFrame:
            self.submit(state_graph(GraphKind.RESTORE, 2), (slot, 1))

    def submit(self, shape, *lanes):
        before = self.totals()
        try:
            self.device.submit(Frame(self.fence + 1, shape, tuple(FrameLane(*lane) for lane in lanes)))
        except DeviceError:
            assert self.totals() == before  # nothing is held
            raise
        self.fence += 1
        self.in_flight += 1

    def collect(self):
        if self.in_flight:
            assert select.select([self.device.completion_fd], [], [], 60)[0]
            result = self.device.collect()
            self.in_flight -= 1
            self.reached |= {"failed frame"} if result.error else set()

    def totals(self):
        return self.device.free_pages(), self.device.used_pages()

    def act(self):
        """One random action; a refusal is noted and changes nothing."""
        luck, slot, action = self.luck, self.luck.randrange(SLOTS), self.luck.choice(CHOICES)
        try:
            if action == "close":
                self.device.close_request(slot)
            elif action == "open":
                self.open(slot, luck.randrange(1, 41), luck.randrange(1, 50), luck.randrange(2))
            elif action == "set up":
                self.set_up(slot)
            elif action == "prefill":
                self.submit(prefill(16), (slot, luck.choice((1, 4, 8, 16))))
            elif action == "collect":
                self.collect()
            else:
                shape = decode(2) if action == "decode" else state_graph(action, 2)
                retires = action is GraphKind.TERMINAL_SNAPSHOT and luck.random() < 0.7
                ends = (False, True, luck.randrange(20, 64)) if retires else ()
                self.submit(shape, *((one, 1, *ends) for one in {slot, luck.choice((slot, 0))}))
            self.reached.add("queued" if self.in_flight == 2 else action)
        except DeviceError as error:
            self.reached.add(type(error).__name__)

    def rest(self):
        """Everything closes, and what is in flight ends."""
        for slot in range(SLOTS):
            self.device.close_request(slot)
        while self.in_flight:
            self.collect()


WEIGHTS = {"close": 1, "open": 2, "set up": 2, "collect": 8, "prefill": 8, "decode": 12, **dict.fromkeys(COPIES, 1)}
CHOICES = [action for action, weight in WEIGHTS.items() for _ in range(weight)]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), failing=st.sampled_from([0.0, 0.05, 0.4]))
def test_pages_and_rows_come_back_whatever_happens(seed, failing):
    worker = Worker(seed, failing)
    for _ in range(4):
        for _ in range(80):
            worker.act()
            free, used = worker.totals()
            assert free + used == PAGES
            assert 0 <= worker.device.free_snapshot_rows() <= min(ROWS, free)
        worker.rest()
        assert worker.totals() == (PAGES, 0)
        assert worker.device.free_snapshot_rows() == ROWS
    worker.device.shut_down(abandon=False)


def test_the_mix_reaches_what_it_is_about():
    """Otherwise the property above would hold for want of anything happening."""
    worker = Worker(1, 0.05)
    for _ in range(3000):
        worker.act()
    assert worker.reached == {*CHOICES, "queued", "failed frame", "InvalidFrame", "InvalidRequest", "PagesExhausted"}
    assert worker.matched > 10
    worker.rest()
    worker.device.shut_down(abandon=False)
