"""Decompositions of operators for which torch has none, written in torch: grouped products and histograms.

Every target uses them. Each rule is a function of the operator's arguments. It is traced at concrete sizes and never
runs on values.

A grouped product multiplies the rows of each group by the matrix of that group; groups are consecutive, and `offs` are
their ends, which are data. Its decomposition has fixed sizes: rows are put into tiles, each of one group, and a batched
product multiplies each tile by a copy of the matrix of its group.

    groups of 3, 0 and 2 rows, tiles of 2   ->   [0 1] [2 -] of group 0, [3 4] of group 2, one idle tile

With S rows and G groups, a tile has S // G + 1 rows, so that there are fewer than 2 G tiles: at most twice the
multiply-adds of the groups (and 2 G rows more), and at most 2 G copied matrices. Fewer rows than groups are tiles of
one row, without idle ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_ir.ir import OpNode
from torch_ir.ir.json.json_fields import Dim

Rule = Callable[..., Any]  # NotImplemented leaves a node as it is


@dataclass(frozen=True)
class SizedRule:
    """A rule with a second form for symbolic sizes, the same at all sizes, and the sizes that its steps may have."""

    fixed: Rule
    opened: Rule
    sizes: Callable[[OpNode], Iterable[Dim]]

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.fixed(*args, **options)


# -- grouped products -------------------------------------------------------------------------------------------------


class _Tiles:
    """The tiles of `count` places in consecutive groups that end at `ends`."""

    def __init__(self, ends: Tensor, count: int) -> None:
        groups = ends.shape[0]
        self.width = count // groups + 1
        self.ends = ends.to(torch.int64)
        self.starts = torch.cat([torch.zeros_like(self.ends[:1]), self.ends[:-1]])
        tiles = (self.ends - self.starts + (self.width - 1)) // self.width
        tile_ends = tiles.cumsum(0)
        self.tile_starts = tile_ends - tiles
        numbers = _numbers(count, ends)[: 2 * groups]  # a slice: some targets have no minimum of sizes
        self.groups = _group_of(numbers, tile_ends).clamp(max=groups - 1)  # of each tile; idle ones are of the last
        first = self.starts[self.groups] + (numbers - self.tile_starts[self.groups]) * self.width
        self.places = first[:, None] + _numbers(self.width, ends)[None]  # tile, place in it: may be of the next group

    def of(self, places: Tensor, groups: Tensor) -> Tensor:
        """Return where places, of which the groups are known, are among all places of all tiles."""
        return self.tile_starts[groups] * self.width + (places - self.starts[groups])


def _numbers(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, dtype=torch.int64, device=like.device)


def _group_of(places: Tensor, ends: Tensor) -> Tensor:
    """Return the group of each place; places after the last group have the number of groups."""
    return (places[:, None] >= ends[None]).sum(1)


def _rows_by_group(input: Tensor, weight: Tensor, offs: Tensor, *, few: bool) -> Tensor:
    """Multiply each row by the matrix of its group; rows after the last group are zeros."""
    count, groups = input.shape[0], weight.shape[0]
    rows = _numbers(count, input)
    found = _group_of(rows, offs)
    own = found.clamp(max=groups - 1)
    if few and count <= groups:
        made = torch.bmm(input[:, None], weight[own])[:, 0]
    else:
        tiles = _Tiles(offs, count)
        whole = torch.bmm(input[tiles.places.clamp(max=count - 1)], weight[tiles.groups])
        made = whole.reshape(-1, whole.shape[2])[torch.where(found < groups, tiles.of(rows, own), 0)]
    return torch.where((found < groups)[:, None], made, 0.0)


def _one_product_each(left: Tensor, right: Tensor, offs: Tensor) -> Tensor:
    """Multiply the columns of each group by its rows: one product for each group of the summed dimension."""
    count, groups = left.shape[1], offs.shape[0]
    tiles = _Tiles(offs, count)
    is_own = tiles.places < tiles.ends[tiles.groups][:, None]
    places = tiles.places.clamp(max=count - 1)
    lefts = torch.where(is_own[:, :, None], left.t()[places], 0.0)
    rights = torch.where(is_own[:, :, None], right[places], 0.0)
    parts = torch.bmm(lefts.transpose(1, 2), rights)
    start = torch.zeros(groups, left.shape[0], right.shape[1], dtype=parts.dtype, device=parts.device)
    return start.index_add(0, tiles.groups, parts)


def _grouped(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    few: bool,
) -> Any:
    """Groups of rows, of columns, of the summed dimension, or none: a batched product."""
    if bias is not None or out_dtype not in (None, self.dtype) or 0 in (*self.shape, *mat2.shape):
        return NotImplemented
    if offs is None:
        return torch.bmm(self, mat2)
    if self.dim() == mat2.dim() == 2:
        return _one_product_each(self, mat2, offs)
    if self.dim() == 2:
        return _rows_by_group(self, mat2, offs, few=few)
    return _rows_by_group(mat2.t(), self.transpose(1, 2), offs, few=few).t()


def _grouped_fixed(*args: Any, **options: Any) -> Any:
    return _grouped(*args, few=True, **options)


def _grouped_opened(*args: Any, **options: Any) -> Any:
    return _grouped(*args, few=False, **options)


def _grouped_sizes(node: OpNode) -> Iterable[Dim]:
    """Yield the width and the number of tiles as expressions, for each size that may be divided into groups."""
    groups = next((tensor.shape[0] for tensor in node.inputs if len(tensor.shape) in (1, 3)), 1)
    for dim in dict.fromkeys(dim for tensor in node.inputs for dim in tensor.shape if isinstance(dim, str)):
        yield f"({dim}) // {groups} + 1"
        yield f"min({dim}, {2 * int(groups)})"


GROUPED: dict[str, Rule] = dict.fromkeys(
    ("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default"),
    SizedRule(_grouped_fixed, _grouped_opened, _grouped_sizes),
)


# -- histograms -------------------------------------------------------------------------------------------------------


def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Count elements in equal bins of a range; without a range, it would depend on the data."""
    if min >= max:
        return NotImplemented
    flat = self.reshape(-1, 1)
    places = ((flat - min) * bins / (max - min)).floor().clamp(max=bins - 1)
    bars = torch.arange(bins, dtype=self.dtype, device=self.device)
    return ((places == bars) & (flat >= min) & (flat <= max)).sum(0).to(self.dtype)


OWN_DECOMPOSITIONS: dict[str, Rule] = {
    **GROUPED,
    "aten.histc.default": histc,
}
