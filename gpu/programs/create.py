"""Preparing the program of a shape."""

from __future__ import annotations

from gpu.device import InvalidSettings
from gpu.programs.host_sampler import HostSampler
from gpu.programs.inference import InferenceProgram
from gpu.programs.interface import ExecutionStyle, Program, ProgramContext
from gpu.programs.sampler import Verdict
from gpu.programs.state_copies import CopyProgram, InitProgram
from scheduler.shapes import GraphKind, GraphShape

STATE_KINDS = frozenset({GraphKind.INIT, GraphKind.SNAPSHOT, GraphKind.RESTORE, GraphKind.TERMINAL_SNAPSHOT})


def create_program(shape: GraphShape, context: ProgramContext) -> Program:
    """The inference program of a shape. Raises InvalidSettings for a kind that is none, or a style not available."""
    if shape.kind in STATE_KINDS or shape.kind is GraphKind.VISION:
        raise InvalidSettings(f"{shape.label} is no inference program")
    if context.style is not ExecutionStyle.EAGER:
        raise InvalidSettings("captured programs need a device sampler")
    head = context.draft_head
    verdict = Verdict.empty(shape.batch_capacity, shape.target_width, shape.draft_depth, context.state.device)
    sampler = HostSampler(context.sampling, verdict, None if head is None else head.draft_token_ids)
    return InferenceProgram(shape, context, sampler)


def create_init_program(shape: GraphShape, context: ProgramContext) -> InitProgram:
    """The program that clears the state of up to B slots."""
    return InitProgram(shape, context.state)


def create_copy_program(shape: GraphShape, context: ProgramContext) -> CopyProgram:
    """The program of a snapshot, restore or terminal snapshot of up to B lanes."""
    return CopyProgram(shape, context.cache, context.state)
