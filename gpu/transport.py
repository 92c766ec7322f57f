"""How frames reach a device's programs and how what these did comes back: submitted in order, collected in order."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import torch

from gpu.device import DeviceError, Progress
from gpu.executor import SingleExecutor
from gpu.programs.interface import RoundOutput
from scheduler.shapes import GraphShape

Upload = Callable[[], None]
"""Brings one thing that the worker decided into the slots' state."""

Run = Callable[[Sequence[Any]], RoundOutput | None]
"""A prepared program: of LaneInputs, or of slots (init), or of StateCopies; () warms it up."""

Program_contra = TypeVar("Program_contra", contravariant=True)


class Finished(msgspec.Struct, frozen=True):
    """What a frame's program did. Times are CLOCK_MONOTONIC ns; `device_ns` is the program's own interval.

    `output` is None for state programs and after an error.
    """

    started_ns: int
    completed_ns: int
    device_ns: int
    output: RoundOutput | None = None
    error: str | None = None


class Transport(Protocol[Program_contra]):
    """Runs programs one after the other. All calls come from the worker thread and return at once, but prepare()."""

    @property
    def completion_fd(self) -> int:
        """Readable while a result waits to be collected."""

    def prepare(self, programs: Mapping[GraphShape, Program_contra], progress: Progress) -> None:
        """Make every program ready to run, touching padding only. Waits; raises DeviceError when one fails."""

    def submit(self, uploads: Sequence[Upload], program: Program_contra, inputs: Sequence[Any]) -> None:
        """Queue the uploads and then the program. Never raises: a failure becomes a result."""

    def collect(self) -> Finished | None:
        """The oldest result, or None while there is none."""

    def stop(self, abandon: bool) -> None:
        """End; with `abandon`, do not wait for a running program."""


class CpuTransport:
    """Runs programs eagerly on one thread of its own, so that the caller can plan on meanwhile."""

    def __init__(self, threads: int) -> None:
        """`threads`: torch's, for the programs."""
        self._executor: SingleExecutor[Finished] = SingleExecutor(
            "helios-programs", lambda: torch.set_num_threads(threads)
        )

    @property
    def completion_fd(self) -> int:
        """Readable while a result waits to be collected."""
        return self._executor.completion_fd

    def prepare(self, programs: Mapping[GraphShape, Run], progress: Progress) -> None:
        """Run every program once over padding. Waits; raises DeviceError when one fails."""
        for done, (shape, run) in enumerate(programs.items()):
            progress(f"warming up {shape.label}", done / len(programs))
            self._executor.submit(functools.partial(_run_job, (), run, ()))
            error = self._executor.wait().error
            if error is not None:
                raise DeviceError(f"the program {shape.label} failed: {error}")
        progress("ready", 1.0)

    def submit(self, uploads: Sequence[Upload], program: Run, inputs: Sequence[Any]) -> None:
        """Queue the uploads and then the program."""
        self._executor.submit(functools.partial(_run_job, uploads, program, inputs))

    def collect(self) -> Finished | None:
        """The oldest result, or None while there is none."""
        return self._executor.collect()

    def stop(self, abandon: bool) -> None:
        """End the thread; with `abandon`, do not wait for a running program."""
        self._executor.stop(abandon)


def carry_out(uploads: Iterable[Upload]) -> None:
    """Run every upload, those behind a failed one too: they may be other slots'. Then raises the first error."""
    first: Exception | None = None
    for upload in uploads:
        try:
            upload()
        except Exception as failure:  # whatever an upload raises
            first = first or failure
    if first is not None:
        raise first


def _run_job(uploads: Sequence[Upload], run: Run, inputs: Sequence[Any]) -> Finished:
    """On the executor's thread: bring the slots' state up to date, run, time. A failure becomes a result."""
    output, error = None, None
    started_ns = time.monotonic_ns()
    try:
        carry_out(uploads)
        started_ns = time.monotonic_ns()
        output = run(inputs)
    except Exception as failure:  # whatever a program raises must not end the executor
        error = f"{type(failure).__name__}: {failure}"
    completed_ns = time.monotonic_ns()
    return Finished(started_ns, completed_ns, completed_ns - started_ns, output, error)
