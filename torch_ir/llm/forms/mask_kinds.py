"""Which keys a mask lets each query see: all before it, a window of the last, or those of its chunk.

A mask is compared with each kind. If its nodes compute each element from the two positions alone, it is computed at
positions around each number that the nodes mention; else, such as for a stored triangle, at all positions of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_ir.analysis.dependencies.slices import ancestors
from torch_ir.analysis.values.constants import Constants
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.llm.forms.fixed_parts import values_at

_FIRST = 6  # positions that are always compared
_NEAR = (-2, -1, 0, 1, 2)  # positions around each number, and around twice the number
_LARGEST = 1 << 24  # of the numbers that may be a window
_MOST_NUMBERS = 12
_MOST_POSITIONS = 2048  # at which a mask is computed whole
_ELEMENTWISE = frozenset(  # operators that keep each element at its place, or make one value
    f"aten.{name}"
    for name in (
        "__and__", "__or__", "_to_copy", "abs", "add", "alias", "arange", "bitwise_and", "bitwise_not", "bitwise_or",
        "clone", "contiguous", "detach", "div", "eq", "expand", "floor_divide", "full", "full_like", "ge", "gt", "le",
        "lift_fresh_copy", "logical_and", "logical_not", "logical_or", "lt", "masked_fill", "mul", "ne", "neg",
        "new_full", "new_ones", "new_zeros", "ones", "ones_like", "permute", "remainder", "reshape", "rsub",
        "scalar_tensor", "sub", "to", "transpose", "unsqueeze", "view", "where", "zeros", "zeros_like",
    )
)  # fmt: skip


@dataclass(frozen=True)
class MaskKind:
    """The keys that a query sees, all of them not after it, and what the mask has for a key seen and for one not."""

    window: int | None = None  # the query itself and the keys before it, so many in all
    chunk: int | None = None  # keys in the same chunk of this many positions
    seen: float | bool = True
    unseen: float | bool = False

    @property
    def is_uniform(self) -> bool:
        """Whether the mask has one value for all keys, so that it masks none."""
        return self.seen == self.unseen

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Return whether queries at some positions see keys at others."""
        seen = key <= query
        if self.window is not None:
            seen = seen & (key > query - self.window)
        if self.chunk is not None:
            seen = seen & (key // self.chunk == query // self.chunk)
        return seen


def mask_kind(
    graph: IR, mask: TensorMeta, batch: str, seq: str, constants: Constants, budget: Budget
) -> MaskKind | None:
    """Return the kind of a fixed mask whose last two dimensions are queries and keys; None if it is of no kind."""
    numbers = sorted(set(_numbers(graph, mask, constants)))[:_MOST_NUMBERS]
    counted = [node.output for node in ancestors(graph, [mask]) if _counts(node, seq)]
    is_of_positions = all(_keeps_places(node, seq) for node in ancestors(graph, [mask], stop=counted))
    if is_of_positions:
        near = {multiple * number + step for number in numbers for multiple in (1, 2) for step in _NEAR}
        positions = torch.tensor(sorted({*range(_FIRST), *(place for place in near if place >= 0)}))
    else:
        longest = graph.symbols[seq].max
        if longest is None or longest > _MOST_POSITIONS:
            return None
        counted, positions = [], torch.arange(longest)
    given = dict.fromkeys(counted, positions)
    (value,) = values_at(graph, [mask], {batch: 2, seq: len(positions)}, given, budget)
    rows = value.reshape(-1, *value.shape[-2:])
    if not bool((rows == rows[:1]).all()):
        return None
    found = rows[0]
    if bool((found == found[0, 0]).all()):
        return MaskKind(seen=found[0, 0].item(), unseen=found[0, 0].item())
    if not is_of_positions:
        numbers.append(int((found[-1] == found[-1, -1]).sum()))  # of keys that the last query sees
    kinds = [MaskKind(), *(MaskKind(window=number + step) for number in numbers for step in (-1, 0, 1))]
    kinds += [MaskKind(chunk=number) for number in numbers]
    for kind in kinds:
        sees = kind.sees(positions[:, None], positions[None])
        seen, unseen = found[sees].unique(), found[~sees].unique()
        if len(seen) == len(unseen) == 1 and not bool(seen == unseen):
            return MaskKind(kind.window, kind.chunk, seen.item(), unseen.item())
    return None


def _counts(node: OpNode, seq: str) -> bool:
    """Whether a node returns the positions 0, 1, ..."""
    starts = node.attrs.get("start", 0) == 0 and node.attrs.get("step", 1) == 1
    return node.op_type.startswith("aten.arange") and node.output.shape == (seq,) and starts


def _keeps_places(node: OpNode, seq: str) -> bool:
    """Whether each element of a result is computed from elements at its own place, or is the same for all places."""
    if any(source.param is not None and source.shape for source in node.inputs):
        return False
    if node.op_type == "aten.index.Tensor":
        return seq not in node["self"].shape
    counts_otherwise = node.op_type.startswith("aten.arange") and seq in node.output.shape
    return node.op_type.rpartition(".")[0] in _ELEMENTWISE and not counts_otherwise


def _numbers(graph: IR, mask: TensorMeta, constants: Constants) -> Iterator[int]:
    """Yield the whole numbers that the nodes of a mask mention."""
    for node in ancestors(graph, [mask]):
        held = (constants.scalar_of(source) for source in node.inputs)
        for number in (*node.attrs.values(), *held):
            if isinstance(number, (int, float)) and not isinstance(number, bool) and 1 < abs(number) <= _LARGEST:
                yield abs(int(number))
