"""Records the operations of a program as a CUDA graph would: fixed operations on fixed addresses with fixed numbers."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS_ON_HOST = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "lift_fresh", "_unique2"}


class OpRecorder(TorchDispatchMode):
    """`trace`: each operation with its arguments.

    A tensor that the program made itself is described by its shape, one that was there before by its address too.
    Values that the host put into an argument stand there as they are, as a graph would keep them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trace: list[tuple] = []
        self._made: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in READS_ON_HOST, f"{name} makes the host wait, which no capture allows"
        leaves = tree_leaves((args, kwargs or {}))
        self.trace.append((func, *map(self._describe, leaves)))
        if name in ("index", "index_put_"):
            masks = [index for index in args[1] if index is not None and index.dtype is torch.bool]
            assert not masks, f"{name} by a mask makes the host wait, which no capture allows"
        result = func(*args, **(kwargs or {}))
        known = {self._key(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        for leaf in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and self._key(leaf) not in known:
                self._made[self._key(leaf)] = leaf  # kept alive: no address is used twice
        return result

    @staticmethod
    def _key(tensor: torch.Tensor) -> int:
        return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage()._cdata

    def _describe(self, leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return str(leaf)
        if leaf.is_mkldnn:  # a packed weight
            return id(leaf)
        address = None if self._key(leaf) in self._made else leaf.data_ptr()
        return address, tuple(leaf.shape), leaf.stride(), leaf.dtype
