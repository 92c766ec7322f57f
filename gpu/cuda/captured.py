"""Prepared programs as graphs: what is staged, sent, replayed and fetched for each frame."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from gpu.cuda.packed_outputs import PackedOutputs
from gpu.cuda.stream import GraphStream, Replay
from gpu.device import TokenLogprobs
from gpu.programs.inference import InferenceProgram
from gpu.programs.interface import LaneInput, ProgramContext, RoundOutput
from gpu.programs.outputs import RunOutputs, round_output
from gpu.programs.state_copies import CopyProgram, InitProgram
from gpu.sampling import SamplingTable, token_logprobs

Read = Callable[[], RoundOutput | None]
"""Builds the output from what was fetched; called on another thread, when the copies are done."""


class CapturedProgram(Protocol):
    """A prepared program that is replayed. Up to two runs may be between stage() and the end of their Read."""

    def capture(self, stream: GraphStream) -> None:
        """Warm up and record, touching padding only; before anything else."""

    def stage(self, inputs: Sequence[Any]) -> int:
        """Put the inputs into host memory and name the place. Raises InvalidFrame; nothing was written then."""

    def send(self, turn: int) -> None:
        """Copy what was staged at `turn` to the device."""

    def replay(self) -> None:
        """Run what was recorded."""

    def fetch(self, turn: int, inputs: Sequence[Any]) -> Read:
        """Queue the copies of the results and say how to read them."""


class CapturedRound:
    """An inference program."""

    def __init__(self, program: InferenceProgram, context: ProgramContext) -> None:
        """`context` is that of the program."""
        self.shape = program.shape
        self._program = program
        self._sampling: SamplingTable = context.sampling
        self._learned = context.draft_head is not None
        self._device = context.state.device

    def capture(self, stream: GraphStream) -> None:
        """Record the program and the packing of its results."""
        self._stream = stream
        self._packed = PackedOutputs(self.shape, self._learned, self._device, stream.pins_memory)
        with stream.current():
            self._program.upload(())
        self._replay: Replay = stream.capture(self._execute)

    def stage(self, inputs: Sequence[LaneInput]) -> int:
        """Stage the lanes."""
        return self._program.stage(inputs)

    def send(self, turn: int) -> None:
        """Send the lanes."""
        self._program.send(turn)

    def replay(self) -> None:
        """Run."""
        self._replay()

    def fetch(self, turn: int, inputs: Sequence[LaneInput]) -> Read:
        """The packed results, and all logits where a lane wants log-probabilities."""
        self._stream.run(functools.partial(self._packed.fetch, turn))
        wanted = [self._sampling.of(lane.slot).parameters.logprobs for lane in inputs]
        logits = None
        if any(count is not None for count in wanted):
            shape, pinned = self._program.logits.shape, self._stream.pins_memory
            logits = torch.empty(shape, dtype=torch.float32, pin_memory=pinned)
            self._stream.run(functools.partial(self._fetch_logits, logits))
        return functools.partial(self._read, turn, tuple(inputs), wanted, logits)

    def _execute(self) -> None:
        self._program.execute()
        self._packed.pack(self._program.outputs)

    def _fetch_logits(self, host: torch.Tensor) -> None:
        host.copy_(self._program.logits, non_blocking=True)

    def _read(
        self, turn: int, lanes: Sequence[LaneInput], wanted: Sequence[int | None], logits: torch.Tensor | None
    ) -> RoundOutput:
        outputs = self._packed.read(turn)
        logprobs = [_lane_logprobs(outputs, lane, count, logits) for lane, count in enumerate(wanted)]
        with self._stream.current():  # scored prompts pass the output head once more
            return round_output(outputs, lanes, logprobs, self._program.prompt_logprobs)


class CapturedStateProgram:
    """An init, snapshot, restore or terminal snapshot program. It has no results, and never two runs in flight."""

    def __init__(self, program: InitProgram | CopyProgram) -> None:
        self.shape = program.shape
        self._program = program
        self._inputs: Sequence[Any] = ()

    def capture(self, stream: GraphStream) -> None:
        """Record the program."""
        with stream.current():
            self._program.upload(())
        self._replay: Replay = stream.capture(self._program.execute)

    def stage(self, inputs: Sequence[Any]) -> int:
        """Keep the inputs until they are sent."""
        self._inputs = inputs
        return 0

    def send(self, turn: int) -> None:
        """Write the inputs."""
        self._program.upload(self._inputs)

    def replay(self) -> None:
        """Run."""
        self._replay()

    def fetch(self, turn: int, inputs: Sequence[Any]) -> Read:
        """Nothing."""
        return _nothing


def _nothing() -> None:
    return None


def _lane_logprobs(
    outputs: RunOutputs, lane: int, wanted: int | None, logits: torch.Tensor | None
) -> tuple[TokenLogprobs, ...]:
    """Those of a lane's emitted tokens, from `logits` [rows, vocab] on the host."""
    count = int(outputs.counts[lane])
    if wanted is None or logits is None or not count:
        return ()
    first = int(outputs.first_rows[lane])
    rows = logits[first : first + count].numpy()
    tokens = outputs.emitted[lane, :count].tolist()
    return tuple(token_logprobs(row, token, wanted) for row, token in zip(rows, tokens, strict=True))
