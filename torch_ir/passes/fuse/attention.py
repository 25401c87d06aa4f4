"""Replace attention written as separate operators by `aten.scaled_dot_product_attention`, and simplify its arguments.

A row whose scores are all masked with -inf yields NaN when written out but zeros in the operator. So the mask must have
a known value, or be provably finite in the dtype of the queries; a mask computed from weights counts as finite. If a
known mask keeps a score in every row, the smallest number of the dtype masks a score entirely, as does -1e30. In
bfloat16 and float16 the operator computes in float32, so it is at least as precise as the separate steps; but adding
-1e4, which absorbs a score there, keeps part of it in float32, so a fully masked row would change. Casts between scores
and softmax are dropped only if they do not round below the queries' dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import FLOATS, base_name
from torch_ir.ops.effects import gives_its_input
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.clean.canonical_arithmetic import is_number
from torch_ir.passes.fuse.match_variants import CASTS, maker, orders
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.rewrite import REORDERS, SPREADS, Builder, op, rule

SDPA = "aten.scaled_dot_product_attention.default"
_NO_SCORE = -1e30  # added to a score, absorbs it entirely
_SOME_SCORE = -128.0  # added to a score in half precision, keeps most of it
_WIDTHS = {"float16": 0, "bfloat16": 0, "float32": 1, "float64": 2}
_PRODUCTS = ("aten.matmul", "aten.bmm", "aten.baddbmm")
_SAME_VALUES = ("aten.expand", "aten.slice", "aten.unsqueeze", "aten.view", "aten.reshape", "aten.permute")
_RESHAPES = ("aten.reshape", "aten.view", "aten._unsafe_view", "aten.flatten", "aten.unsqueeze", "aten.clone")


class _Mask(NamedTuple):
    """A mask that is added to scores, or a boolean one that selects the scores to keep or to set to `fill`."""

    tensor: TensorMeta
    fill: float | None = None
    is_kept: bool = False  # True selects the scores to keep


class _Scores(NamedTuple):
    """The operands of a softmax: product of queries and keys, scale, mask."""

    query: TensorMeta
    key: TensorMeta  # transposed
    scale: float
    mask: _Mask | None
    nodes: list[OpNode]


@rule(op("aten.matmul.default", self="weights", other="value"), op("aten.bmm.default", self="weights", mat2="value"))
def attention(g: Builder, node: OpNode, weights: TensorMeta, value: TensorMeta) -> Any:
    """matmul(softmax(matmul(q, k^T) * s + mask), v)  ->  scaled_dot_product_attention(q, k, v, mask, scale=s)

    A row of scores that are all -inf, from infinities in q or k, yields zeros instead of NaN. A mask that replaces
    scores is added to them, so that a masked NaN or infinity changes its row.
    """
    softmax, passed = _softmax(weights)
    found = _scores(g, softmax["self"]) if softmax is not None else None
    if softmax is None or found is None:
        return None
    query, batch = found.query, found.query.shape[:-2]
    if not batch or found.key.shape[:-2] != batch or value.shape[:-2] != batch:
        return "queries, keys and values do not have the same batch and heads"
    if {query.dtype, found.key.dtype, value.dtype, node.output.dtype} - {query.dtype} or query.dtype not in FLOATS:
        return "queries, keys and values do not have the same dtype"
    if softmax["self"].shape != (*batch, query.shape[-2], found.key.shape[-1]):
        return "the mask broadcasts the scores to a larger shape"
    inner = [*passed, softmax, *found.nodes]
    if narrow := [node.name for node in inner if not _keeps_precision(node, query.dtype)]:
        return f"{narrow[0]!r} rounds to a less precise dtype than that of the queries"
    if shared := [node.name for node in inner if len(node.output.consumers) > 1]:
        return f"{shared[0]!r} is read elsewhere too"
    mask, why = _mask_argument(g, found.mask, query)
    if why:
        return why
    g.stands_for(*inner)
    g.may_change(REORDERS, *([] if found.mask is None or found.mask.fill is None else [SPREADS]))
    key = g.op("aten.transpose.int", self=found.key, dim0=-2, dim1=-1)
    return g.op(SDPA, query=query, key=key, value=value, attn_mask=mask, scale=found.scale)


def _keeps_precision(node: OpNode, dtype: str) -> bool:
    """Whether the result of a node has this dtype or a wider one."""
    made = node.output.dtype
    return made == dtype or _WIDTHS.get(made, -1) > _WIDTHS[dtype]


def _softmax(tensor: TensorMeta) -> tuple[OpNode | None, list[OpNode]]:
    """Return the softmax over the last dimension, and the nodes after it that only cast or pass it on."""
    passed: list[OpNode] = []
    while (node := tensor.producer) is not None:
        if base_name(node.op_type) not in CASTS and not gives_its_input(node.op_type, node.attrs):
            break
        passed.append(node)
        tensor = node.inputs[0]
    found = maker(tensor, "aten.softmax", "aten._softmax")
    is_last = found is not None and found.attrs["dim"] in (-1, len(tensor.shape) - 1)
    return (found if is_last else None), passed


def _scores(g: Builder, tensor: TensorMeta) -> _Scores | None:
    """Return the parts of the scores: product, scale and mask, with casts in between."""
    mask: _Mask | None = None
    scale = 1.0
    nodes: list[OpNode] = []
    while (node := tensor.producer) is not None:
        nodes.append(node)
        name = base_name(node.op_type)
        if name in CASTS:
            tensor = node.inputs[0]
        elif name in ("aten.mul", "aten.div") and (factor := _factor(g, node)):
            tensor, scale = node["self"], scale * factor
        elif mask is None and scale == 1.0 and (masked := _masked(g, node)):
            tensor, mask = masked[0], _as_cast(masked[1], nodes)
        else:
            return _product(g, node, scale, mask, nodes)
    return None


def _as_cast(mask: _Mask, nodes: Sequence[OpNode]) -> _Mask:
    """Return the mask with its fill as the softmax gets it: a cast to a narrower dtype may make it infinite."""
    fill = mask.fill
    for node in reversed(nodes):
        if fill is not None:
            fill = float(torch.tensor(fill, dtype=torch.float64).to(TORCH_DTYPES[node.output.dtype]))
    return mask._replace(fill=fill)


def _masked(g: Builder, node: OpNode) -> tuple[TensorMeta, _Mask] | None:
    """Return the scores and the mask if a node masks scores."""
    name = base_name(node.op_type)
    if name == "aten.add":
        for scores, mask in orders(node):
            if isinstance(mask, TensorMeta) and _is_score(scores):
                return scores, _Mask(mask)
    if name == "aten.masked_fill" and (fill := _number(g, node["value"])) is not None:
        return node["self"], _Mask(node["mask"], fill)
    if node.op_type in ("aten.where.self", "aten.where.ScalarOther"):
        fill = _number(g, node["other"])
        return None if fill is None else (node["self"], _Mask(node["condition"], fill, is_kept=True))
    return None


def _is_score(tensor: Any) -> bool:
    """Whether this is a matmul, possibly followed by casts and scales."""
    while (node := maker(tensor, "aten.mul", "aten.div", *CASTS)) is not None:
        tensor = node.inputs[0]
    return maker(tensor, *_PRODUCTS) is not None


def _product(g: Builder, node: OpNode, scale: float, mask: _Mask | None, nodes: list[OpNode]) -> _Scores | None:
    """Return the scores of a matmul; scales of queries and keys become part of the scale."""
    if base_name(node.op_type) not in _PRODUCTS:
        return None
    query, key = node.inputs[-2:]
    if base_name(node.op_type) == "aten.baddbmm":
        if node["beta"] not in (0, 1) or not is_number(node["alpha"]):
            return None
        if node["beta"]:
            if mask is not None or scale != 1.0:  # a second mask, or one that is scaled too
                return None
            mask = _Mask(node["self"])
        scale *= node["alpha"]
    if (scaled := _scaled(query)) and (factor := _factor(g, scaled)):
        query, scale, nodes = scaled["self"], scale * factor, [*nodes, scaled]
    if (scaled := _scaled(key)) and (factor := _factor(g, scaled)):
        key, scale, nodes = scaled["self"], scale * factor, [*nodes, scaled]
    return _Scores(query, key, scale, mask, nodes)


def _scaled(tensor: TensorMeta) -> OpNode | None:
    """Return the node that scales queries or keys for this attention alone."""
    return maker(tensor, "aten.mul", "aten.div") if len(tensor.consumers) == 1 else None


def _factor(g: Builder, node: OpNode) -> float | None:
    """Return the scalar factor of a product if the result keeps shape and dtype."""
    number = _number(g, node["other"])
    source = node["self"]
    if not number or not isinstance(source, TensorMeta) or node.attrs.get("rounding_mode") is not None:
        return None
    if source.shape != node.output.shape or source.dtype != node.output.dtype:
        return None
    factor = number if base_name(node.op_type) == "aten.mul" else 1.0 / number
    return factor if factor and math.isfinite(factor) else None


def _number(g: Builder, value: Any) -> float | None:
    found: Any = g.scalar_of(value) if isinstance(value, TensorMeta) else value
    return float(found) if is_number(found) else None


def _mask_argument(g: Builder, mask: _Mask | None, query: TensorMeta) -> tuple[TensorMeta | None, str]:
    """Return the mask as the operator takes it, or the reason why it cannot."""
    if mask is None:
        return None, ""
    if len(mask.tensor.shape) < 2:
        return None, "the mask has fewer than two dimensions"
    value = g.value_of(mask.tensor)
    if mask.fill is None:
        if mask.tensor.dtype != query.dtype:
            return None, f"the mask is {mask.tensor.dtype}, and queries are {query.dtype}"
        is_safe = _is_finite(g, mask.tensor) if value is None else _leaves_scores(value)
        return mask.tensor, "" if is_safe else "a fully masked row would yield zeros, not NaN, or other weights"
    if _is_bool_mask(mask, value, query.dtype):
        return mask.tensor if mask.is_kept else g.op("aten.logical_not.default", self=mask.tensor), ""
    fill = max(mask.fill, float(torch.finfo(TORCH_DTYPES[query.dtype]).min))
    if fill > _NO_SCORE or mask.fill == -math.inf:
        return None, "a fully masked row would yield zeros, not NaN or the mean of all values"
    one, other = (0.0, fill) if mask.is_kept else (fill, 0.0)
    added = g.op("aten.where.Scalar", condition=mask.tensor, self=one, other=other)
    return g.cast(added, query.dtype), ""


def _is_bool_mask(mask: _Mask, value: Any, dtype: str) -> bool:
    """Whether the mask can be passed as booleans: its value is known, it keeps a score per row and removes the rest."""
    if value is None or mask.fill is None or not bool((value if mask.is_kept else ~value).any(-1).all()):
        return False
    return mask.fill <= _NO_SCORE and mask.fill <= _least(dtype)


def _leaves_scores(value: torch.Tensor) -> bool:
    """Whether a known mask keeps a score in every row, so that the dtype of the addition does not matter."""
    least = -math.inf if value.dtype in (torch.float32, torch.float64) else _SOME_SCORE
    return bool((value.isfinite() & (value >= least)).any(-1).all())


def _least(dtype: str) -> float:
    """Return the largest number of this dtype that absorbs any score it is added to."""
    return max(_NO_SCORE, float(torch.finfo(TORCH_DTYPES[dtype]).min))


def _is_finite(g: Builder, tensor: TensorMeta) -> bool:
    """Whether all elements are finite: constants, a weight, a choice between such, or such plus a weight."""
    while (node := maker(tensor, *_SAME_VALUES)) is not None:
        tensor = node["self"]
    if (value := g.value_of(tensor)) is not None:
        return all(_may_be_added(number, tensor.dtype) for number in value.unique().tolist())
    if g.is_weight(tensor):  # a row masked by weights would be NaN for every input
        return True
    node = maker(tensor, "aten.where", "aten.masked_fill", "aten.mul", "aten.add")
    if node is None or node.op_type == "aten.where.default":
        return False
    name = base_name(node.op_type)
    if name == "aten.mul":
        factor = _number(g, node["other"])
        return factor is not None and _may_be_added(factor, tensor.dtype) and _is_zero_or_one(node["self"])
    if name == "aten.add":
        return any(g.is_weight(bias) and _is_finite(g, rest) for rest, bias in orders(node) if len(node.inputs) == 2)
    parts = [node["self"], node["value"] if name == "aten.masked_fill" else node["other"]]
    return all(_is_finite_part(g, part, tensor.dtype) for part in parts)


def _is_finite_part(g: Builder, part: Any, dtype: str) -> bool:
    number = _number(g, part)
    if number is not None:
        return _may_be_added(number, dtype)
    return isinstance(part, TensorMeta) and _is_finite(g, part)


def _may_be_added(number: float, dtype: str) -> bool:
    """Whether a number of this dtype, added to a whole row, has the same effect in the operator's float32."""
    if dtype not in FLOATS or not math.isfinite(torch.tensor(number, dtype=TORCH_DTYPES[dtype]).item()):
        return False
    return _WIDTHS[dtype] > 0 or number >= _SOME_SCORE or number <= _NO_SCORE


def _is_zero_or_one(tensor: Any) -> bool:
    """Whether this is a bool cast to a number, or one minus it."""
    node = maker(tensor, "aten.rsub")
    tensor = node["self"] if node is not None and node["other"] == 1 and node["alpha"] == 1 else tensor
    cast = maker(tensor, *CASTS)
    return cast is not None and cast.inputs[0].dtype == "bool"


@rule(op(SDPA, attn_mask="mask", is_causal=False))
def known_mask(g: Builder, node: OpNode, mask: TensorMeta | None) -> Any:
    """attention(..., attn_mask=mask)  ->  attention(..., is_causal=True), or no mask, if a known mask is equivalent"""
    value = None if mask is None else g.value_of(mask)
    if value is None or value.ndim < 2 or mask is None:
        return None
    kept = value if mask.dtype == "bool" else value == 0
    if mask.dtype != "bool" and not bool((kept | (value <= _least(mask.dtype))).all()):
        return None
    if bool(kept.all()):
        return g.like(node, attn_mask=None)
    sizes = (node["query"].shape[-2], node["key"].shape[-2])
    if kept.shape[-2:] != sizes or not bool((kept == _triangle(*sizes)).all()):
        return None
    if node["scale"] is not None and node["scale"] <= 0:
        return "eager returns NaN for a causal mask and a scale that is not positive"
    return g.like(node, attn_mask=None, is_causal=True)


@lru_cache(maxsize=2)
def _triangle(rows: int, columns: int) -> torch.Tensor:
    """Return the causal mask: each query sees the keys up to its own position."""
    return torch.ones(rows, columns, dtype=torch.bool, device="cpu").tril()


@rule(op(SDPA, key="key", value="value", enable_gqa=False))
def grouped_heads(g: Builder, node: OpNode, key: TensorMeta, value: TensorMeta) -> Any:
    """attention(q, repeat(k, n), repeat(v, n))  ->  attention(q, k, v, enable_gqa=True)"""
    found = [_before_repetition(key), _before_repetition(value)]
    single = [tensor for tensor in found if tensor is not None]
    if len(single) != 2 or single[0].shape[1] != single[1].shape[1]:
        return None
    keys, values = (_four_dimensions(g, tensor) for tensor in single)
    g.stands_for(key.producer, value.producer)
    return g.like(node, key=keys, value=values, enable_gqa=True)


def _before_repetition(tensor: TensorMeta) -> TensorMeta | None:
    """Return the tensor before each of its heads was repeated by an expand, with or without an extra dimension."""
    shape = tensor.shape
    while (node := maker(tensor, *_RESHAPES)) is not None:
        tensor = node["self"]
    expanded = maker(tensor, "aten.expand")
    if expanded is None or len(shape) != 4:
        return None
    before: TensorMeta = expanded["self"]
    if tensor.shape == shape:
        return before if before.shape == (shape[0], 1, *shape[2:]) != shape else None
    batch, heads, *rest = shape
    count = tensor.shape[2] if len(tensor.shape) == 5 else 0
    if not (isinstance(heads, int) and isinstance(count, int) and count > 1):
        return None
    inner = (batch, heads // count)
    is_repeated = tensor.shape == (*inner, count, *rest) and before.shape == (*inner, 1, *rest)
    return before if is_repeated and heads % count == 0 else None


def _four_dimensions(g: Builder, tensor: TensorMeta) -> Any:
    """Return the tensor without the dimension that was added for the expand."""
    if len(tensor.shape) == 4:
        return tensor
    source = maker(tensor, "aten.unsqueeze", "aten.reshape", "aten.view")
    if source is not None and source["self"].shape == (*tensor.shape[:2], *tensor.shape[3:]):
        return source["self"]
    return g.op("aten.squeeze.dim", self=tensor, dim=2)


attentions = rule_pass(
    "attention",
    "Use scaled_dot_product_attention, with grouped heads and causal masks as arguments.",
    [attention, known_mask, grouped_heads],
)
