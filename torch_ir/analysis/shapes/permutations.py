"""Permutations: the `dims` of the `aten.permute` that each transposing operator is equal to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch_ir.analysis.shapes.size_polynomials import product
from torch_ir.ir import Dim, OpNode, TensorMeta

PERMUTE = "aten.permute.default"
Order = tuple[int, ...]


def order_of(node: OpNode) -> Order:
    """Return, for each dimension of the result, the dimension of the input it comes from."""
    return ORDERS[node.op_type](node, len(node["self"].shape))


def after(inner: Order, outer: Order) -> Order:
    """Return the composition: `inner` first, then `outer`."""
    return tuple(inner[dim] for dim in outer)


def is_still(order: Order) -> bool:
    """Whether this is the identity permutation."""
    return order == tuple(range(len(order)))


def keeps_elements(order: Order, x: TensorMeta) -> bool:
    """Whether only dimensions of size 1 move, so that the elements keep their order in memory."""
    moved = [dim for dim in order if x.shape[dim] != 1]
    return moved == sorted(moved)


def split_before(order: Order, shape: Sequence[Dim], wanted: Sequence[Dim]) -> tuple[list[Dim], Order] | None:
    """Rewrite permute-then-reshape as reshape-then-permute: return the new shape and the new order.

    Returns None if the reshape does more than split dimensions and add or drop dimensions of size 1.
    """
    groups = _split([shape[dim] for dim in order], wanted)
    if groups is None:
        return None
    group_of = dict(zip(order, groups, strict=True))
    sizes: list[Dim] = []
    starts = []
    for dim in range(len(order)):
        starts.append(len(sizes))
        sizes += group_of[dim]
    return sizes, tuple(starts[dim] + place for dim in order for place in range(len(group_of[dim])))


def _split(shape: Sequence[Dim], wanted: Sequence[Dim]) -> list[list[Dim]] | None:
    """Group the wanted sizes by the size they multiply to; None if a wanted dimension spans two of them."""
    left = list(wanted)
    groups: list[list[Dim]] = []
    for size in shape:
        groups.append([])
        while size != 1 and product(*groups[-1]) != size:
            if not left:
                return None
            groups[-1].append(left.pop(0))
    if not groups:
        return None
    groups[-1] += left  # sizes of 1, unless the tensor is empty
    return groups


def _permuted(node: OpNode, rank: int) -> Order:
    return tuple(dim % rank for dim in node["dims"])


def _swapped(rank: int, one: int, other: int) -> Order:
    order = list(range(rank))
    if rank:
        order[one], order[other] = order[other], order[one]
    return tuple(order)


def _moved(node: OpNode, rank: int) -> Order:
    if not rank:  # torch accepts dims 0 and -1 for a 0-d tensor
        return ()
    dims = ([node[name]] if isinstance(node[name], int) else node[name] for name in ("source", "destination"))
    sources, places = ([dim % rank for dim in values] for values in dims)
    rest = iter(dim for dim in range(rank) if dim not in sources)
    given = dict(zip(places, sources, strict=True))
    return tuple(given[place] if place in given else next(rest) for place in range(rank))


def _reversed(node: OpNode, rank: int) -> Order:
    return tuple(range(rank))[::-1]


def _two_dims(one: str, other: str) -> Callable[[OpNode, int], Order]:
    return lambda node, rank: _swapped(rank, node[one], node[other])


ORDERS: Mapping[str, Callable[[OpNode, int], Order]] = {
    PERMUTE: _permuted,
    "aten.permute_copy.default": _permuted,
    "aten.transpose.int": _two_dims("dim0", "dim1"),
    "aten.transpose_copy.int": _two_dims("dim0", "dim1"),
    "aten.swapdims.default": _two_dims("dim0", "dim1"),
    "aten.swapaxes.default": _two_dims("axis0", "axis1"),
    "aten.movedim.int": _moved,
    "aten.movedim.intlist": _moved,
    "aten.moveaxis.int": _moved,
    "aten.moveaxis.intlist": _moved,
    "aten.mT.default": lambda node, rank: _swapped(rank, -2, -1),
    "aten.t.default": _reversed,
    "aten.t_copy.default": _reversed,
    "aten.numpy_T.default": _reversed,
}
