"""Canonical form: rewrite bit-exact equivalent forms of a computation into one of them."""

from __future__ import annotations

from typing import Any

from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.errors import ShapeError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import FLOATS, base_name
from torch_ir.passes.clean.canonical_arithmetic import ARITHMETIC, is_complex
from torch_ir.passes.pass_registry import apply_once, named_pass
from torch_ir.passes.weights.affine import each
from torch_ir.rewrite import Builder, op, rule
from torch_ir.rewrite.builder import arguments_of
from torch_ir.rewrite.change_log import current_journal

NAME = "canonicalize"
# Alias -> canonical operator; overloads keep their names.
_ALIASES = {
    f"aten.{name}": f"aten.{plain}"
    for name, plain in {
        "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "absolute": "abs",
        "arccos": "acos", "arcsin": "asin", "arctan": "atan", "arctanh": "atanh", "clip": "clamp", "concat": "cat",
        "concatenate": "cat", "divide": "div", "fix": "trunc", "greater": "gt", "greater_equal": "ge", "less": "lt",
        "less_equal": "le", "linalg_matmul": "matmul", "multiply": "mul", "negative": "neg", "not_equal": "ne",
        "special_erf": "erf", "special_exp2": "exp2", "special_expit": "sigmoid", "special_expm1": "expm1",
        "special_log1p": "log1p", "subtract": "sub", "true_divide": "div",
    }.items()
}  # fmt: skip
_REDUCTIONS = frozenset(
    f"aten.{name}" for name in ("all", "amax", "amin", "any", "count_nonzero", "logsumexp", "mean", "std", "sum", "var")
)
_WITH_DIM = frozenset(
    f"aten.{name}"
    for name in (
        "_log_softmax", "_softmax", "argmax", "argmin", "argsort", "cat", "chunk", "cummax", "cummin", "cumprod",
        "cumsum", "flip", "gather", "glu", "index_add", "index_select", "kthvalue", "log_softmax", "max", "median",
        "min", "narrow", "prod", "scatter", "scatter_add", "select", "slice", "softmax", "sort", "split",
        "split_with_sizes", "stack", "topk", "unbind", "unflatten", "unsqueeze",
    )
)  # fmt: skip
_BY_RESULT = frozenset(("aten.cat", "aten.stack", "aten.unsqueeze"))  # `dim` counts the dimensions of the result
_WITH_DTYPE = ("aten.sum", "aten.mean", "aten.prod", "aten.cumsum", "aten.softmax.int", "aten.log_softmax.int")
_AVERAGES = ("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
_COMMUTATIVE = frozenset(
    f"aten.{name}.Tensor" for name in ("add", "mul", "eq", "ne", "bitwise_and", "bitwise_or", "bitwise_xor")
) | {"aten.logical_and.default", "aten.logical_or.default", "aten.logical_xor.default"}


@named_pass(NAME)
def canonicalize(ir: IR) -> int:
    """Rewrite equivalent operators and arguments in one canonical form; values stay bit-identical.

    before   a = mul(w, x);  b = rsub(y, a);  c = clamp_min(b, 0);  d = softmax(c, -1)
    after    a = mul(x, w);  b = sub(a, y);   c = relu(b);          d = softmax(c, 1)
    """
    return apply_once(ir, *RULES, *ARITHMETIC) + _order_operands(ir)


def _order_operands(ir: IR) -> int:
    """Order the operands of commutative operators by definition, weights last; return the number of swaps."""
    know, entries = Knowledge.of(ir), current_journal()
    place = {tensor: at for at, tensor in enumerate(ir.tensors())}
    count = 0
    for node in ir.nodes:
        if node.op_type not in _COMMUTATIVE or node.args != ("self", "other") or node.attrs.get("alpha", 1) != 1:
            continue
        if is_complex(node.output):
            continue
        one, other = node.inputs
        is_late = (know.is_weight(one), place[one]) > (know.is_weight(other), place[other])
        if is_late and _keeps_strides(know, node, other, one):
            node.inputs = (other, one)
            entries.changed("operand-order", node.name, node.origins)
            count += 1
    return count


def _keeps_strides(know: Knowledge, node: OpNode, one: TensorMeta, other: TensorMeta) -> bool:
    """Whether the result keeps its strides with these operands."""
    try:
        made = know.shapes.results(node.op_type, {"self": one, "other": other}, node.attrs, node.output.shape)
    except ShapeError:
        return False
    return made is not None and made[0].stride == node.output.stride


@rule(op(*_ALIASES))
def one_name(g: Builder, node: OpNode) -> Any:
    """multiply(x, y)  ->  mul(x, y)"""
    overload = node.op_type.rpartition(".")[2]
    return g.ops(f"{_ALIASES[base_name(node.op_type)]}.{overload}", **arguments_of(node))


@rule(op(*sorted(_WITH_DIM | _REDUCTIONS)))
def counted_from_the_front(g: Builder, node: OpNode) -> Any:
    """softmax(x: [2, 3, 4], dim=-1)  ->  softmax(x: [2, 3, 4], dim=2);  sum(x, [2, 1])  ->  sum(x, [1, 2])"""
    argument = "dims" if "dims" in node.attrs else "dim"
    dims = node.attrs.get(argument)
    name = base_name(node.op_type)
    rank = max(1, len((node.outputs if name in _BY_RESULT else node.inputs)[0].shape))
    if isinstance(dims, list):
        found: Any = [dim % rank for dim in dims]
        found = sorted(found) if name in _REDUCTIONS else found
    else:
        found = dims % rank if type(dims) is int else dims
    return None if found == dims else g.likes(node, **{argument: found})


@rule(op("aten.sum.dim_IntList", "aten.mean.dim", self="x", dim="dims", keepdim=False, dtype="dtype"))
def over_all(g: Builder, node: OpNode, x: TensorMeta, dims: Any, dtype: Any) -> Any:
    """sum(x: [2, 3], dim=[0, 1])  ->  sum(x)"""
    is_all = not dims or len(dims) == len(x.shape)
    return g.op(f"{base_name(node.op_type)}.default", self=x, dtype=dtype) if is_all else None


@rule(op(*_WITH_DTYPE, self="x", dtype="dtype"))
def its_own_dtype(g: Builder, node: OpNode, x: TensorMeta, dtype: Any) -> Any:
    """sum(x: float32, dtype=float32)  ->  sum(x: float32)"""
    return g.like(node, dtype=None) if dtype == x.dtype and dtype in FLOATS else None


@rule(op("aten._softmax.default", "aten._log_softmax.default", self="x", dim="dim", half_to_float=False))
def softmax(g: Builder, node: OpNode, x: TensorMeta, dim: int) -> Any:
    """_softmax(x, dim, half_to_float=False)  ->  softmax(x, dim)"""
    return g.op(f"{base_name(node.op_type).replace('._', '.')}.int", self=x, dim=dim)


@rule(op("aten.matmul.default", self="x", other="y"))
def matrix_product(g: Builder, node: OpNode, x: TensorMeta, y: TensorMeta) -> Any:
    """matmul(x: [2, 3], y: [3, 4])  ->  mm(x, y);  matmul(x: [8, 2, 3], y: [8, 3, 4])  ->  bmm(x, y)"""
    ranks = len(x.shape), len(y.shape)
    if ranks == (2, 2):
        return g.op("aten.mm.default", self=x, mat2=y)
    is_batch = ranks == (3, 3) and x.shape[0] == y.shape[0]
    return g.op("aten.bmm.default", self=x, mat2=y) if is_batch else None


@rule(op("aten.chunk.default", self="x", chunks="chunks", dim="dim"))
def chunks_of_a_size(g: Builder, node: OpNode, x: TensorMeta, chunks: int, dim: int) -> Any:
    """chunk(x: [2, 8], 2, dim=1)  ->  split(x, 4, dim=1)"""
    size = x.shape[dim]
    if not isinstance(size, int) or not size:
        return None
    return g.ops("aten.split.Tensor", self=x, split_size=-(-size // chunks), dim=dim)


@rule(
    op("aten.split_with_sizes.default", self="x", split_sizes="sizes", dim="dim"),
    op("aten.split.sizes", self="x", split_size="sizes", dim="dim"),
)
def parts_of_a_size(g: Builder, node: OpNode, x: TensorMeta, sizes: list[Any], dim: int) -> Any:
    """split_with_sizes(x: [2, 8], [4, 4], dim=1)  ->  split(x, 4, dim=1)"""
    if _are_even(sizes):
        return g.ops("aten.split.Tensor", self=x, split_size=sizes[0], dim=dim)
    if node.op_type == "aten.split.sizes":
        return g.ops("aten.split_with_sizes.default", self=x, split_sizes=sizes, dim=dim)
    return None


def _are_even(sizes: list[Any]) -> bool:
    """Whether all sizes are equal positive integers; the last may be smaller."""
    if not sizes or any(type(size) is not int or size < 1 for size in sizes):
        return False
    return set(sizes[:-1]) <= {sizes[0]} and sizes[-1] <= int(sizes[0])


@rule(op(*_AVERAGES, self="x", kernel_size="kernel", padding="padding"))
def window_of_the_whole(g: Builder, node: OpNode, x: TensorMeta, kernel: list[int], padding: list[int]) -> Any:
    """avg_pool2d(x: [1, 8, 7, 7], [64, 64], ceil_mode=True)  ->  avg_pool2d(x, [7, 7], stride=[7, 7])"""
    rank = int(node.op_type[-len("1d.default")])
    sizes = list(x.shape[-rank:])
    if any(padding) or not all(isinstance(size, int) for size in sizes):
        return None
    if any(window < size for window, size in zip(each(kernel, rank), sizes, strict=True)):
        return None
    whole = {"kernel_size": sizes, "stride": sizes, "ceil_mode": False}
    return None if all(node.get(name) == value for name, value in whole.items()) else g.like(node, **whole)


RULES = (
    one_name, counted_from_the_front, over_all, its_own_dtype, softmax, matrix_product, chunks_of_a_size,
    parts_of_a_size, window_of_the_whole,
)  # fmt: skip
