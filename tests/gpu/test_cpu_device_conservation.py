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

PAGES, ROWS, SLOTS = 6, 3, 4
COPIES = (GraphKind.SNAPSHOT, GraphKind.TERMINAL_SNAPSHOT)
TEXT = [1, 2, 3, 4, 5, 6, 7, 0] * 8


def unreliable(luck: random.Random):
    """Programs that do nothing, and now and then fail, whole or in one lane."""

    def infer(lanes):
        if luck.random() < 0.03:
            raise RuntimeError("bad luck")
        outputs = [LaneOutput((0,) * lane.finishes, finite=luck.random() > 0.03) for lane in lanes]
        return RoundOutput(tuple(LaneOutput((), finite=False) if not out.finite else out for out in outputs))

    def copy(_copies):
        if luck.random() < 0.03:
            raise RuntimeError("bad luck")

    return infer, copy


def make_device(seed: int) -> CpuDevice:
    infer, copy = unreliable(random.Random(seed))
    programs = {state_graph(kind, 2): copy for kind in (GraphKind.INIT, GraphKind.RESTORE, *COPIES)}
    programs |= {prefill(16): infer, decode(2): infer}
    limits = DeviceLimits(64, PAGES, 16, vocab_size=8, request_slots=SLOTS, snapshot_rows=ROWS)
    return CpuDevice(programs, limits, SlotState(SLOTS, 4, 1, torch.float32), SamplingTable(SLOTS, 8), threads=1)


class Worker:
    """Does what an engine does, and much that it never would."""

    def __init__(self, seed: int) -> None:
        self.device = make_device(seed)
        self.fence = self.in_flight = 0
        self.errors = 0

    def open(self, slot, length, outputs, turn):
        prompt = TEXT[turn : turn + length]
        cached = self.device.match_prefix(prompt)
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
            self.errors += result.error is not None

    def totals(self):
        return self.device.free_pages(), self.device.used_pages()


SLOT = st.integers(0, SLOTS - 1)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), SLOT, st.integers(1, 40), st.integers(1, 60), st.integers(0, 1)),
        st.tuples(st.just("close"), SLOT),
        st.tuples(st.just("set up"), SLOT),
        st.tuples(st.just("prefill"), SLOT, st.integers(1, 16)),
        st.tuples(st.just("decode"), SLOT, SLOT),
        st.tuples(st.sampled_from(COPIES), SLOT, SLOT),
        st.tuples(st.just("collect")),
        st.tuples(st.just("collect")),
    ),
    min_size=20,
    max_size=80,
)


@settings(max_examples=80, deadline=None)
@given(actions=ACTIONS, seed=st.integers(0, 1000))
def test_pages_and_rows_come_back_whatever_happens(actions, seed):
    worker = Worker(seed)
    device = worker.device
    for action, *values in actions:
        try:
            if action == "open":
                worker.open(*values)
            elif action == "close":
                device.close_request(values[0])
            elif action == "prefill":
                worker.submit(prefill(16), tuple(values))
            elif action == "set up":
                worker.set_up(*values)
            elif action == "collect":
                worker.collect()
            else:
                shape = decode(2) if action == "decode" else state_graph(action, 2)
                worker.submit(shape, *((slot, 1) for slot in values))
        except DeviceError:
            pass
        free, used = worker.totals()
        assert free + used == PAGES
        assert 0 <= device.free_snapshot_rows() <= min(ROWS, free)
    for slot in range(SLOTS):
        device.close_request(slot)
    while worker.in_flight:
        worker.collect()
    assert worker.totals() == (PAGES, 0)
    assert device.free_snapshot_rows() == ROWS
    device.shut_down(abandon=False)


def test_the_mix_reaches_what_it_is_about():
    """Otherwise the property above would hold for want of anything happening."""
    luck = random.Random(1)
    worker, matched, reached = Worker(3), 0, set()
    choices = ["close", "open", "set up", "collect", "collect", "prefill", "prefill", *["decode"] * 6, *COPIES]
    for _ in range(3000):
        slot, action = luck.randrange(SLOTS), luck.choice(choices)
        try:
            if action == "close":
                worker.device.close_request(slot)
            elif action == "open":
                matched += worker.device.match_prefix(TEXT[:40]) > 0
                worker.open(slot, luck.randrange(1, 41), luck.randrange(10, 24), luck.randrange(2))
            elif action == "set up":
                worker.set_up(slot)
            elif action == "prefill":
                worker.submit(prefill(16), (slot, luck.choice((1, 4, 8, 16))))
            elif action == "collect":
                worker.collect()
            else:
                worker.submit(decode(2) if action == "decode" else state_graph(action, 2), (slot, 1))
            reached.add("queued" if worker.in_flight == 2 else action)
        except DeviceError as error:
            reached.add(type(error).__name__)
    assert reached >= {"queued", *choices, "InvalidFrame", "InvalidRequest", "PagesExhausted"}
    assert matched
    assert worker.errors
    worker.device.shut_down(abandon=True)
