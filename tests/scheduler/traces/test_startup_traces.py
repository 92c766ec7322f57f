"""Specification S13: what a start of five or sixteen short requests must look like on the synthetic catalog."""

from __future__ import annotations

import pytest

from tests.scheduler.traces.device import MS, Trace, prefill, round_of

SHAPES = (
    *map(prefill, (64, 128, 256, 512, 1024, 2048, 4096)),
    *(round_of(batch, depth) for batch in (1, 2, 4, 8, 16) for depth in (0, 3, 7)),
)


def started(requests, accepted, preseeded):
    trace = Trace(SHAPES, accepted=accepted, slots=requests)
    if preseeded:
        for i in range(requests):
            trace.admit(f"before{i}", output=400)
        trace.run_until_idle()
    begin = trace.now_ns
    for i in range(requests):
        trace.admit(f"r{i}", output=100_000)
    return trace, begin, [f"r{i}" for i in range(requests)]


@pytest.mark.parametrize("preseeded", [False, True])
@pytest.mark.parametrize("accepted", [0, 3, 7])
@pytest.mark.parametrize("requests", [5, 16])
def test_every_first_output_comes_within_100_ms_and_no_gap_reaches_150_ms(requests, accepted, preseeded):
    trace, begin, names = started(requests, accepted, preseeded)
    while not all(trace.visible[name] for name in names):
        trace.step()
    assert max(trace.visible[name][0] - begin for name in names) <= 100 * MS
    for _ in range(100):
        trace.step()
    assert max(gap for name in names for gap in trace.gaps_ms(name)) < 150


@pytest.mark.parametrize("preseeded", [False, True])
@pytest.mark.parametrize("accepted", [0, 3, 7])
@pytest.mark.parametrize("requests", [5, 16])
def test_a_hundred_rounds_give_every_stream_the_same_but_for_one_burst(requests, accepted, preseeded):
    trace, _, names = started(requests, accepted, preseeded)
    while not all(trace.visible[name] for name in names):
        trace.step()
    before = {name: trace.tokens[name] for name in names}
    for _ in range(100):
        trace.step()
    gained = [trace.tokens[name] - before[name] for name in names]
    assert min(gained) > 0
    assert max(gained) - min(gained) <= 8
