"""Inverses of views: for each operator that returns a part of a tensor, the one that writes the part back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import DROPOUTS

# Views of all elements in the same order.
_WHOLE = frozenset(
    f"aten.{name}"
    for name in (
        "detach.default", "alias.default", "to.dtype", "to.device", "to.dtype_layout", "to.other", "contiguous.default",
        "type_as.default", "conj_physical.default", "to_dense.default",
    )
).union(DROPOUTS)  # fmt: skip

_MOST_PLACES = 1 << 14  # of a tensor whose elements are listed


class PutBack(NamedTuple):
    """The call that writes a part back: its attributes, and whether it also takes the tensor that it writes into."""

    op_type: str
    attrs: dict[str, Any]
    takes_whole: bool = False


def repeats_elements(shape: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether elements of a tensor share memory, as in an expanded tensor or overlapping windows.

    Of a large tensor, elements of interleaved rows count as shared.
    """
    if any(type(size) is int and size == 0 for size in shape):  # `0 in shape` would ask torch about a symbolic size
        return False
    pairs = [(step, size) for size, step in zip(shape, stride, strict=True) if type(size) is not int or size > 1]
    if not all(type(number) is int for pair in pairs for number in pair):
        return any(type(step) is int and step == 0 for step, _ in pairs)
    count: int = prod(size for _, size in pairs)
    if count <= _MOST_PLACES:
        places = {0}
        for step, size in pairs:
            places = {place + step * index for place in places for index in range(size)}
        return len(places) < count
    pairs.sort()
    reaches = accumulate((step * (size - 1) for step, size in pairs), initial=0)
    return any(step <= reach for (step, _), reach in zip(pairs, reaches, strict=False))


Rule = Callable[[OpNode, int, TensorMeta], "PutBack | None"]  # from the view, its output and its base


def gives_all(view: OpNode) -> bool:
    """Whether a view has the elements, shape and strides of its base."""
    return view.op_type in _WHOLE and len(view.outputs) == 1


def put_back(view: OpNode, index: int, whole: TensorMeta) -> PutBack | None:
    """Return how to write the output of a view back into its base; None if unknown."""
    rule = _RULES.get(view.op_type)
    return rule(view, index, whole) if rule is not None else None


def _with_attrs(op_type: str, *names: str, takes_whole: bool = False) -> Rule:
    """Return the rule for a view whose inverse takes the same attributes."""

    def rule(view: OpNode, index: int, whole: TensorMeta) -> PutBack:
        return PutBack(op_type, {name: view[name] for name in names}, takes_whole)

    return rule


def _range(dim: int, start: int, length: int) -> PutBack:
    place = {"dim": dim, "start": start, "end": start + length, "step": 1}
    return PutBack("aten.slice_scatter.default", place, takes_whole=True)


def _narrow(view: OpNode, index: int, whole: TensorMeta) -> PutBack | None:
    start, length = view["start"], view["length"]
    is_static = isinstance(start, int) and isinstance(length, int) and start >= 0
    return _range(view["dim"], start, length) if is_static else None


def _unbind(view: OpNode, index: int, whole: TensorMeta) -> PutBack:
    return PutBack("aten.select_scatter.default", {"dim": view["dim"], "index": index}, takes_whole=True)


def _split(view: OpNode, index: int, whole: TensorMeta) -> PutBack | None:
    """A piece starts where those before it end."""
    dim = view["dim"]
    sizes: list[Any] = [output.shape[dim] for output in view.outputs]
    is_static = all(isinstance(size, int) for size in sizes)
    return _range(dim, sum(sizes[:index]), sizes[index]) if is_static else None


def _reshape(view: OpNode, index: int, whole: TensorMeta) -> PutBack | None:
    """Row-major elements keep their order in any shape."""
    if whole.stride is not None or view.outputs[index].stride is not None or not whole.is_static:
        return None
    return PutBack("aten.reshape.default", {"shape": list(whole.shape)})


def _permute(view: OpNode, index: int, whole: TensorMeta) -> PutBack:
    rank = len(whole.shape)
    dims = [dim % rank for dim in view["dims"]]
    return PutBack("aten.permute.default", {"dims": [dims.index(dim) for dim in range(rank)]})


def _squeeze(view: OpNode, index: int, whole: TensorMeta) -> PutBack | None:
    return PutBack("aten.unsqueeze.default", {"dim": view["dim"]}) if whole.shape[view["dim"]] == 1 else None


def _expand(view: OpNode, index: int, whole: TensorMeta) -> PutBack | None:
    """A view that repeats nothing only adds dimensions of size 1."""
    wide = [size for size in view.outputs[index].shape if size != 1]
    if not whole.is_static or wide != [size for size in whole.shape if size != 1]:
        return None
    return PutBack("aten.reshape.default", {"shape": list(whole.shape)})


def _as_strided(view: OpNode, index: int, whole: TensorMeta) -> PutBack | None:
    if whole.stride is not None or not whole.is_static or repeats_elements(view["size"], view["stride"]):
        return None
    place = {"size": view["size"], "stride": view["stride"], "storage_offset": view["storage_offset"] or 0}
    return PutBack("aten.as_strided_scatter.default", place, takes_whole=True)


_RULES: dict[str, Rule] = {
    "aten.as_strided.default": _as_strided,
    "aten.slice.Tensor": _with_attrs("aten.slice_scatter.default", "dim", "start", "end", "step", takes_whole=True),
    "aten.narrow.default": _narrow,
    "aten.select.int": _with_attrs("aten.select_scatter.default", "dim", "index", takes_whole=True),
    "aten.unbind.int": _unbind,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split,
    "aten.chunk.default": _split,
    "aten.diagonal.default": _with_attrs("aten.diagonal_scatter.default", "offset", "dim1", "dim2", takes_whole=True),
    "aten.view.default": _reshape,
    "aten.reshape.default": _reshape,
    "aten.flatten.using_ints": _reshape,
    "aten.unflatten.int": _reshape,
    "aten.transpose.int": _with_attrs("aten.transpose.int", "dim0", "dim1"),
    "aten.t.default": _with_attrs("aten.t.default"),
    "aten.permute.default": _permute,
    "aten.unsqueeze.default": _with_attrs("aten.squeeze.dim", "dim"),
    "aten.squeeze.dim": _squeeze,
    "aten.expand.default": _expand,
}
