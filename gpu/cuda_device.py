"""A model on a CUDA device: captured programs on one stream, queued two deep while the caller plans on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu.cuda.captured import CapturedProgram, CapturedRound, CapturedStateProgram
from gpu.cuda.stream import GraphStream
from gpu.cuda.transport import GraphTransport
from gpu.device import DeviceLimits, InvalidSettings
from gpu.prepared_device import PreparedDevice
from gpu.programs.create import STATE_KINDS, create_copy_program, create_init_program, create_program
from gpu.programs.interface import ExecutionStyle, ProgramContext
from gpu.sampling.both_tables import BothTables
from scheduler.shapes import GraphKind, GraphShape


class CudaDevice(PreparedDevice[CapturedProgram]):
    """Implements gpu.device.Device with graphs on `stream`."""

    def __init__(
        self, shapes: Iterable[GraphShape], limits: DeviceLimits, context: ProgramContext, stream: GraphStream
    ) -> None:
        """`context` is in captured style, with a device sampling table. Raises InvalidSettings."""
        if context.style is not ExecutionStyle.CAPTURED or context.device_sampling is None:
            raise InvalidSettings("graphs need the captured style and a device sampling table")
        sampling = BothTables(context.sampling, context.device_sampling)
        super().__init__(captured_programs(shapes, context), limits, context.state, sampling, GraphTransport(stream))


def captured_programs(shapes: Iterable[GraphShape], context: ProgramContext) -> Mapping[GraphShape, CapturedProgram]:
    """A program for each shape, not captured yet."""
    return {shape: _captured(shape, context) for shape in shapes}


def _captured(shape: GraphShape, context: ProgramContext) -> CapturedProgram:
    if shape.kind is GraphKind.INIT:
        return CapturedStateProgram(create_init_program(shape, context))
    if shape.kind in STATE_KINDS:
        return CapturedStateProgram(create_copy_program(shape, context))
    return CapturedRound(create_program(shape, context), context)
