"""The draft head: one transformer layer over the target's hidden states that proposes tokens, with a confidence.

The entry at position i combines the target's hidden state h_i (before its final norm) with the embedding of the next
token x_{i+1}; its output g_i gives draft logits for x_{i+2} through the target's output head, and stands in for
h_{i+1} when the next draft is made. Training, programs and loader share these functions; only `attend` differs.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from gpu.device import ModelError
from gpu.model.layer import Attend, run_layer
from gpu.model.linear import Linear, make_linear
from gpu.model.row_operations import TORCH_ROWS, RowOperations
from gpu.model.weights import Model

FORMAT = "helios-draft-head-1"
DRAFT_TOKEN_IDS = "draft_token_ids"
_LAYER = "layer."

_SHARED_EXTENTS = ("hidden_size", "heads", "kv_heads", "head_dim")
_IDENTITY_ROWS = 128


@dataclasses.dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    """Extents of one draft head. `draft_vocab_size` is how many of the target's tokens it can propose."""

    target_name: str
    target_sha256: str
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    draft_vocab_size: int
    norm_epsilon: float


@dataclasses.dataclass(frozen=True, slots=True)
class DraftHead:
    """Everything that draft steps read. `qkv` and `gate_up` are fused as in LayerWeights; `entries` is key and value.

    `draft_token_ids` [draft_vocab] int64 maps a draft logit's column to a token id, ascending, and `output` has these
    rows of the target's output head. Both None: the head proposes every token, through the target's own head.
    `confidence_weight` is [hidden + 1] and `confidence_bias` [1], both float32.
    """

    config: DraftHeadConfig
    hidden_norm: torch.Tensor
    embedding_norm: torch.Tensor
    fuse: Linear
    attention_norm: torch.Tensor
    qkv: Linear
    entries: Linear
    attention_output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    final_norm: torch.Tensor
    output: Linear | None
    draft_token_ids: torch.Tensor | None
    confidence_weight: torch.Tensor
    confidence_bias: torch.Tensor


def draft_head_shapes(hidden: int, query: int, key: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Every float tensor of a head's file and its shape, in the order of use.

    `query` and `key` are the widths of all query heads and of all key heads together.
    """
    return {
        "hidden_norm.weight": (hidden,),
        "embedding_norm.weight": (hidden,),
        "fuse.weight": (hidden, 2 * hidden),
        _LAYER + "input_layernorm.weight": (hidden,),
        _LAYER + "self_attn.q_proj.weight": (query, hidden),
        _LAYER + "self_attn.k_proj.weight": (key, hidden),
        _LAYER + "self_attn.v_proj.weight": (key, hidden),
        _LAYER + "self_attn.o_proj.weight": (hidden, query),
        _LAYER + "post_attention_layernorm.weight": (hidden,),
        _LAYER + "mlp.gate_proj.weight": (inner, hidden),
        _LAYER + "mlp.up_proj.weight": (inner, hidden),
        _LAYER + "mlp.down_proj.weight": (hidden, inner),
        "final_norm.weight": (hidden,),
        "confidence.weight": (hidden + 1,),
        "confidence.bias": (1,),
    }


def draft_inputs(
    head: DraftHead, hidden: torch.Tensor, embeddings: torch.Tensor, operations: RowOperations = TORCH_ROWS
) -> torch.Tensor:
    """The layer's input u [rows, hidden].

    `hidden` [rows, hidden]: h_i, or the previous draft step's output. `embeddings` [rows, hidden]: of the next token.
    """
    state = operations.norm(hidden, head.hidden_norm, head.config.norm_epsilon)
    token = operations.norm(embeddings, head.embedding_norm, head.config.norm_epsilon)
    return head.fuse(torch.cat((state, token), dim=1))


def draft_layer(
    head: DraftHead,
    model: Model,
    u: torch.Tensor,
    positions: torch.Tensor,
    attend: Attend,
    operations: RowOperations = TORCH_ROWS,
) -> torch.Tensor:
    """The layer's output g [rows, hidden] for inputs u [rows, hidden] at `positions` [rows]; u is overwritten.

    `attend` is called once, with the layer index that follows the target's last: the entries' KV is one layer more.
    """
    run_layer(head, model.config.layers, model.config, u, _rotation(model, positions), attend, operations)
    return u


def draft_entries(
    head: DraftHead,
    model: Model,
    u: torch.Tensor,
    positions: torch.Tensor,
    operations: RowOperations = TORCH_ROWS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The layer's keys and values [rows, kv_heads * head_dim] for inputs u [rows, hidden] at `positions` [rows]."""
    config = model.config
    normed = operations.norm(u, head.attention_norm, config.norm_epsilon)
    fused = head.entries(normed).view(len(u), 2 * config.kv_heads, config.head_dim)
    _, key, value = operations.split_heads(fused, _rotation(model, positions), config.kv_heads)
    return key, value


def _rotation(model: Model, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [rows, 1, head_dim] of `positions` [rows]."""
    cosines, sines = (table.index_select(0, positions).unsqueeze(1) for table in (model.cosines, model.sines))
    return cosines, sines


def draft_logits(
    head: DraftHead, model: Model, g: torch.Tensor, operations: RowOperations = TORCH_ROWS
) -> tuple[torch.Tensor, torch.Tensor]:
    """(n [rows, hidden], logits [rows, draft_vocab] in float32) of layer outputs g [rows, hidden]."""
    normed = operations.norm(g, head.final_norm, head.config.norm_epsilon)
    output = model.head if head.output is None else head.output
    return normed, output(normed).float()


def confidence(head: DraftHead, n: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """The predicted probability [rows], float32, that the target accepts each draft, given that all before were.

    `log_q` [rows]: natural logarithm of the likeliest draft's probability at temperature 1.
    """
    hidden = head.config.hidden_size
    score = n.float() @ head.confidence_weight[:hidden] + head.confidence_weight[hidden] * log_q
    return torch.sigmoid(score + head.confidence_bias)


def load_draft_head(path: str | os.PathLike[str], model: Model, target_sha256: str | None = None) -> DraftHead:
    """Read the head at `path` in the precision and on the device of `model`, and pack its weights.

    Raises ModelError when the file is missing or damaged, or when the head was made for another target: other
    extents, or another weight file where the caller passes its `target_sha256`.
    """
    reader = _Reader(pathlib.Path(path), model)
    if target_sha256 is not None and reader.metadata.get("target_sha256") != target_sha256:
        raise ModelError(
            f"{path} was made for the weights with sha256 {reader.metadata.get('target_sha256')}, and this model's "
            f"are {target_sha256}; use the head of this model, train one, or serve without learned proposals"
        )
    ids = reader.token_ids()
    read = reader.read
    attention, mlp = _LAYER + "self_attn.", _LAYER + "mlp."
    qkv = torch.cat([read(f"{attention}{part}_proj.weight") for part in ("q", "k", "v")])
    return DraftHead(
        config=reader.config(model.config.vocab_size if ids is None else ids.shape[0]),
        hidden_norm=read("hidden_norm.weight"),
        embedding_norm=read("embedding_norm.weight"),
        fuse=make_linear(read("fuse.weight")),
        attention_norm=read(_LAYER + "input_layernorm.weight"),
        qkv=make_linear(qkv),
        entries=make_linear(qkv[model.config.heads * model.config.head_dim :]),
        attention_output=make_linear(read(attention + "o_proj.weight")),
        mlp_norm=read(_LAYER + "post_attention_layernorm.weight"),
        gate_up=make_linear(torch.cat([read(f"{mlp}{part}_proj.weight") for part in ("gate", "up")])),
        down=make_linear(read(mlp + "down_proj.weight")),
        final_norm=read("final_norm.weight"),
        output=None if ids is None else make_linear(output_rows(model, ids)),
        draft_token_ids=ids,
        confidence_weight=read("confidence.weight").float(),
        confidence_bias=read("confidence.bias").float(),
    )


def output_rows(model: Model, token_ids: torch.Tensor) -> torch.Tensor:
    """The target's output head's rows [ids, hidden] of `token_ids` [ids], an own copy.

    Packed weights cannot be read by row; their product with the identity is exact in every precision.
    """
    if model.config.tied_embeddings:
        return model.embedding(token_ids)
    identity = torch.eye(model.config.hidden_size, dtype=model.dtype, device=model.final_norm.device)
    parts = [model.head(rows.contiguous()).index_select(1, token_ids) for rows in torch.split(identity, _IDENTITY_ROWS)]
    return torch.cat(parts).t().contiguous()


def _open(path: pathlib.Path) -> Any:  # the library's own types are incomplete
    return safe_open(path, framework="pt")


class _Reader:
    """An open file whose extents fit the target."""

    def __init__(self, path: pathlib.Path, model: Model) -> None:
        self._path = path
        self._model = model
        try:
            self._file: Any = _open(path)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"the draft head {path} cannot be read: {error}; name a draft head's file") from error
        self.metadata: Mapping[str, str] = self._file.metadata() or {}
        if self.metadata.get("format") != FORMAT:
            raise ModelError(
                f"{path} says format {self.metadata.get('format')!r}, and a draft head says {FORMAT!r}; "
                "make one with gpu.training.draft_head"
            )
        for name in _SHARED_EXTENTS:
            self._check_extent(name, getattr(model.config, name))
        target = model.config
        query, key = target.heads * target.head_dim, target.kv_heads * target.head_dim
        self._shapes = draft_head_shapes(target.hidden_size, query, key, self._number("intermediate_size"))

    def config(self, draft_vocab_size: int) -> DraftHeadConfig:
        """The head's extents."""
        target = self._model.config
        return DraftHeadConfig(
            target_name=self.metadata.get("target_name", ""),
            target_sha256=self.metadata.get("target_sha256", ""),
            hidden_size=target.hidden_size,
            heads=target.heads,
            kv_heads=target.kv_heads,
            head_dim=target.head_dim,
            intermediate_size=self._number("intermediate_size"),
            draft_vocab_size=draft_vocab_size,
            norm_epsilon=target.norm_epsilon,
        )

    def read(self, name: str) -> torch.Tensor:
        """One float tensor of the expected shape, in the model's precision and on its device."""
        tensor = self._tensor(name)
        if tuple(tensor.shape) != self._shapes[name]:
            raise ModelError(
                f"{self._path}: {name} has the shape {tuple(tensor.shape)}, expected {self._shapes[name]}; "
                "get or train the head again"
            )
        if not tensor.is_floating_point():
            raise ModelError(f"{self._path}: {name} is {tensor.dtype}; a floating-point tensor was expected")
        return tensor.to(device=self._model.final_norm.device, dtype=self._model.dtype)

    def token_ids(self) -> torch.Tensor | None:
        """The proposable token ids [draft_vocab], int64, ascending; None when every token is."""
        if DRAFT_TOKEN_IDS not in self._file.keys():  # noqa: SIM118 - the file is no mapping
            return None
        ids = self._tensor(DRAFT_TOKEN_IDS)
        vocabulary = self._model.config.vocab_size
        good = ids.dtype == torch.int64 and ids.dim() == 1 and ids.numel() > 0
        if not good or not 0 <= int(ids[0]) <= int(ids[-1]) < vocabulary or not bool((ids.diff() > 0).all()):
            raise ModelError(
                f"{self._path}: {DRAFT_TOKEN_IDS} must be ascending int64 ids below {vocabulary}; "
                "use the head of this model"
            )
        return ids.to(self._model.final_norm.device)

    def _tensor(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._file.get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self._path} lacks the tensor {name}: {error}; get or train the head again") from error
        return tensor

    def _check_extent(self, name: str, expected: int) -> None:
        if (found := self._number(name)) != expected:
            raise ModelError(
                f"{self._path} was made for another target: its {name} is {found}, and the model's is {expected}; "
                "use the head of this model, train one, or serve without learned proposals"
            )

    def _number(self, name: str) -> int:
        text = self.metadata.get(name, "")
        if not text.isdecimal():
            raise ModelError(f"{self._path}: the metadata's {name} is {text!r}; a whole number was expected")
        return int(text)
