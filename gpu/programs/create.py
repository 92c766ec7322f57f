"""Preparing the program of a shape."""

from __future__ import annotations

import torch

from gpu.device import InvalidSettings
from gpu.programs.device_sampler import DeviceSampler
from gpu.programs.host_sampler import HostSampler
from gpu.programs.inference import InferenceProgram
from gpu.programs.interface import ExecutionStyle, ProgramContext
from gpu.programs.sampler import RoundSampler, Verdict
from gpu.programs.state_copies import CopyProgram, InitProgram
from scheduler.shapes import GraphKind, GraphShape

STATE_KINDS = frozenset({GraphKind.INIT, GraphKind.SNAPSHOT, GraphKind.RESTORE, GraphKind.TERMINAL_SNAPSHOT})


def create_program(shape: GraphShape, context: ProgramContext) -> InferenceProgram:
    """The inference program of a shape.

    Raises InvalidSettings for a kind that is none, and where the context lacks what the shape or style needs.
    """
    if shape.kind in STATE_KINDS or shape.kind is GraphKind.VISION:
        raise InvalidSettings(f"{shape.label} is no inference program")
    return InferenceProgram(shape, context, _sampler(shape, context))


def create_init_program(shape: GraphShape, context: ProgramContext) -> InitProgram:
    """The program that clears the state of up to B slots."""
    return InitProgram(shape, context.state)


def create_copy_program(shape: GraphShape, context: ProgramContext) -> CopyProgram:
    """The program of a snapshot, restore or terminal snapshot of up to B lanes."""
    return CopyProgram(shape, context.cache, context.state)


def _sampler(shape: GraphShape, context: ProgramContext) -> RoundSampler:
    head, device = context.draft_head, context.state.device
    batch, depth = shape.batch_capacity, shape.draft_depth
    verdict = Verdict.empty(batch, max(shape.target_width, depth + 1), depth, device)
    token_ids = None if head is None else head.draft_token_ids
    if context.style is ExecutionStyle.EAGER and device.type == "cpu":
        return HostSampler(context.sampling, verdict, token_ids)
    if context.device_sampling is None:
        raise InvalidSettings("programs that are captured, or not on the CPU, need a device sampling table")
    probabilities = None
    if head is not None and depth:
        probabilities = torch.zeros((batch, depth, head.config.draft_vocab_size), device=device)
    return DeviceSampler(context.device_sampling, context.sampling, verdict, probabilities, token_ids)
