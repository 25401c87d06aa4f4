"""Refuse graphs in which tokens depend on each other outside of attention: a step could not continue them."""

from __future__ import annotations

from collections.abc import Iterable

from torch_ir.errors import GraphError
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name

_ALONG = frozenset(  # operators that combine or choose elements along `dim`
    f"aten.{name}"
    for name in (
        "_log_softmax", "_safe_softmax", "_softmax", "all", "amax", "amin", "aminmax", "any", "argmax", "argmin",
        "argsort", "cat", "chunk", "cummax", "cummin", "cumprod", "cumsum", "diff", "flip", "gather", "index_add",
        "index_copy", "index_select", "kthvalue", "linalg_vector_norm", "log_softmax", "logcumsumexp", "logsumexp",
        "max", "mean", "median", "min", "mode", "nanmean", "nansum", "narrow", "norm", "prod", "quantile", "roll",
        "scatter", "scatter_add", "select", "slice", "softmax", "sort", "split", "split_with_sizes", "std", "std_mean",
        "sum", "topk", "unbind", "unfold", "var", "var_mean",
    )
)  # fmt: skip
_OVER_POSITIONS = tuple(  # operators that combine elements of the dimensions after batch and channels
    f"aten.{name}."
    for name in (
        "avg_pool1d", "constant_pad_nd", "conv1d", "conv2d", "conv3d", "convolution", "group_norm", "instance_norm",
        "max_pool1d", "native_group_norm", "pad",
    )
)  # fmt: skip
_PRODUCTS = ("aten.matmul.default", "aten.bmm.default", "aten.mm.default", "aten.baddbmm.default")
_END = 1 << 62


def refuse_mixing(nodes: Iterable[OpNode], fixed: set[TensorMeta], seq: str) -> None:
    """Raise GraphError at the first node that combines different tokens of a sequence."""
    for node in nodes:
        if any(made in fixed for made in node.outputs):
            continue
        if why := _mixes(node, seq):
            place = f" of {node.origin.module}" if node.origin.module else ""
            raise GraphError(f"{node.name!r:.80} ({node.op_type}){place} {why}, outside of attention over the cache")


def _mixes(node: OpNode, seq: str) -> str:
    source = node.inputs[0] if node.inputs else None
    if source is None:
        return ""
    if node.op_type.startswith(_OVER_POSITIONS):
        return "reads neighbouring tokens" if seq in source.shape[2:] else ""
    if node.op_type in _PRODUCTS:
        return "sums over tokens" if node.inputs[-2].shape[-1] == seq else ""
    if base_name(node.op_type) not in _ALONG or _is_whole(node, seq):
        return ""
    rank = len(source.shape)
    given = node.attrs.get("dim", node.attrs.get("dims"))
    dims = range(rank) if given is None or given == [] else given if isinstance(given, (list, tuple)) else [given]
    along = [dim for dim in dims if isinstance(dim, int) and -rank <= dim < rank]
    return "combines or selects tokens" if any(source.shape[dim] == seq for dim in along) else ""


def _is_whole(node: OpNode, seq: str) -> bool:
    """Whether a slice takes all of a dimension."""
    end = node.attrs.get("end")
    whole = end is None or end == seq or (isinstance(end, int) and end > _END)
    return node.op_type == "aten.slice.Tensor" and node.attrs.get("start") in (None, 0) and whole
