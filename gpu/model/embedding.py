"""Token embedding and output head, which share one table in small models.

The head is a sixth of SmolLM2's weights. A single row multiplies quickest with the transposed table [hidden, vocab],
more rows with the packed one; tied models keep no third copy, since embedding reads columns of the transposed table.
"""

from __future__ import annotations

from typing import Protocol

import torch

from gpu.model.linear import Linear, make_linear


class TokenEmbedding(Protocol):
    """Token ids [rows], int64 -> hidden states [rows, hidden], contiguous and not shared with the table."""

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Look the rows up."""


class RowEmbedding:
    """A table [vocab, hidden]."""

    def __init__(self, table: torch.Tensor) -> None:
        self._table = table.contiguous()

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Look the rows up."""
        return self._table.index_select(0, token_ids)


class ColumnEmbedding:
    """A transposed table [hidden, vocab] that the output head shares."""

    def __init__(self, transposed: torch.Tensor) -> None:
        self._transposed = transposed

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Look the columns up."""
        return self._transposed.index_select(1, token_ids).t().contiguous()


class OutputHead:
    """Hidden states [rows, hidden], contiguous -> logits [rows, vocab] in the model's precision."""

    def __init__(self, transposed: torch.Tensor | None, many_rows: Linear) -> None:
        self._transposed = transposed
        self._many_rows = many_rows

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        if hidden.shape[0] == 1 and self._transposed is not None:
            return torch.mm(hidden, self._transposed)
        return self._many_rows(hidden)


def make_embedding_and_head(table: torch.Tensor, head: torch.Tensor) -> tuple[TokenEmbedding, OutputHead]:
    """The two ends of the model; pass the same tensor [vocab, hidden] twice when they are tied."""
    many_rows = make_linear(head)
    shares_transposed = table is head and table.dtype == torch.float32 and table.device.type == "cpu"
    if not shares_transposed:  # a bfloat16 product with the transposed table is slow
        return RowEmbedding(table), OutputHead(None, many_rows)
    transposed = table.t().contiguous()
    return ColumnEmbedding(transposed), OutputHead(transposed, many_rows)
