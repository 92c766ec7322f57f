"""Learned proposals of a round, and keeping the draft layer's KV true to what a request has consumed.

A request with cursor c has draft entries 0 .. c-2 in its pages and h_{c-1} in its state row. Drafting adds
provisional entries from c-1 on to a private window, never to the pages; absorption writes the true ones.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gpu.model.draft_head import DraftHead, confidence, draft_entries, draft_inputs, draft_layer, draft_logits
from gpu.model.row_operations import TORCH_ROWS, RowOperations
from gpu.model.weights import Model
from gpu.pages import PAGE_TOKENS, KvCache
from gpu.programs.attention import causal_mask, read_rows
from gpu.programs.rows import TokenRows, kv_rows
from gpu.programs.sampler import RoundSampler
from gpu.state import SlotState


class Drafter:
    """D draft positions for each of B lanes.

    token_ids int64 [B, D]: the drafts. conditional, joint float32 [B, D]: probability that the target accepts a draft
    given that all before were accepted, and that it accepts all up to this one.
    """

    def __init__(
        self,
        head: DraftHead,
        model: Model,
        cache: KvCache,
        state: SlotState,
        lanes: int,
        depth: int,
        operations: RowOperations = TORCH_ROWS,
    ) -> None:
        self._head = head
        self._operations = operations
        self._model = model
        self._cache = cache
        self._state = state
        device = state.device
        self._depth = depth
        self._last_position = model.cosines.shape[0] - 1
        self.token_ids = torch.zeros((lanes, depth), dtype=torch.int64, device=device)
        self.conditional = torch.zeros((lanes, depth), dtype=torch.float32, device=device)
        self.joint = torch.zeros((lanes, depth), dtype=torch.float32, device=device)

    def draft(self, slots: torch.Tensor, columns: int, sampler: RoundSampler) -> None:
        """Draft for `slots` [B], whose contexts lie in the first `columns` pages. Padding slots compute too."""
        head, model, state = self._head, self._model, self._state
        entries = state.cursor.index_select(0, slots) - 1
        pages = state.page_table.index_select(0, slots)[:, :columns]
        window = _DraftWindow(model, self._cache, pages, entries, self._depth)
        hidden = state.last_hidden.index_select(0, slots)
        tokens = state.pending.index_select(0, slots).clamp_(min=0)
        for step in range(self._depth):
            positions = (entries + step).clamp_(min=0, max=self._last_position)
            inputs = draft_inputs(head, hidden, model.embedding(tokens), self._operations)
            hidden = draft_layer(head, model, inputs, positions, window.attend, self._operations)
            normed, logits = draft_logits(head, model, hidden, self._operations)
            chosen = sampler.draft(step, logits)
            # Of the likeliest draft, not of the drawn one: whether a device admits a sampled draft must not depend on
            # which token it is, or verification would no longer give the target's distribution.
            log_q = logits.amax(dim=1) - logits.logsumexp(dim=1)
            tokens = chosen if head.draft_token_ids is None else head.draft_token_ids.index_select(0, chosen)
            self.token_ids[:, step] = tokens
            # A head that overflows is not believed; the target verifies what it proposes all the same.
            self.conditional[:, step] = confidence(head, normed, log_q).nan_to_num(nan=0.0)
        torch.cumprod(self.conditional, dim=1, out=self.joint)

    def skip(self) -> None:
        """A run without learned drafts."""
        self.conditional.zero_()
        self.joint.zero_()

    def absorb(self, rows: TokenRows, previous_hidden: torch.Tensor) -> None:
        """Write each row's entry, one position before it. Those of rejected drafts lie past the request's true ones.

        `previous_hidden` [R, hidden]: the target's hidden state one position before each row.
        """
        head, model = self._head, self._model
        entries = (rows.positions - 1).clamp_(min=0)
        inputs = draft_inputs(head, previous_hidden, model.embedding(rows.token_ids), self._operations)
        key, value = draft_entries(head, model, inputs, entries, self._operations)
        write_rows = kv_rows(self._state, rows.slots, entries, rows.valid & (rows.positions > 0))
        layer = model.config.layers
        self._cache.keys[layer].index_copy_(0, write_rows, key)
        self._cache.values[layer].index_copy_(0, write_rows, value)


class _DraftWindow:
    """The draft layer's keys and values of a round: each lane's true entries, then one place for each draft step."""

    def __init__(self, model: Model, cache: KvCache, pages: torch.Tensor, entries: torch.Tensor, depth: int) -> None:
        """`pages` [B, columns] hold the true entries, those below `entries` [B]."""
        config, layer = model.config, model.config.layers
        lanes, self._context = pages.shape[0], pages.shape[1] * PAGE_TOKENS
        rows = read_rows(pages, entries - 1).view(-1)
        shape = (lanes, self._context + depth, config.kv_heads, config.head_dim)
        self._keys, self._values = (layers[layer].new_empty(shape) for layers in (cache.keys, cache.values))
        context = (lanes, self._context, config.kv_heads, config.head_dim)
        self._keys[:, : self._context] = cache.keys[layer].index_select(0, rows).view(context)
        self._values[:, : self._context] = cache.values[layer].index_select(0, rows).view(context)
        self._mask = torch.zeros((lanes, 1, 1, self._context + depth), dtype=model.dtype, device=pages.device)
        self._mask[:, 0, 0, : self._context] = causal_mask(entries - 1, self._context, model.dtype)
        self._query = (lanes, config.kv_heads, config.group, config.head_dim)
        self._entry = (lanes, config.kv_heads, config.head_dim)
        self._step = 0

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Take the step's entries [B, kv_heads * head_dim] in and attend; one call per step, in order."""
        self._keys[:, self._context + self._step] = key.view(self._entry)
        self._values[:, self._context + self._step] = value.view(self._entry)
        self._step += 1
        used = self._context + self._step
        mixed = F.scaled_dot_product_attention(
            query.reshape(self._query),
            self._keys[:, :used].transpose(1, 2),
            self._values[:, :used].transpose(1, 2),
            attn_mask=self._mask[..., :used],
        )
        return mixed.reshape(query.shape[0], -1)
