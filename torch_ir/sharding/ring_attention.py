"""Attention over sharded keys and values: the style `ring`.

Each rank in turn sends its block of keys and values to all others, which attend to one block while they get the next.
Softmax over all keys is merged from those over blocks, with m the largest score so far:

    m' = max(m, max(scores))    l' = l exp(m - m') + sum(exp(scores - m'))    o' = o exp(m - m') + exp(scores - m') v
    result = o / l, which is zero where every key is masked, as in torch
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch_ir.ir import Dim, Dtype, TensorMeta
from torch_ir.sharding.placement_rules import PlacedNode
from torch_ir.sharding.rank_writer import NEW, Writer

_NARROW = ("float16", "bfloat16")  # merged in float32, as fused kernels do


class _Merged(NamedTuple):
    largest: TensorMeta
    total: TensorMeta
    result: TensorMeta


def in_blocks(writer: Writer, inputs: dict[str, TensorMeta], placed: PlacedNode) -> list[TensorMeta]:
    """Attend to the keys and values of all ranks, block by block."""
    steps = _Steps(writer, inputs, placed)
    merged, begun = None, steps.send(0)
    for rank in range(writer.ranks):
        following = steps.send(rank + 1) if rank + 1 < writer.ranks else begun
        merged, begun = steps.with_block(rank, writer.received(begun), merged), following
    assert merged is not None
    none = steps.add("aten.eq.Scalar", {"self": merged.total}, dtype="bool", other=0)
    safe = steps.add("aten.masked_fill.Scalar", {"self": merged.total, "mask": none}, value=1)
    return [steps.cast(steps.add("aten.div.Tensor", {"self": merged.result, "other": safe}), inputs["query"].dtype)]


class _Steps:
    """State that all blocks share: scaled queries, and keys and values as one message."""

    def __init__(self, writer: Writer, inputs: Mapping[str, TensorMeta], placed: PlacedNode) -> None:
        self.writer, self.placed = writer, placed
        query, key, value = (inputs[name] for name in ("query", "key", "value"))
        self.mask, self.is_causal = inputs.get("attn_mask"), placed.node.attrs["is_causal"] is True
        self.size, self.width = int(key.shape[-2]), int(key.shape[-1])
        self.dtype = "float32" if query.dtype in _NARROW else query.dtype
        self.groups = int(query.shape[-3]) // int(key.shape[-3]) if placed.node.attrs.get("enable_gqa") else 1
        scale = placed.node.attrs.get("scale")
        scale = 1 / math.sqrt(self.width) if scale is None else scale
        self.query = self.add("aten.mul.Scalar", {"self": self.cast(query, self.dtype)}, other=scale)
        shape = (*key.shape[:-1], self.width + int(value.shape[-1]))
        self.message = self.add("aten.cat.default", {"tensors.0": key, "tensors.1": value}, shape, dim=-1)

    def send(self, rank: int) -> TensorMeta:
        """Begin to send the keys and values of a rank to all others."""
        return self.writer.broadcast(self.message, rank)

    def with_block(self, rank: int, block: TensorMeta, before: _Merged | None) -> _Merged:
        """Merge what the keys and values of a rank contribute."""
        block = self.cast(block, self.dtype)
        if self.groups > 1:
            repeated: dict[str, Any] = {"repeats": self.groups, "dim": -3, "output_size": None}
            shape = (*block.shape[:-3], int(block.shape[-3]) * self.groups, *block.shape[-2:])
            block = self.writer.add("aten.repeat_interleave.self_int", {"self": block}, repeated, shape=shape)
        keys, values = self._columns(block, 0, self.width), self._columns(block, self.width, int(block.shape[-1]))
        shape = (*keys.shape[:-2], self.width, self.size)
        turned = self.add("aten.transpose.int", {"self": keys}, shape, dim0=-2, dim1=-1)
        rows = self.query.shape[:-1]
        product = self.add("aten.matmul.default", {"self": self.query, "other": turned}, (*rows, self.size))
        scores = self._masked(product, rank)
        largest = self.add("aten.amax.default", {"self": scores}, (*rows, 1), dim=[-1], keepdim=True)
        if before is not None:
            largest = self.add("aten.maximum.default", {"self": before.largest, "other": largest})
        # where every key so far is masked
        none = self.add("aten.eq.Scalar", {"self": largest}, dtype="bool", other=-math.inf)
        base = self.add("aten.masked_fill.Scalar", {"self": largest, "mask": none}, value=0)
        weights = self._power(scores, base)
        attrs: dict[str, Any] = {"dim": [-1], "keepdim": True, "dtype": None}
        total = self.writer.add("aten.sum.dim_IntList", {"self": weights}, attrs, shape=(*rows, 1))
        shape = (*rows, values.shape[-1])
        result = self.add("aten.matmul.default", {"self": weights, "other": values}, shape)
        if before is not None:
            factor = self._power(before.largest, base)
            total, result = self._plus(before.total, factor, total), self._plus(before.result, factor, result)
        return _Merged(largest, total, result)

    def _masked(self, scores: TensorMeta, rank: int) -> TensorMeta:
        """Set the scores of keys that a query must not see to -inf, or add the mask to them."""
        first = rank * self.size
        if self.is_causal:
            queries = self.writer.rows(int(self.placed.tensor("query").shape[-2]))
            rows = self.add("aten.unsqueeze.default", {"self": queries}, (*queries.shape, 1), dim=1)
            attrs = {"start": first, "end": first + self.size, **NEW}
            keys = self.writer.add("aten.arange.start", {}, attrs, shape=(self.size,), dtype="int64")
            shape = (*queries.shape, self.size)
            hidden = self.add("aten.lt.Tensor", {"self": rows, "other": keys}, shape, "bool")
            return self.add("aten.masked_fill.Scalar", {"self": scores, "mask": hidden}, value=-math.inf)
        if self.mask is None:
            return scores
        mask = self.mask if self.mask.shape[-1] == 1 else self._columns(self.mask, first, first + self.size)
        if mask.dtype != "bool":
            return self.add("aten.add.Tensor", {"self": scores, "other": mask}, alpha=1)
        hidden = self.add("aten.logical_not.default", {"self": mask})
        return self.add("aten.masked_fill.Scalar", {"self": scores, "mask": hidden}, value=-math.inf)

    def _power(self, scores: TensorMeta, base: TensorMeta) -> TensorMeta:
        return self.add(
            "aten.exp.default", {"self": self.add("aten.sub.Tensor", {"self": scores, "other": base}, alpha=1)}
        )

    def _plus(self, old: TensorMeta, factor: TensorMeta, new: TensorMeta) -> TensorMeta:
        scaled = self.add("aten.mul.Tensor", {"self": old, "other": factor})
        return self.add("aten.add.Tensor", {"self": scaled, "other": new}, alpha=1)

    def _columns(self, tensor: TensorMeta, start: int, end: int) -> TensorMeta:
        shape = (*tensor.shape[:-1], end - start)
        return self.add("aten.slice.Tensor", {"self": tensor}, shape, dim=-1, start=start, end=end, step=1)

    def cast(self, tensor: TensorMeta, dtype: str) -> TensorMeta:
        """Return a tensor in another dtype."""
        if tensor.dtype == dtype:
            return tensor
        attrs = {"dtype": Dtype(dtype), "non_blocking": False, "copy": False, "memory_format": None}
        return self.writer.add("aten.to.dtype", {"self": tensor}, attrs, shape=tensor.shape, dtype=dtype)

    def add(
        self,
        op_type: str,
        inputs: Mapping[str, TensorMeta],
        shape: Sequence[Dim] | None = None,
        dtype: str = "",
        **attrs: Any,
    ) -> TensorMeta:
        """Add a node whose result has the shape of its first input, and its dtype, unless they are given."""
        first = next(iter(inputs.values()))
        return self.writer.add(op_type, inputs, attrs, shape=first.shape if shape is None else shape, dtype=dtype)
