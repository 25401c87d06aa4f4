"""Layers: the nodes that multiply by a weight, and their names.

A layer is named after its module path; further layers of the same module are `path#1`, `path#2`. They are counted in
program order with calls of functions expanded, so that the names are the same in flat and in function form.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Union

from torch_ir.ir import IR, OpNode, Origin
from torch_ir.ir.graph.origins import placed_in
from torch_ir.ir.regroup.functions import check_size_inline

_MOST_NODES = 1 << 20  # with calls expanded


@dataclass(frozen=True)
class Kind:
    """Operands of a product with a weight: the names of both arguments, and the weight's dimension of channels.

    `stacked`: the weight has matrices in its last two dimensions. `is_lookup`: rows are selected, not multiplied.
    `by_token`: each vector along the last dimension of the input is multiplied, unlike in a convolution.
    """

    weight: str
    activation: str
    channels: int
    stacked: bool = False
    is_lookup: bool = False
    by_token: bool = True


_CONVOLUTION = Kind("weight", "input", 0, by_token=False)
_TRANSPOSED = Kind("weight", "input", 1, by_token=False)
_KINDS = {
    "aten.linear.default": Kind("weight", "input", 0),
    "aten.addmm.default": Kind("mat2", "mat1", 1, stacked=True),
    "aten.mm.default": Kind("mat2", "self", 1, stacked=True),
    "aten.bmm.default": Kind("mat2", "self", 2, stacked=True),
    "aten.matmul.default": Kind("other", "self", -1, stacked=True),
    "aten.embedding.default": Kind("weight", "", 0, is_lookup=True),
    **{f"aten.conv{rank}d.{form}": _CONVOLUTION for rank in (1, 2, 3) for form in ("default", "padding")},
    **{f"aten.conv_transpose{rank}d.{form}": _TRANSPOSED for rank in (1, 2, 3) for form in ("default", "input")},
}


def kind_of(node: OpNode) -> Kind | None:
    """Return how a node multiplies by its weight; None if its operator does not."""
    if node.op_type == "aten.convolution.default":
        return _TRANSPOSED if node.attrs.get("transposed") else _CONVOLUTION
    return _KINDS.get(node.op_type)


@dataclass(frozen=True)
class Place:
    """A node that may be a layer, with its name and its module path."""

    node: OpNode
    name: str
    path: str


@dataclass(frozen=True)
class CallPlaces:
    """A call of a function, with the places in its body."""

    node: OpNode
    inside: Places


Places = list[Union[Place, CallPlaces]]


def find_places(ir: IR) -> Places:
    """Return the nodes of a graph that may be layers, with those inside each call.

    Raise GraphError if there are too many calls to list.
    """
    check_size_inline(ir, _MOST_NODES)
    return _places(ir, Origin(), Counter())


def flat_places(places: Places) -> list[Place]:
    """Return all places in program order, with calls expanded."""
    found: list[Place] = []
    for place in places:
        found += [place] if isinstance(place, Place) else flat_places(place.inside)
    return found


def _places(ir: IR, around: Origin, seen: Counter[str]) -> Places:
    found: Places = []
    for node in ir.nodes:
        body = ir.functions.get(node.attrs["function"]) if node.is_call else None
        if body is not None:
            inside = _places(body, placed_in(around, node.origin), seen)
            found += [CallPlaces(node, inside)] if inside else []
        elif kind_of(node) is not None:
            path = placed_in(around, node.origin).module
            name = path or node.name
            found.append(Place(node, f"{name}#{seen[name]}" if seen[name] else name, path))
            seen[name] += 1
    return found
