"""Linear layers: write products with a weight as `aten.linear`, and merge two linear layers in a row."""

from __future__ import annotations

from torch_ir.analysis.shapes.permutations import ORDERS, PERMUTE, order_of
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import FLOATS
from torch_ir.passes.clean.same_layout import as_sizes
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.passes.weights.affine import LINEAR, layer_of, obstacle, plus, shared, spread, too_narrow, wide
from torch_ir.rewrite import REORDERS, Builder, op, rule

_RESHAPES = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
_flat = op(*_RESHAPES, "aten.flatten.using_ints", self="x").named("flat")
_product = op(LINEAR, input=_flat, weight="weight", bias="bias").read_once()


@rule(op("aten.mm.default", self="x", mat2="weight"), op("aten.matmul.default", self="x", other="weight"))
def product_as_linear(g: Builder, node: OpNode, x: TensorMeta, weight: TensorMeta) -> object:
    """matmul(x, w)  ->  linear(x, w.T),  matmul(x, w.T)  ->  linear(x, w)"""
    return g.op(LINEAR, input=x, weight=_transposed(g, weight)) if _is_matrix(g, weight, x) else None


@rule(op("aten.addmm.default", self="bias", mat1="x", mat2="weight", beta=1, alpha=1))
def product_and_sum_as_linear(g: Builder, node: OpNode, bias: TensorMeta, x: TensorMeta, weight: TensorMeta) -> object:
    """addmm(b, x, w)  ->  linear(x, w.T, b)"""
    size = weight.shape[1]
    if not _is_matrix(g, weight, x) or not isinstance(size, int):
        return None
    if bias.shape != (size,):
        if not g.is_weight(bias) or any(dim != 1 for dim in bias.shape[:-1]):
            return None
        bias = spread(g, bias, size)
    return g.op(LINEAR, input=x, weight=_transposed(g, weight), bias=bias)


@rule(op(*_RESHAPES, "aten.unflatten.int", self=_product))
def linear_of_rows(
    g: Builder, node: OpNode, x: TensorMeta, flat: OpNode, weight: TensorMeta, bias: TensorMeta | None
) -> object:
    """reshape(linear(reshape(x, [6, 8]), w, b), [2, 3, 4])  ->  linear(x, w, b),  with x as [2, 3, 8]"""
    if len(weight.shape) != 2 or node.output.shape[-1:] != weight.shape[:1]:
        return None
    wanted = (*node.output.shape[:-1], weight.shape[1])
    if x.shape != wanted:
        if len(flat.output.consumers) > 1:
            return None
        x = g.op("aten.reshape.default", self=x, shape=as_sizes(wanted))
    return g.op(LINEAR, input=x, weight=weight, bias=bias)


@rule(op(LINEAR, input=op(LINEAR).named("before")))
def two_linears(g: Builder, node: OpNode, before: OpNode) -> object:
    """linear(linear(x, w1, b1), w2, b2)  ->  linear(x, w2 @ w1, w2 @ b1 + b2),  where that is no more work

    For an infinity in x, the result may be infinite where two layers return NaN: the infinities between them, of
    different signs, are never added.
    """
    first, second = layer_of(before, g.is_weight), layer_of(node, g.is_weight)
    if first is None or second is None:
        return None
    if why := obstacle(g.is_weight, first.weight, first.bias, second.weight, second.bias) or shared(first.made):
        return why
    if why := too_narrow(second) or too_narrow(first):
        return why
    (made, between), read = second.sizes, first.sizes[1]
    if read * made > between * (read + made):
        return f"one layer from {read} to {made} is more work than two through {between}"
    weight, bias = wide(g, second.weight), None if second.bias is None else wide(g, second.bias)
    if first.bias is not None:
        moved = g.op("aten.mv.default", self=weight, vec=wide(g, first.bias))
        bias = moved if bias is None else plus(g, moved, bias)
    weight = g.op("aten.mm.default", self=weight, mat2=wide(g, first.weight))
    dtype = second.weight.dtype
    bias = None if bias is None else g.cast(bias, dtype)
    g.may_change(REORDERS)
    return g.op(LINEAR, input=before["input"], weight=g.cast(weight, dtype), bias=bias)


def _is_matrix(g: Builder, weight: TensorMeta, x: TensorMeta) -> bool:
    """Whether this is a constant weight matrix and `x` is not a weight."""
    is_whole = weight.dtype in FLOATS and len(weight.shape) == 2 and weight.placement is None
    return is_whole and g.is_weight(weight) and not g.is_weight(x)


def _transposed(g: Builder, matrix: TensorMeta) -> TensorMeta:
    """Return the transpose of a matrix: its input if it is itself a transpose."""
    maker = matrix.producer
    if maker is not None and maker.op_type in ORDERS and order_of(maker) == (1, 0):
        source: TensorMeta = maker["self"]
        return source
    return g.op(PERMUTE, self=matrix, dims=[1, 0])


linear = rule_pass(
    "linear",
    "Write products with a weight as linear layers, and merge two linear layers in a row where that is less work.",
    [product_as_linear, product_and_sum_as_linear, linear_of_rows, two_linears],
)
