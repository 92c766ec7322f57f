"""Frames that take a given time and compute nothing: what stands for a device's programs when there is no device.

Frames run one after the other, as on a real device: a queued one starts when the one before it ends.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpu.device import Progress, SamplingParameters, TokenLogprobs
from gpu.executor import SingleExecutor
from gpu.programs.interface import LaneInput, LaneOutput, RoundOutput
from gpu.transport import Finished, Upload, carry_out
from scheduler.shapes import GraphShape

_NS_PER_MS = 1_000_000
_WORD = (1 << 64) - 1


class DraftLuck(Protocol):
    """How many learned drafts a round accepts, by the request's seed and position."""

    def survival(self, seed: int) -> npt.NDArray[np.float64]:
        """Mean probability that drafts 1 to i are all accepted, [depth]."""

    def accepted(self, seed: int, output_tokens: int) -> bytes:
        """Drafts accepted in the round that follows n output tokens, by n from 0 to `output_tokens`."""


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedProgram:
    """`duration_ms`: time of a run, from the mean number of tokens that its decoding lanes have in the cache."""

    shape: GraphShape
    duration_ms: Callable[[float], float]


@dataclasses.dataclass(slots=True)
class _Slot:
    """`cached`: tokens in the cache. `emitted`: output tokens so far. `accepted[n]`: see DraftLuck."""

    seed: int
    logprobs: int | None
    emitted: int
    cached: int = 0
    accepted: bytes = b""


class SimulatedSlots:
    """What the programs know of each request, and the tokens that they return. For the executor's thread alone.

    Output token n of a request is a function of its seed and n, drawn from `token_ids` with equal chances.
    """

    def __init__(self, token_ids: Sequence[int], context_tokens: int, luck: DraftLuck | None) -> None:
        self._token_ids = tuple(token_ids)
        self._context_tokens = context_tokens
        self._luck = luck
        self._slots: dict[int, _Slot] = {}

    def open(
        self, slot: int, parameters: SamplingParameters, prompt_ids: Sequence[int], output_ids: Sequence[int] = ()
    ) -> None:
        """Describe a slot anew; `output_ids`: tokens that the request emitted before, in an earlier life."""
        accepted = b"" if self._luck is None else self._luck.accepted(parameters.seed, self._context_tokens)
        self._slots[slot] = _Slot(parameters.seed, parameters.logprobs, len(output_ids), accepted=accepted)

    def close(self, slot: int) -> None:
        """Forget a slot."""
        self._slots.pop(slot, None)

    def run(self, program: SimulatedProgram, lanes: Sequence[LaneInput]) -> tuple[RoundOutput, float]:
        """What the program returns for these lanes, and how long it takes in ms."""
        held = [self._slots[lane.slot].cached for lane in lanes if lane.prompt is None]
        held = held or [self._slots[lane.slot].cached for lane in lanes]
        duration_ms = program.duration_ms(sum(held) / len(held))
        depth = program.shape.draft_depth
        confidence = None if self._luck is None or not depth else np.zeros((len(lanes), depth), dtype=np.float32)
        survival = np.full((len(lanes), depth), np.nan) if depth else None
        outputs = []
        for i, lane in enumerate(lanes):
            output = self._prompt(lane, lane.prompt) if lane.prompt is not None else self._decode(lane)
            outputs.append(output)
            if survival is not None and lane.copies is not None:
                survival[i, : output.offered] = np.arange(output.offered) < output.accepted
            elif survival is not None and confidence is not None and lane.prompt is None:
                joint = self._joint(lane.slot, depth)
                confidence[i] = joint / np.concatenate(([1.0], np.maximum(joint[:-1], np.finfo(np.float32).tiny)))
                survival[i, : output.offered] = joint[: output.offered]
        return RoundOutput(tuple(outputs), confidence, survival), duration_ms

    def _joint(self, slot: int, depth: int) -> npt.NDArray[np.float64]:
        assert self._luck is not None
        return self._luck.survival(self._slots[slot].seed)[:depth]

    def _prompt(self, lane: LaneInput, prompt: npt.NDArray[np.int64]) -> LaneOutput:
        slot = self._slots[lane.slot]
        slot.cached += len(prompt)
        return self._emit(slot, 1) if lane.finishes else LaneOutput(())

    def _decode(self, lane: LaneInput) -> LaneOutput:
        """Copies are right where they equal the tokens to come; learned drafts are as the luck has it."""
        slot, offered = self._slots[lane.slot], lane.rows - 1
        accepted = 0
        if lane.copies is not None:
            while accepted < offered and lane.copies[accepted] == self._token(slot, slot.emitted + accepted):
                accepted += 1
        elif offered:
            accepted = min(offered, slot.accepted[slot.emitted])
        slot.cached += accepted + 1
        return self._emit(slot, accepted + 1, offered)

    def _emit(self, slot: _Slot, count: int, offered: int = 0) -> LaneOutput:
        first = slot.emitted
        tokens = tuple([self._token(slot, first + n) for n in range(count)])
        slot.emitted = first + count
        if slot.logprobs is None:
            return LaneOutput(tokens, count - 1, offered)
        logprobs = tuple([self._scores(token, slot.logprobs) for token in tokens])
        return LaneOutput(tokens, count - 1, offered, logprobs=logprobs)

    def _token(self, slot: _Slot, position: int) -> int:
        return self._token_ids[scrambled(slot.seed, position) % len(self._token_ids)]

    def _scores(self, token: int, top: int) -> TokenLogprobs:
        """All tokens are equally likely; the one that was drawn comes first."""
        logprob = -math.log(len(self._token_ids))
        others = [other for other in self._token_ids[: top + 1] if other != token]
        return TokenLogprobs(token, logprob, tuple((listed, logprob) for listed in [token, *others][:top]))


def scrambled(seed: int, position: int) -> int:
    """64 bits that look random, from two numbers: SplitMix64, whose steps are small enough to take for each token."""
    z = (seed * 0xD1342543DE82EF95 + (position + 1) * 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


def sleep_until(deadline_ns: int) -> None:
    """Return at `deadline_ns` of CLOCK_MONOTONIC or a little later; the core is free meanwhile."""
    while (left_ns := deadline_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)


class SimulatedTransport:
    """Lets each frame's time pass on a thread of its own, so that the caller can plan on meanwhile."""

    def __init__(
        self,
        slots: SimulatedSlots,
        clock: Callable[[], int] = time.monotonic_ns,
        wait_until: Callable[[int], None] = sleep_until,
    ) -> None:
        """`clock` gives ns, and `wait_until` returns once it has reached the given one."""
        self._slots = slots
        self._clock = clock
        self._wait_until = wait_until
        self._free_ns = 0
        self._executor: SingleExecutor[Finished] = SingleExecutor("helios-simulated", lambda: None)

    @property
    def completion_fd(self) -> int:
        """Readable while a result waits to be collected."""
        return self._executor.completion_fd

    def prepare(self, programs: Mapping[GraphShape, SimulatedProgram], progress: Progress) -> None:
        """Nothing: the first run of a program is as quick as the next."""
        progress("ready", 1.0)

    def submit(self, uploads: Sequence[Upload], program: SimulatedProgram, inputs: Sequence[LaneInput]) -> None:
        """Queue the uploads and then the program."""
        self._executor.submit(functools.partial(self._run, self._clock(), uploads, program, inputs))

    def collect(self) -> Finished | None:
        """The oldest result, or None while there is none."""
        return self._executor.collect()

    def stop(self, abandon: bool) -> None:
        """End the thread; with `abandon`, do not wait for a running frame."""
        self._executor.stop(abandon)

    def _run(
        self, submitted_ns: int, uploads: Sequence[Upload], program: SimulatedProgram, inputs: Sequence[LaneInput]
    ) -> Finished:
        """On the executor's thread. A queued frame starts when the one before it was due, however late that woke."""
        started_ns = max(submitted_ns, self._free_ns)
        try:
            carry_out(uploads)
            output, duration_ms = self._slots.run(program, inputs)
        except Exception as failure:  # as a program's failure: it must not end the executor
            now_ns = max(started_ns, self._clock())
            return Finished(started_ns, now_ns, now_ns - started_ns, error=f"{type(failure).__name__}: {failure}")
        duration_ns = max(1, round(duration_ms * _NS_PER_MS))
        self._free_ns = started_ns + duration_ns
        self._wait_until(self._free_ns)
        return Finished(started_ns, self._free_ns, duration_ns, output)
