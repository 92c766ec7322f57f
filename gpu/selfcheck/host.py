"""A few requests on pages of their own, and programs run for them one at a time, as captured graphs or eagerly."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np
import torch

from gpu.create import create_context
from gpu.cuda.captured import CapturedRound
from gpu.cuda.inline_stream import InlineStream
from gpu.cuda.stream import CudaStream, GraphStream
from gpu.device import DeviceLimits, SamplingParameters
from gpu.model.draft_head import load_draft_head
from gpu.model.weights import load_model, open_source
from gpu.pages import PAGE_TOKENS
from gpu.programs.create import create_program
from gpu.programs.inference import InferenceProgram
from gpu.programs.interface import LaneInput, RoundOutput
from gpu.sampling.both_tables import BothTables
from gpu.selfcheck.outcome import CheckFailed
from scheduler.shapes import GraphKind, GraphShape

GREEDY = SamplingParameters(temperature=0.0)
SLOTS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """Where programs run, and whether as graphs. Without CUDA a graph is the same operations run again."""

    place: torch.device
    captured: bool

    def stream(self) -> GraphStream:
        """A new stream on this device."""
        return CudaStream(self.place) if self.place.type == "cuda" else InlineStream()


def generating(batch: int, depth: int) -> GraphShape:
    """A round of `batch` lanes with `depth` drafts each; 0: plain decoding."""
    if not depth:
        return GraphShape(GraphKind.DECODE, batch)
    return GraphShape(GraphKind.SPECULATIVE, batch, draft_depth=depth, target_width=depth + 1, speculation_enabled=True)


class ProgramHost:
    """Four slots with eight pages each. `outputs`: the tokens that each request has emitted."""

    def __init__(
        self, path: pathlib.Path, head: pathlib.Path | None, form: Form, columns: int = 8, draft_tokens: int = 3
    ) -> None:
        """Loads the model in float32, so that equal tokens can be expected of other batches."""
        self._form = form
        self._columns = columns
        source = open_source(path)
        model = load_model(source, torch.float32, columns * PAGE_TOKENS, device=form.place)
        self.config = source.config
        self.has_head = head is not None
        limits = DeviceLimits(
            context_tokens=columns * PAGE_TOKENS - draft_tokens,
            kv_pages=SLOTS * columns,
            page_tokens=PAGE_TOKENS,
            vocab_size=source.config.vocab_size,
            request_slots=SLOTS,
            draft_tokens=draft_tokens,
        )
        loaded = None if head is None else load_draft_head(head, model)
        self.context = create_context(limits, model, loaded, form.place, form.captured)
        self.stream = form.stream()
        self._marks = self.stream.new_marks()
        self._graphs: dict[GraphShape, CapturedRound] = {}
        self._programs: dict[GraphShape, InferenceProgram] = {}
        self.prompts: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}

    def open(self, slot: int, prompt: Sequence[int], parameters: SamplingParameters = GREEDY) -> None:
        """A new request with all pages of its slot."""
        context, pages = self.context, self.pages_of(slot)
        with self.stream.current():
            context.state.open(slot)
            context.state.set_pages(slot, 0, pages)
            if context.device_sampling is None:
                context.sampling.open(slot, parameters, prompt)
            else:
                BothTables(context.sampling, context.device_sampling).open(slot, parameters, prompt)
        self.prompts[slot], self.outputs[slot] = list(prompt), []

    def pages_of(self, slot: int) -> list[int]:
        """The KV pages that belong to a slot."""
        return list(range(1 + slot * self._columns, 1 + (slot + 1) * self._columns))

    def run(self, shape: GraphShape, *lanes: LaneInput) -> RoundOutput:
        """Run a program once and note what it emitted. Raises CheckFailed where logits are not finite."""
        output = self._run_graph(shape, lanes) if self._form.captured else self._run_eager(shape, lanes)
        for lane, result in zip(lanes, output.lanes, strict=True):
            if not result.finite:
                raise CheckFailed(f"{shape.label} gave logits that are not finite")
            self.outputs[lane.slot] += result.emitted
        return output

    def program(self, shape: GraphShape) -> InferenceProgram:
        """The prepared program of this shape."""
        if shape not in self._programs:
            self._programs[shape] = create_program(shape, self.context)
        return self._programs[shape]

    def graph(self, shape: GraphShape) -> CapturedRound:
        """The captured program of this shape."""
        if shape not in self._graphs:
            self._graphs[shape] = CapturedRound(self.program(shape), self.context)
            with self.stream.recording():
                self._graphs[shape].capture(self.stream)
        return self._graphs[shape]

    def prefill(self, slot: int, start: int, end: int, capacity: int = 64) -> RoundOutput:
        """Consume the prompt's tokens from `start` to `end`."""
        prompt = self.prompts[slot]
        shape = GraphShape(GraphKind.PREFILL, 1, prefill_capacity=capacity)
        tokens = np.array(prompt[start:end], dtype=np.int64)
        return self.run(shape, LaneInput(slot, tokens, finishes=end == len(prompt)))

    def logits(self, shape: GraphShape) -> torch.Tensor:
        """Logits [rows, vocab] of this shape's latest run, on the host."""
        return self.program(shape).logits.cpu()

    def _run_eager(self, shape: GraphShape, lanes: Sequence[LaneInput]) -> RoundOutput:
        with self.stream.current():
            return self.program(shape).run(lanes)

    def _run_graph(self, shape: GraphShape, lanes: Sequence[LaneInput]) -> RoundOutput:
        graph = self.graph(shape)
        with self.stream.current():
            turn = graph.stage(lanes)
            graph.send(turn)
            graph.replay()
            read = graph.fetch(turn, lanes)
            self._marks.fetched()
        self._marks.wait()
        output = read()
        assert output is not None, "inference programs have an output"
        return output
