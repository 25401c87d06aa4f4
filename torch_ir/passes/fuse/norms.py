"""Norms written as separate operators: RMS norms become fused calls, layer norms `aten.layer_norm`.

A fused RMS norm contains the original nodes, so it is bit-identical in every dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.passes.clean.canonical_arithmetic import is_number
from torch_ir.passes.fuse.fused_calls import Group, fuse
from torch_ir.passes.fuse.match_variants import CASTS, between, maker, orders, uncast
from torch_ir.passes.pass_registry import named_pass, rule_pass
from torch_ir.rewrite import Builder, op, rule
from torch_ir.rewrite.pattern import either_order

_WIDE = ("float32", "float64")


@named_pass("fuse-norms", fuses=True, may_raise=["peak"])
def fuse_norms(ir: IR) -> int:
    """Fuse each RMS norm into one call, with its weight and the casts around it.

    before   x * rsqrt(mean(x ** 2, -1) + eps) * weight
    after    fused.rms_norm(input=x, weight=weight, eps=eps)
    """
    return fuse(ir, [_rms_norm])


def _rms_norm(node: OpNode) -> Group | None:
    """Return the RMS norm that ends with a node, with or without a weight and a final cast."""
    made = node.outputs[0]
    for scaled, weight in orders(maker(uncast(made), "aten.mul")):
        if isinstance(weight, TensorMeta) and len(weight.shape) == 1 and isinstance(scaled, TensorMeta):
            found = _normalised(scaled.producer) or _normalised(uncast(scaled).producer)
            if found and (found[0].dtype == made.dtype or maker(made, *CASTS) is None):
                return _group(node, *found, {"weight": weight})
    found = _normalised(node)
    return _group(node, *found, {}) if found else None


def _group(node: OpNode, x: TensorMeta, eps: float, weight: dict[str, TensorMeta]) -> Group | None:
    reads = {"input": x, **weight}
    if node.outputs[0].shape != x.shape:
        return None
    return Group("rms_norm", between(node, reads.values()), reads, {"eps": eps})


def _normalised(node: OpNode | None) -> tuple[TensorMeta, float] | None:
    """Return the tensor that is divided by the root of its mean square, and eps."""
    for wide, root in _quotients(node):
        added = maker(root["self"], "aten.add")
        for mean, eps in orders(added):
            square = _averaged(mean, wide)
            if square is None or not is_number(eps):
                continue
            squared, source = square["self"], uncast(wide)
            is_wide = wide in (squared, uncast(squared))
            is_own = all(reader in (node, square, squared.producer) for reader in wide._uses)
            if is_own and (is_wide or uncast(squared) is source):
                return source, float(eps)
            if is_wide:
                return wide, float(eps)
    return None


def _quotients(node: OpNode | None) -> Iterator[tuple[TensorMeta, OpNode]]:
    """Yield a tensor and its divisor: `x * rsqrt(v)`, `x * v ** -0.5`, `x / sqrt(v)`, `x * (1 / sqrt(v))`."""
    if node is None or not node.outputs:
        return
    for x, other in orders(maker(node.outputs[0], "aten.mul")):
        inverse = maker(other, "aten.rsqrt") or _with_exponent(maker(other, "aten.pow"), -0.5)
        turned = maker(other, "aten.reciprocal")
        root = inverse or (maker(turned["self"], "aten.sqrt") if turned else None)
        if root is not None and isinstance(x, TensorMeta):
            yield x, root
    quotient = maker(node.outputs[0], "aten.div")
    if quotient and (root := maker(quotient["other"], "aten.sqrt")) and quotient.attrs.get("rounding_mode") is None:
        yield quotient["self"], root


def _averaged(mean: Any, x: TensorMeta) -> OpNode | None:
    """Return the node that computes the squares averaged over the last dimension, or None."""
    node = maker(mean, "aten.mean")
    if node is None or not node.attrs.get("keepdim") or node.attrs.get("dtype") is not None:
        return None
    if node.attrs.get("dim") not in ([-1], [len(x.shape) - 1]):
        return None
    return node["self"].producer if _squared(node["self"]) is not None else None


def _squared(tensor: TensorMeta) -> TensorMeta | None:
    """Return the tensor that is squared: `x ** 2`, `square(x)`, `x * x`."""
    product = maker(tensor, "aten.mul")
    if product is not None:
        return product["self"] if product["self"] is product["other"] else None
    square = maker(tensor, "aten.square") or _with_exponent(maker(tensor, "aten.pow"), 2)
    return square["self"] if square is not None else None


def _with_exponent(node: OpNode | None, exponent: float) -> OpNode | None:
    return node if node is not None and node.attrs.get("exponent") == exponent else None


_root = op("aten.sqrt.default", self=op("aten.add.Tensor", self="var", other="eps", alpha=1).named("shifted"))
_inverse = op("aten.rsqrt.default", self=op("aten.add.Tensor", self="var", other="eps", alpha=1).named("shifted"))
_mean = op("aten.mean.dim", self="x", keepdim=True, dtype=None).named("mean")
_centred = op("aten.sub.Tensor", self="x", other=_mean, alpha=1).named("centred")


@rule(
    op("aten.div.Tensor", self=_centred, other=_root),
    *either_order(op("aten.mul.Tensor", self=_centred, other=_inverse)),
)
def layer_norm(
    g: Builder, node: OpNode, x: TensorMeta, var: Any, eps: Any, mean: OpNode, centred: OpNode, shifted: OpNode
) -> Any:
    """(x - mean(x)) / sqrt(var(x) + eps)  ->  layer_norm(x, eps=eps)"""
    dims = _trailing(mean.attrs["dim"], len(x.shape))
    if not dims or not is_number(eps) or _trailing(_variance_dims(var, x, centred), len(x.shape)) != dims:
        return None
    if x.dtype not in _WIDE or x.dtype != node.outputs[0].dtype:
        return f"in {x.dtype}, the operator rounds differently from the separate steps"
    shape = list(x.shape[-len(dims) :])
    if not all(isinstance(size, int) for size in shape):
        return "the normalised sizes are symbolic"
    squared = var.producer["self"]
    g.stands_for(None if squared is x else squared.producer, var.producer)
    return g.op("aten.layer_norm.default", input=x, normalized_shape=shape, eps=float(eps), cudnn_enable=False)


def _variance_dims(var: Any, x: TensorMeta, centred: OpNode) -> Any:
    """Return the dimensions over which `var` is the population variance of x, or None."""
    node = maker(var, "aten.var", "aten.mean")
    if node is None or not node.attrs.get("keepdim"):
        return None
    if node.op_type.startswith("aten.var"):
        is_population = node.attrs.get("correction", 1) == 0 or node.attrs.get("unbiased") is False
        return node.attrs.get("dim") if node["self"] is x and is_population else None
    if node.attrs.get("dtype") is not None or _squared(node["self"]) is not centred.outputs[0]:
        return None
    return node.attrs.get("dim")


def _trailing(dims: Any, rank: int) -> list[int]:
    """Return the dimensions as sorted negative numbers if they are the last ones, else []."""
    found = sorted(dim - rank if dim >= 0 else dim for dim in dims or ())
    return found if found == list(range(-len(found), 0)) else []


_plain = op("aten.layer_norm.default", input="x", weight=None, bias=None).named("norm").read_once()
_scaled = op("aten.layer_norm.default", input="x", weight="weight", bias=None).named("norm").read_once()


@rule(*either_order(op("aten.mul.Tensor", self=_plain, other="weight")))
def into_weight(g: Builder, node: OpNode, x: TensorMeta, norm: OpNode, weight: Any) -> Any:
    """layer_norm(x) * weight  ->  layer_norm(x, weight)"""
    return g.like(norm, weight=weight) if _fits(weight, norm) else None


@rule(*either_order(op("aten.add.Tensor", self=_scaled, other="bias", alpha=1)))
def into_bias(g: Builder, node: OpNode, x: TensorMeta, norm: OpNode, weight: Any, bias: Any) -> Any:
    """layer_norm(x, weight) + bias  ->  layer_norm(x, weight, bias)"""
    return g.like(norm, bias=bias) if weight is not None and _fits(bias, norm) else None


def _fits(scale: Any, norm: OpNode) -> bool:
    """Whether this can be the weight or bias of a norm: a tensor of its dtype and normalised shape."""
    if not isinstance(scale, TensorMeta) or scale.dtype != norm.outputs[0].dtype:
        return False
    return list(scale.shape) == list(norm["normalized_shape"])


layer_norms = rule_pass("layer-norms", "Replace layer norms by aten.layer_norm.", [layer_norm, into_weight, into_bias])
