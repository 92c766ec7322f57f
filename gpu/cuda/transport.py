"""Frames on a stream: queued by the worker's thread without waiting, waited for by a thread of their own."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpu.cuda.captured import CapturedProgram, Read
from gpu.cuda.stream import FrameMarks, GraphStream
from gpu.device import DeviceError, Progress
from gpu.executor import SingleExecutor
from gpu.frames import MAX_FRAMES
from gpu.transport import Finished, Upload, carry_out
from scheduler.shapes import GraphShape


class GraphTransport:
    """A Transport of captured programs.

    submit() queues on the calling thread: handing over to another one would wait for the interpreter lock, which the
    worker holds. The completion thread sleeps on the frame's last mark, then reads its results.
    """

    def __init__(self, stream: GraphStream) -> None:
        self._stream = stream
        self._marks = tuple(stream.new_marks() for _ in range(MAX_FRAMES))
        self._turn = 0
        self._last_completed_ns = 0
        self._waiter: SingleExecutor[Finished] = SingleExecutor("helios-completions", _start)

    @property
    def completion_fd(self) -> int:
        """Readable while a result waits to be collected."""
        return self._waiter.completion_fd

    def prepare(self, programs: Mapping[GraphShape, CapturedProgram], progress: Progress) -> None:
        """Capture every program, the largest first, so that the smaller ones fit into its memory.

        Waits; raises DeviceError when one fails.
        """
        with self._stream.recording():
            for done, shape in enumerate(sorted(programs, key=_size, reverse=True)):
                progress(f"capturing {shape.label}", done / len(programs))
                try:
                    programs[shape].capture(self._stream)
                except Exception as failure:  # whatever a kernel or a library raises
                    raise DeviceError(f"the program {shape.label} cannot be captured: {failure}") from failure
        progress("ready", 1.0)

    def submit(self, uploads: Sequence[Upload], program: CapturedProgram, inputs: Sequence[Any]) -> None:
        """Queue the uploads and then the program."""
        marks = self._marks[self._turn]
        self._turn = (self._turn + 1) % MAX_FRAMES
        try:
            with self._stream.current():
                read = self._launch(uploads, program, inputs, marks)
        except Exception as failure:  # whatever a program or the driver raises must not end the worker
            self._waiter.submit(functools.partial(_failed, failure))
            return
        self._waiter.submit(functools.partial(self._finish, marks, read))

    def collect(self) -> Finished | None:
        """The oldest result, or None while there is none."""
        return self._waiter.collect()

    def stop(self, abandon: bool) -> None:
        """End the completion thread; with `abandon`, do not wait for a running program."""
        self._waiter.stop(abandon)

    def _launch(
        self, uploads: Sequence[Upload], program: CapturedProgram, inputs: Sequence[Any], marks: FrameMarks
    ) -> Read:
        stream = self._stream
        carry_out(functools.partial(stream.run, upload) for upload in uploads)
        turn = program.stage(inputs)
        stream.run(functools.partial(program.send, turn))
        marks.begin()
        stream.run(program.replay)
        marks.end()
        read = program.fetch(turn, inputs)
        marks.fetched()
        return read

    def _finish(self, marks: FrameMarks, read: Read) -> Finished:
        """On the completion thread. The frames' times do not overlap, although the host sees an end a little late."""
        try:
            marks.wait()
            completed_ns = time.monotonic_ns()
            device_ns = marks.device_ns()
            output = read()
        except Exception as failure:
            return _failed(failure)
        started_ns = min(completed_ns, max(completed_ns - device_ns, self._last_completed_ns))
        self._last_completed_ns = completed_ns
        return Finished(started_ns, completed_ns, device_ns, output)


def _start() -> None:
    """The completion thread needs nothing."""


def _failed(failure: Exception) -> Finished:
    now_ns = time.monotonic_ns()
    return Finished(now_ns, now_ns, 0, error=f"{type(failure).__name__}: {failure}")


def _size(shape: GraphShape) -> tuple[int, int, int]:
    return shape.physical_rows, shape.batch_capacity, shape.draft_depth
