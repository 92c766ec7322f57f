"""A small host for prepared programs: it opens requests on pages and runs programs, without a device around them."""

from __future__ import annotations

import numpy as np
import torch

from gpu.allocation.torch_twin import allocate_rows
from gpu.device import SamplingParameters
from gpu.pages import PAGE_TOKENS, KvCache, pages_for
from gpu.programs.create import create_program
from gpu.programs.interface import ExecutionStyle, LaneInput, ProgramContext
from gpu.sampling import SamplingTable
from gpu.sampling.device_table import DeviceSamplingTable
from gpu.state import SlotState
from scheduler.shapes import Allocation, GraphKind, GraphShape

GREEDY = SamplingParameters(temperature=0.0)


def prefill_shape(capacity: int, scored: bool = False) -> GraphShape:
    """One prompt row of `capacity` tokens."""
    return GraphShape(GraphKind.SCORED_PREFILL if scored else GraphKind.PREFILL, 1, prefill_capacity=capacity)


def decode_shape(batch: int) -> GraphShape:
    """`batch` pending tokens."""
    return GraphShape(GraphKind.DECODE, batch)


def round_shape(batch, depth, *, width=None, rows=0, allocation=Allocation.NONE) -> GraphShape:
    """A speculative round; W is D + 1 unless said."""
    return GraphShape(
        GraphKind.SPECULATIVE,
        batch,
        draft_depth=depth,
        target_width=depth + 1 if width is None else width,
        target_rows=rows,
        speculation_enabled=True,
        allocation=allocation,
    )


def mixed_shape(batch: int, depth: int, prompt: int, prompt_rows: int = 1) -> GraphShape:
    """A mixed cohort with up to `prompt` prompt tokens over `prompt_rows` rows."""
    return GraphShape(
        GraphKind.MIXED,
        batch,
        draft_depth=depth,
        target_width=depth + 1,
        prefill_capacity=prompt,
        speculation_enabled=depth > 0,
        prompt_rows=prompt_rows,
    )


class ProgramHost:
    """Requests in slots, each on `request_pages` pages of its own from page 1 on, and programs by shape."""

    def __init__(self, model, head=None, slots=8, columns=8, snapshot_rows=4, style=ExecutionStyle.EAGER) -> None:
        layers = model.config.layers + (head is not None)
        self.cache = KvCache(model.config, slots * columns + 2, model.dtype, layers)
        self.state = SlotState(slots, columns, model.config.hidden_size, model.dtype, snapshot_rows=snapshot_rows)
        self.table = SamplingTable(slots, model.config.vocab_size)
        self.device_table = DeviceSamplingTable(slots, model.config.vocab_size)
        self.context = ProgramContext(
            model, self.cache, self.state, self.table, head, allocate_rows, self.device_table, style
        )
        self._programs = {}
        self.prompts = {}
        self.outputs = {}

    def open(self, slot: int, prompt: list[int], parameters=GREEDY, tokens: int | None = None) -> None:
        """A new request in this slot, with pages for `tokens` tokens (all columns when not said)."""
        columns = self.state.columns
        count = columns if tokens is None else pages_for(tokens)
        self.state.open(slot)
        self.state.set_pages(slot, 0, self.pages_of(slot)[:count])
        self.table.open(slot, parameters, prompt)
        self.device_table.open(slot, parameters, prompt)
        self.prompts[slot], self.outputs[slot] = prompt, []

    def pages_of(self, slot: int) -> list[int]:
        """The page numbers that belong to a slot."""
        return list(range(1 + slot * self.state.columns, 1 + (slot + 1) * self.state.columns))

    def kv_rows(self, slot: int, tokens: int) -> list[int]:
        """KV rows of a slot's first positions."""
        pages = self.pages_of(slot)
        return [pages[at // PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS for at in range(tokens)]

    def program(self, shape: GraphShape):
        """The prepared program of this shape."""
        if shape not in self._programs:
            self._programs[shape] = create_program(shape, self.context)
        return self._programs[shape]

    def chunk(self, slot: int, count: int | None = None) -> LaneInput:
        """A prompt lane with the request's next `count` prompt tokens (all when not said)."""
        start = int(self.state.cursor[slot])
        end = len(self.prompts[slot]) if count is None else start + count
        tokens = np.array(self.prompts[slot][start:end], dtype=np.int64)
        return LaneInput(slot, tokens, finishes=end == len(self.prompts[slot]))

    def run(self, shape: GraphShape, *lanes: LaneInput):
        """Run a program once and note what it emitted; returns (RoundOutput, logits)."""
        program = self.program(shape)
        output = program.run(lanes)
        for lane, result in zip(lanes, output.lanes, strict=True):
            self.outputs[lane.slot] += result.emitted
        return output, program.logits.numpy().copy()

    def prefill(self, slot: int, capacity: int = 64, count: int | None = None):
        """Consume prompt tokens in one prefill; returns the logits [vocab] after the last of them."""
        _, logits = self.run(prefill_shape(capacity), self.chunk(slot, count))
        return logits[0]

    def force_pending(self, slot: int, token: int) -> None:
        """Make `token` the request's newest output, whatever was drawn."""
        self.state.pending[slot] = token


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, size=length).tolist()


def tensors_of(host: ProgramHost) -> list[torch.Tensor]:
    """Copies of everything that a program might touch, as integers, since NaN differs from itself."""
    state = host.state
    rows = (state.cursor, state.pending, state.emitted, state.page_table, state.last_hidden, state.snapshot_hidden)
    everything = (*host.cache.keys, *host.cache.values, *rows)
    return [each.view(torch.int32) if each.is_floating_point() else each for each in map(torch.clone, everything)]
