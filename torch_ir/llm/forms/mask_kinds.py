"""Which keys a mask lets each query see: all before it, a window of the last, or those of its chunk.

A mask is compared with each kind. If its nodes compute each element from the two positions alone, it is computed at
positions around each number that the nodes mention, and at positions far behind; else, such as for a stored triangle,
at all positions of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_ir.analysis.values.constants import Constants
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.llm.forms.fixed_parts import new_budget, values_at

_FIRST = 6  # positions that are always compared
_NEAR = (-2, -1, 0, 1, 2)  # positions around each number, and around twice the number
_LARGEST = 1 << 24  # of the numbers that may be a window
_MOST_NUMBERS = 12
_FAR = tuple(1 << power for power in range(3, 21))  # positions that show a window of any size
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


def mask_kinds(graph: IR, masks: Iterable[TensorMeta], batch: str, seq: str) -> dict[TensorMeta, MaskKind | None]:
    """Return the kinds of fixed masks whose last two dimensions are queries and keys; None for a mask of no kind.

    Masks that mention the same numbers are computed together, so that one that others are made of is computed once.
    """
    constants, budget = Constants(graph), new_budget()
    together: dict[tuple[int, ...], list[_Probe]] = {}
    found: dict[TensorMeta, MaskKind | None] = {}
    for mask in dict.fromkeys(masks):
        probe = _probe(mask, seq, constants)
        if probe.is_of_positions:
            together.setdefault(probe.numbers, []).append(probe)
        elif (longest := graph.symbols[seq].max) is None or longest > _MOST_POSITIONS:
            found[mask] = None
        else:
            positions = torch.arange(longest)
            (value,) = values_at(graph, [mask], {batch: 2, seq: longest}, {}, budget)
            found[mask] = _kind_of(value, positions, probe)
    for numbers, probes in together.items():
        near = {multiple * number + step for number in numbers for multiple in (1, 2) for step in _NEAR}
        positions = torch.tensor(sorted({*range(_FIRST), *_FAR, *(place for place in near if place >= 0)}))
        given = dict.fromkeys((source for probe in probes for source in probe.counted), positions)
        values = values_at(graph, [probe.mask for probe in probes], {batch: 2, seq: len(positions)}, given, budget)
        found |= {probe.mask: _kind_of(value, positions, probe) for probe, value in zip(probes, values, strict=True)}
    return found


class _Probe(NamedTuple):
    """A mask, the whole numbers that its nodes mention, and the positions that they count."""

    mask: TensorMeta
    numbers: tuple[int, ...]
    counted: tuple[TensorMeta, ...]
    is_of_positions: bool


def _probe(mask: TensorMeta, seq: str, constants: Constants) -> _Probe:
    nodes = _nodes_before(mask)
    numbers = sorted(set(_numbers(nodes, constants)))
    counted = tuple(node.output for node in nodes if _counts(node, seq))
    is_of_positions = len(numbers) <= _MOST_NUMBERS and all(
        _keeps_places(node, seq) for node in _nodes_before(mask, counted)
    )
    return _Probe(mask, tuple(numbers[:_MOST_NUMBERS]), counted, is_of_positions)


def _nodes_before(mask: TensorMeta, stop: Sequence[TensorMeta] = ()) -> list[OpNode]:
    """Return the nodes that compute a mask from the tensors of `stop`, in any order; `ancestors` reads all nodes."""
    found: dict[OpNode, None] = {}
    left = [mask]
    while left:
        tensor = left.pop()
        if tensor not in stop and (maker := tensor.producer) is not None and maker not in found:
            found[maker] = None
            left += maker.inputs
    return list(found)


def _kind_of(value: Tensor, positions: Tensor, probe: _Probe) -> MaskKind | None:
    """Return the kind of the values of a mask at these positions."""
    rows = value.reshape(-1, *value.shape[-2:])
    if not bool((rows == rows[:1]).all()):
        return None
    found, numbers = rows[0], list(probe.numbers)
    if bool((found == found[0, 0]).all()):
        return MaskKind(seen=found[0, 0].item(), unseen=found[0, 0].item())
    if not probe.is_of_positions:
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
    return base_name(node.op_type) in _ELEMENTWISE and not counts_otherwise


def _numbers(nodes: Iterable[OpNode], constants: Constants) -> Iterator[int]:
    """Yield the whole numbers that the nodes of a mask mention."""
    for node in nodes:
        held = (constants.scalar_of(source) for source in node.inputs)
        for number in (*node.attrs.values(), *held):
            if isinstance(number, (int, float)) and not isinstance(number, bool) and 1 < abs(number) <= _LARGEST:
                yield abs(int(number))
