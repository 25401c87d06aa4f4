"""Replace what a prefill graph computes from positions 0, 1, ... by the same for the positions of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_ir.errors import GraphError
from torch_ir.ir import IR, Dim, Dtype, Expr, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.llm.forms.fixed_parts import copy_at, new_budget, values_at
from torch_ir.llm.forms.mask_kinds import MaskKind
from torch_ir.llm.forms.slot_layouts import Slots, Steps
from torch_ir.rewrite import Builder

_LENGTHS, _LONGEST = (5, 9), 1 << 17  # of prompts whose values are compared
_ONLY_SHAPES = ("aten.unsqueeze.default", "aten.view.default", "aten.reshape.default")


class PositionReads:
    """The fixed tensors of a graph that depend on positions, and what replaces them where they are read.

    A tensor with one dimension of positions is a table: it is computed once for `length` positions, and the rows of the
    tokens of a step are selected. A mask has two, and is made of the positions of queries and keys. Where positions are
    those of keys, the tensor is computed for all keys.
    """

    def __init__(
        self, graph: IR, names: FreeNames, steps: Steps, length: int | None, emit: Callable[[Sequence[OpNode]], None]
    ) -> None:
        self.graph, self.names, self.steps, self.length, self.emit = graph, names, steps, length, emit
        self._rows: dict[TensorMeta, TensorMeta] = {}
        self._read: dict[tuple[TensorMeta, int], TensorMeta] = {}
        self._over_keys: dict[tuple[TensorMeta, Dim], TensorMeta] = {}
        self._masks: dict[tuple[MaskKind, Dim, str], TensorMeta] = {}
        self._varies: dict[TensorMeta, bool] = {}
        self._budget = new_budget()

    def axes(self, tensor: TensorMeta) -> list[int]:
        """Return the dimensions of a tensor that are positions."""
        return [axis for axis, size in enumerate(tensor.shape) if size == self.steps.seq]

    def varies(self, tensor: TensorMeta) -> bool:
        """Whether a tensor with one dimension of positions differs along it; raise GraphError if it is not a table.

        All positions count: the factors of some models are 1 up to a position far behind the first. Without a limit,
        the first 131,072 are compared.
        """
        tensor = self._root(tensor)
        if tensor not in self._varies:
            (axis,) = self.axes(tensor)
            table = self._values(tensor, min(self.length or _LONGEST, _LONGEST))
            for count in _LENGTHS:
                rows = min(count, table.shape[axis])
                if not torch.equal(self._values(tensor, count).narrow(axis, 0, rows), table.narrow(axis, 0, rows)):
                    raise GraphError(f"{tensor.name!r:.80} depends on the length of the prompt, not only on positions")
            self._varies[tensor] = not _is_one_row(table, axis)
            if not self._varies[tensor] and self.length is not None and self.length > table.shape[axis]:
                self._varies[tensor] = not _is_one_row(self._values(tensor, self.length), axis)
        return self._varies[tensor]

    def _values(self, tensor: TensorMeta, count: int) -> torch.Tensor:
        """Return the values of a fixed tensor for prompts of so many tokens."""
        sizes = {self.steps.batch: 2, self.steps.seq: count}
        return values_at(self.graph, [tensor], sizes, {}, self._budget)[0]

    def over_keys(self, tensor: TensorMeta, layout: Slots) -> TensorMeta:
        """Return a tensor with one dimension of positions for all keys."""
        if self.varies(tensor) and layout.is_rolling:
            raise GraphError(f"{tensor.name!r:.80} depends on the positions of keys, which roll; leave out `rolling`")
        keys = layout.size
        if (tensor, keys) not in self._over_keys:
            copies = copy_at(self.graph, tensor, {self.steps.seq: keys}, self.names)
            self.emit(copies)
            self._over_keys[tensor, keys] = copies[-1].outputs[tensor.index]
        return self._over_keys[tensor, keys]

    def of_tokens(self, g: Builder, tensor: TensorMeta, rank: int) -> TensorMeta:
        """Return a tensor with one dimension of positions for the tokens of a step, for a reader of this rank."""
        if (tensor, rank) not in self._read:
            (axis,) = self.axes(tensor)
            shape: list[Dim] = [*[1] * (rank - len(tensor.shape)), *tensor.shape]
            place = axis + rank - len(tensor.shape)
            if place == 0 or any(size not in (1, self.steps.batch) for size in shape[:place]):
                raise GraphError(f"{tensor.name!r:.80}, a table of positions, has dimensions before that of the tokens")
            rows = self._selected(g, tensor)
            shape = [self.steps.batch, *[1] * (place - 1), self.steps.seq, *shape[place + 1 :]]
            self._read[tensor, rank] = g.op("aten.reshape.default", self=rows, shape=_sizes(shape))
        return self._read[tensor, rank]

    def _root(self, tensor: TensorMeta) -> TensorMeta:
        """Return the table that a table is a view of, with other dimensions of size 1."""
        while (maker := tensor.producer) is not None and maker.op_type in _ONLY_SHAPES:
            source = maker.inputs[0]
            if len(self.axes(source)) != 1 or _wide(source) != _wide(tensor):
                break
            tensor = source
        return tensor

    def _selected(self, g: Builder, tensor: TensorMeta) -> TensorMeta:
        """Return the rows of a table, [batch * seq, ...]."""
        tensor = self._root(tensor)
        if tensor not in self._rows:
            if self.length is None:
                raise GraphError(f"{tensor.name!r:.80} is a table of positions without a limit; pass max_length")
            axis = self.axes(tensor)[0]
            copies = copy_at(self.graph, tensor, {self.steps.seq: self.length, self.steps.batch: 1}, self.names)
            self.emit(copies)
            table = copies[-1].outputs[tensor.index]
            table = g.op("aten.reshape.default", self=table, shape=[self.length, *table.shape[axis + 1 :]])
            index = self.steps.flat(g, self.steps.positions)
            self._rows[tensor] = g.op("aten.index_select.default", self=table, dim=0, index=index)
        return self._rows[tensor]

    def mask(self, g: Builder, kind: MaskKind, layout: Slots, dtype: str) -> TensorMeta:
        """Return the mask of a step, [batch, 1, seq, keys]."""
        place = (kind, layout.size, dtype)
        if place not in self._masks:
            query = g.op(
                "aten.reshape.default",
                self=self.steps.positions,
                shape=_sizes([self.steps.batch, 1, self.steps.seq, 1]),
            )
            keys = layout.key_positions(g)
            shape = [keys.shape[0], 1, 1, layout.size]
            key = g.op("aten.reshape.default", self=keys, shape=_sizes(shape))
            sees = _sees(g, kind, query, key)
            if keys.shape[0] != 1:  # of rolling slots, some of which are not in use yet
                used = g.op("aten.ge.Scalar", self=key, other=0)
                sees = g.op("aten.logical_and.default", self=sees, other=used)
            self._masks[place] = _as_mask(g, kind, sees, dtype)
        return self._masks[place]


def _sees(g: Builder, kind: MaskKind, query: TensorMeta, key: TensorMeta) -> TensorMeta:
    """Return whether queries see keys, as `MaskKind.sees`."""
    sees = g.op("aten.le.Tensor", self=key, other=query)
    if kind.window is not None:
        first = g.op("aten.sub.Tensor", self=query, other=kind.window)
        inside = g.op("aten.gt.Tensor", self=key, other=first)
        sees = g.op("aten.logical_and.default", self=sees, other=inside)
    if kind.chunk is not None:
        chunks = [g.op("aten.floor_divide.Scalar", self=each, other=kind.chunk) for each in (query, key)]
        same = g.op("aten.eq.Tensor", self=chunks[1], other=chunks[0])
        sees = g.op("aten.logical_and.default", self=sees, other=same)
    return sees


def _as_mask(g: Builder, kind: MaskKind, sees: TensorMeta, dtype: str) -> TensorMeta:
    """Return a mask with the values of the model's own."""
    if dtype == "bool":
        return sees if kind.seen else g.op("aten.logical_not.default", self=sees)
    numbers = [_full(g, value, dtype, rank=0) for value in (kind.seen, kind.unseen)]
    return g.op("aten.where.self", condition=sees, self=numbers[0], other=numbers[1])


def uniform(g: Builder, kind: MaskKind, mask: TensorMeta) -> TensorMeta:
    """Return what is broadcast to a mask that has one value for all keys."""
    return _full(g, kind.seen, mask.dtype, rank=len(mask.shape))


def _full(g: Builder, value: float | bool, dtype: str, rank: int) -> TensorMeta:
    return g.op("aten.full.default", size=[1] * rank, fill_value=value, dtype=Dtype(dtype))


def _is_one_row(table: torch.Tensor, axis: int) -> bool:
    """Whether a table has the same row at all positions."""
    return torch.equal(table, table.narrow(axis, 0, 1).expand_as(table))


def _wide(tensor: TensorMeta) -> list[Dim]:
    return [size for size in tensor.shape if size != 1]


def _sizes(shape: Sequence[Dim]) -> list[int | Expr]:
    return [Expr(size) if isinstance(size, str) else size for size in shape]
