"""Prepared inference programs: prefill, decode, speculative rounds and mixed cohorts are one pass over packed rows.

A run drafts, divides the target rows among the lanes, runs the target once over all of them, verifies or samples,
absorbs what was consumed into the draft layer, and advances the slots' state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu.device import InvalidSettings, TokenLogprobs
from gpu.model.row_operations import row_operations
from gpu.programs.attention import writing_attention
from gpu.programs.columns import Columns
from gpu.programs.drafting import Drafter
from gpu.programs.forward import hidden_states, logits
from gpu.programs.interface import ExecutionStyle, LaneInput, ProgramContext, RoundOutput
from gpu.programs.lanes import LaneBuffers
from gpu.programs.outputs import RunOutputs, round_output
from gpu.programs.placement import make_placement
from gpu.programs.progress import make_progress
from gpu.programs.prompt_scores import PromptScores
from gpu.programs.rows import TokenRows
from gpu.programs.sampler import RoundRows, RoundSampler
from scheduler.shapes import Allocation, GraphKind, GraphShape


class InferenceProgram:
    """One prepared program. run() is upload, execute and download; only execute() is recorded as a CUDA graph.

    `logits` [N, vocab] of the latest run stay readable until the next one, for checks.
    """

    def __init__(self, shape: GraphShape, context: ProgramContext, sampler: RoundSampler) -> None:
        """`sampler` draws for B lanes of W rows. Raises InvalidSettings without an allocator that the shape needs."""
        self.shape = shape
        self._context = context
        self._state = context.state
        self._sampler = sampler
        batch, depth, width = shape.batch_capacity, shape.draft_depth, shape.target_width
        device = context.state.device
        if shape.allocation is Allocation.DEVICE and context.allocate_rows is None:
            raise InvalidSettings(f"{shape.label} divides its rows on the device, and no allocator was given")
        extents = batch, depth, shape.prefill_capacity, context.state.padding_slot
        queued = context.style is ExecutionStyle.CAPTURED
        self.lanes = LaneBuffers(*extents, device, queued=queued, prompt_rows=shape.prompt_rows)
        self._operations = row_operations(context.model.dtype, device, context.style is ExecutionStyle.EAGER)
        self._placement = make_placement(shape, context, self.lanes)
        self._columns = Columns(context.style, context.state)
        self._progress = make_progress(self.lanes, context.state)
        self._lane_tokens = torch.zeros((batch, max(width, depth + 1)), dtype=torch.int64, device=device)
        self._allocated = torch.zeros(batch, dtype=torch.int64, device=device)
        depths = torch.arange(1, depth + 1, dtype=torch.float32, device=device)
        self._copy_joint = (0.5**depths).repeat(batch, 1)  # what the scheduler believes of drafts it knows nothing of
        self._drafter = (
            Drafter(context.draft_head, context.model, context.cache, context.state, batch, depth, self._operations)
            if context.draft_head is not None
            else None
        )
        self._scores = PromptScores(context) if shape.kind is GraphKind.SCORED_PREFILL else None
        self._keeps_hidden = self._drafter is not None or self._scores is not None
        self._one_row_each = width == 1 and not self.lanes.takes_prompts
        self._lengths = self.lanes.lengths
        self._first_rows = self._lengths
        self.logits = torch.empty(0)

    @property
    def drafts(self) -> torch.Tensor:
        """The latest run's proposals [B, D], token ids: copies where there were any."""
        return self._lane_tokens[:, 1 : self.shape.draft_depth + 1]

    def run(self, lanes: Sequence[LaneInput]) -> RoundOutput:
        """Run up to B lanes once; () warms up and touches padding only.

        The lanes fit, as gpu.frames.check_frame sees to. Raises InvalidFrame beyond the buffers; nothing ran then.
        """
        self.upload(lanes)
        with torch.inference_mode():
            self.execute()
        return self.download(lanes)

    def upload(self, lanes: Sequence[LaneInput]) -> None:
        """Write the static inputs. Raises InvalidFrame beyond the buffers; nothing was written then."""
        self.send(self.stage(lanes))

    def stage(self, lanes: Sequence[LaneInput]) -> int:
        """Put the inputs into host memory and say where, for send(). Raises InvalidFrame as upload() does."""
        return self.lanes.stage(lanes)

    def send(self, turn: int) -> None:
        """Bring what stage() put at `turn` to the device."""
        self.lanes.send(turn)

    def execute(self) -> None:
        """Everything between inputs and outputs."""
        context, sampler, state = self._context, self._sampler, self._state
        sampler.begin(self.lanes, state)
        self._draft()
        self._lengths = lengths = self._allocate()
        rows = self._placement.layout.lay(lengths, self._lane_tokens, self.lanes, state)
        attend = writing_attention(context.cache, rows.write_rows, self._placement.mix(rows, lengths))
        hidden = hidden_states(context.model, rows.token_ids, rows.positions, attend, self._operations)
        logit_rows, first_rows = self._placement.logit_rows(rows, lengths)
        self._first_rows = first_rows
        wanted = hidden if logit_rows is None else hidden.index_select(0, logit_rows)
        self.logits = logits(context.model, wanted, self._operations)
        drawn_lengths = self._progress.drawn_lengths(lengths)
        sampler.verify(self.logits, RoundRows(drawn_lengths, first_rows, self._lane_tokens[:, 1:]))
        consumed = self._progress.advance(lengths, sampler.verdict)
        if self._keeps_hidden:
            self._keep_hidden(rows, hidden, consumed)

    def download(self, lanes: Sequence[LaneInput]) -> RoundOutput:
        """What the run did, for its lanes in order."""
        scored = None if self._scores is None else self._scores.entries
        return round_output(self.outputs, lanes, self._sampler.logprobs, scored)

    @property
    def outputs(self) -> RunOutputs:
        """What the latest run left, on the device."""
        verdict = self._sampler.verdict
        return RunOutputs(
            emitted=verdict.emitted,
            counts=verdict.counts,
            lengths=self._lengths,
            finite=verdict.finite,
            first_rows=self._first_rows,
            survival=verdict.survival,
            conditional=None if self._drafter is None else self._drafter.conditional,
        )

    def prompt_logprobs(self, lane: LaneInput) -> tuple[TokenLogprobs, ...] | None:
        """Those of the lane's prompt tokens in the latest run; none but after scored prefill, None if not finite."""
        return () if self._scores is None else self._scores.entries(lane)

    def _draft(self) -> None:
        """Fill lane_tokens: pending token, then copies or learned drafts."""
        tokens, depth = self._lane_tokens, self.shape.draft_depth
        self._progress.take_pending(tokens)
        if not depth:
            return
        copied = self.lanes.copied[:, None] > 0
        if self._drafter is None:
            tokens[:, 1 : depth + 1] = self.lanes.copies
            return
        if self._context.style is ExecutionStyle.EAGER and not self.lanes.drafts_are_learned():
            tokens[:, 1 : depth + 1] = self.lanes.copies
            self._drafter.skip()
            return
        slots, _ = self.lanes.decoding(self.lanes.lengths)
        columns = self._columns.holding(self._state.cursor.index_select(0, slots))
        self._drafter.draft(slots, columns, self._sampler)
        tokens[:, 1 : depth + 1] = torch.where(copied, self.lanes.copies, self._drafter.token_ids)
        learned = ~copied & (slots != self._state.padding_slot)[:, None]
        self._drafter.conditional.mul_(learned)

    def _allocate(self) -> torch.Tensor:
        """Rows of each lane [B]."""
        lanes, context = self.lanes, self._context
        if self.shape.allocation is not Allocation.DEVICE or context.allocate_rows is None:
            return lanes.lengths
        slots, limits = lanes.decoding(lanes.lengths)
        joint = self._copy_joint
        if self._drafter is not None:
            joint = torch.where(lanes.copied[:, None] > 0, joint, self._drafter.joint)
        context.allocate_rows(joint, limits, slots, self.shape.target_rows, self._allocated)
        lengths: torch.Tensor = torch.where(lanes.is_prompt(), lanes.lengths, self._allocated)
        return lengths

    def _keep_hidden(self, rows: TokenRows, hidden: torch.Tensor, consumed: torch.Tensor) -> None:
        """Write draft entries or score the prompt, then replace each lane's last hidden state."""
        state, slots = self._state, self.lanes.slots
        last = state.last_hidden.index_select(0, slots)
        row_count = hidden.shape[0]
        if self._one_row_each:  # before each row is the slot's last hidden state, and behind it nothing
            if self._drafter is not None:
                self._drafter.absorb(rows, last)
            state.last_hidden.index_copy_(0, slots, torch.where(consumed[:, None] > 0, hidden, last))
            return
        before = torch.arange(row_count, device=hidden.device) - 1
        before = torch.where(rows.offsets == 0, row_count + rows.lanes, before)
        previous = torch.cat((hidden, last)).index_select(0, before)
        if self._drafter is not None:
            self._drafter.absorb(rows, previous)
        if self._scores is not None:
            self._scores.keep(rows, previous)
        final = (rows.starts + consumed - 1).clamp_(min=0, max=row_count - 1)
        kept = torch.where(consumed[:, None] > 0, hidden.index_select(0, final), last)
        state.last_hidden.index_copy_(0, slots, kept)
