"""Layouts of a cache: rows of slots for each sequence, rolling or not, or blocks that sequences share.

A cache tensor is always [rows, columns, heads, size]. A layout says in which row and column a new entry goes, and how
the entries of a sequence are collected in the order of `key_positions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch_ir.ir import Dim, Dtype, Expr, TensorMeta
from torch_ir.rewrite import Builder

ROOM = "room"  # a size: the most tokens of a step over rolling slots
_BEYOND = 1 << 40  # a block that no pool has, so that writing to it is an error


@dataclass
class Steps:
    """Positions of the tokens of one step, shared by all layers."""

    batch: str
    seq: str
    positions: TensorMeta  # int64[batch, seq]
    inputs: Mapping[str, TensorMeta] = field(default_factory=dict)  # further inputs of the form

    def flat(self, g: Builder, tensor: TensorMeta) -> TensorMeta:
        return g.op("aten.reshape.default", self=tensor, shape=[-1])


@dataclass
class Slots:
    """One row for each sequence; the entry of position p is in column p."""

    steps: Steps
    columns: str = "slots"
    is_rolling: ClassVar[bool] = False  # whether an entry replaces one that its window has left behind

    @property
    def inputs(self) -> dict[str, tuple[Dim, ...]]:
        """The shapes of the inputs, int64, that say where entries are."""
        return {}

    @property
    def constraints(self) -> list[str]:
        """What must hold for the sizes of a step."""
        return []

    @property
    def rows(self) -> Dim:
        return self.steps.batch

    @property
    def size(self) -> Dim:
        """The number of keys that a query is compared with."""
        return self.columns

    @property
    def width(self) -> Dim:
        """The second size of a cache tensor."""
        return self.columns

    def places(self, g: Builder) -> tuple[TensorMeta, TensorMeta]:
        """Return the row and the column of each new entry, int64[batch, seq] or broadcast to it."""
        rows = g.op("aten.arange.default", end=Expr(self.steps.batch))
        return g.op("aten.unsqueeze.default", self=rows, dim=1), self.steps.positions

    def collect(self, g: Builder, cache: TensorMeta) -> TensorMeta:
        """Return the entries of each sequence, [batch, keys, heads, size]."""
        return cache

    def key_positions(self, g: Builder) -> TensorMeta:
        """Return the positions of the keys, int64[1 or batch, keys]."""
        return g.op("aten.unsqueeze.default", self=g.op("aten.arange.default", end=Expr(str(self.size))), dim=0)


@dataclass
class Rolling(Slots):
    """One row for each sequence, in which an entry replaces one that its window has left behind.

    The entry of position p is in column p modulo the number of columns, which is the window less one plus `room`, the
    most tokens of a step, so that no entry is replaced before its last reader. Tokens that a later step replaces, such
    as rejected drafts, do no harm: what they replaced is out of the window of every later token.
    """

    is_rolling: ClassVar[bool] = True

    @property
    def constraints(self) -> list[str]:
        return [f"{ROOM} >= {self.steps.seq}"]

    def places(self, g: Builder) -> tuple[TensorMeta, TensorMeta]:
        rows, positions = super().places(g)
        return rows, g.op("aten.remainder.Tensor", self=positions, other=_count(g, self))

    def key_positions(self, g: Builder) -> TensorMeta:
        return _wrapped_positions(g, self, super().key_positions(g))


@dataclass
class Paged(Slots):
    """Blocks of `block` entries; a table says which blocks a sequence has, a slot mapping where new entries go."""

    columns: str = "table"
    block: int = 16
    tables: ClassVar[str] = "block_tables"
    mapping: ClassVar[str] = "slot_mapping"

    @property
    def inputs(self) -> dict[str, tuple[Dim, ...]]:
        return {self.tables: (self.steps.batch, self.columns), self.mapping: (self.steps.batch, self.steps.seq)}

    @property
    def rows(self) -> Dim:
        return "blocks"

    @property
    def width(self) -> Dim:
        return self.block

    @property
    def size(self) -> Dim:
        return f"{self.block} * {self.columns}"

    def places(self, g: Builder) -> tuple[TensorMeta, TensorMeta]:
        slots = self.steps.inputs[self.mapping]
        row = g.op("aten.floor_divide.Scalar", self=slots, other=self.block)
        is_before = g.op("aten.lt.Scalar", self=slots, other=0)  # would count from the end
        row = g.op("aten.masked_fill.Scalar", self=row, mask=is_before, value=_BEYOND)
        return row, g.op("aten.remainder.Scalar", self=slots, other=self.block)

    def collect(self, g: Builder, cache: TensorMeta) -> TensorMeta:
        table = self.steps.flat(g, self.steps.inputs[self.tables])
        rows = g.op("aten.index_select.default", self=cache, dim=0, index=table)
        shape = [Expr(self.steps.batch), Expr(str(self.size)), *rows.shape[2:]]
        return g.op("aten.reshape.default", self=rows, shape=shape)


@dataclass
class RollingPaged(Paged):
    """Blocks of which a sequence has only as many as its window needs, and uses them in turn.

    The entry of position p is in block p // `block` modulo the number of blocks in the table.
    """

    columns: str = "window_table"
    window: int = 1  # the longest of the layers
    is_rolling: ClassVar[bool] = True
    tables: ClassVar[str] = "window_tables"
    mapping: ClassVar[str] = "window_mapping"

    @property
    def constraints(self) -> list[str]:
        return [f"{self.size} >= {self.steps.seq} + {self.window - 1}"]

    @property
    def rows(self) -> Dim:
        return "window_blocks"

    def key_positions(self, g: Builder) -> TensorMeta:
        return _wrapped_positions(g, self, super().key_positions(g))


def _wrapped_positions(g: Builder, layout: Slots, columns: TensorMeta) -> TensorMeta:
    """Return the last position of a step or before that is in each column, if entries are written in turn."""
    last = g.op("aten.slice.Tensor", self=layout.steps.positions, dim=1, start=-1)
    ahead = g.op("aten.sub.Tensor", self=last, other=columns)
    behind = g.op("aten.remainder.Tensor", self=ahead, other=_count(g, layout))
    return g.op("aten.sub.Tensor", self=last, other=behind)


def _count(g: Builder, layout: Slots) -> TensorMeta:
    return g.op("aten.full.default", size=[], fill_value=Expr(str(layout.size)), dtype=Dtype("int64"))
