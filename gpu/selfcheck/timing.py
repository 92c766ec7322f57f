"""What a graph saves: the same program replayed, and run operation by operation."""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Callable

from gpu.programs.create import create_program
from gpu.programs.interface import LaneInput
from gpu.selfcheck.host import Form, ProgramHost, generating
from gpu.selfcheck.outcome import CheckSkipped

_RUNS = 30


def replay_against_eager(path: pathlib.Path, form: Form) -> str:
    """Median device time of a decode step of four lanes, both ways, in float32."""
    if form.place.type != "cuda":
        raise CheckSkipped("only CUDA has graphs")
    host = ProgramHost(path, None, form)
    for slot in range(4):
        host.open(slot, range(40))
        host.prefill(slot, 0, 40)
    shape = generating(4, 0)
    host.run(shape, *(LaneInput(slot) for slot in range(4)))
    eager = create_program(shape, host.context)
    with host.stream.current():
        eager.upload(())  # padding lanes: the same operations, and no request moves on
        host.graph(shape).send(host.graph(shape).stage(()))
    replayed_us, eager_us = (_median_us(host, work) for work in (host.graph(shape).replay, eager.execute))
    return f"replay {replayed_us:.0f} µs, eager {eager_us:.0f} µs, {eager_us / replayed_us:.1f} times"


def _median_us(host: ProgramHost, work: Callable[[], None]) -> float:
    marks, times = host.stream.new_marks(), []
    for _ in range(_RUNS):
        with host.stream.current():
            marks.begin()
            host.stream.run(work)
            marks.end()
            marks.fetched()
        marks.wait()
        times.append(marks.device_ns() / 1e3)
    return statistics.median(times)
