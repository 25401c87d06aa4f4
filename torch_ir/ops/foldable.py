"""Operators that may run in this process on values from an untrusted file.

Some torch kernels trust their operands: they use a value as an address, divide by it unchecked, or loop as often as it
says. So only the operators of an allow-list are folded. Each family below states why its kernels are safe on any values
of the declared shapes and dtypes; other operators stay in the graph, or run in a separate process.
`tests/hostile_values.py` calls every one of them at the limits of its domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torch_ir.ir import OpNode
from torch_ir.ops.torch_types import TORCH_DTYPES


class Family(NamedTuple):
    """Operators, by `name` or `name.overload`, whose kernels are safe for the same reason."""

    reason: str
    names: frozenset[str]


FAMILIES = (
    Family(
        "reads one element of each operand and writes one element",
        frozenset(
            (
                "_to_copy", "abs", "acos", "add", "asin", "atan", "atan2", "bitwise_and", "bitwise_not", "bitwise_or",
                "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "complex", "contiguous", "cos",
                "cosh", "elu", "eq", "erf", "exp", "exp2", "expm1", "fill", "floor", "ge", "gelu", "gt", "hardtanh",
                "isfinite", "isinf", "isnan", "le", "leaky_relu", "lift_fresh_copy", "log", "log10", "log1p", "log2",
                "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "max.other", "maximum",
                "min.other", "minimum", "mul", "ne", "neg", "polar", "pow", "reciprocal", "relu", "round.default",
                "rsqrt", "rsub", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "sqrt", "square", "sub", "tan",
                "tanh", "to", "trunc", "type_as", "where",
            )
        ),
    ),
    Family(
        "changes sizes and strides, which are checked before it runs, and reads no element",
        frozenset(
            (
                "_unsafe_view", "alias", "broadcast_to", "chunk", "detach", "diagonal", "dropout", "expand",
                "expand_as", "flatten", "lift_fresh", "meshgrid", "movedim", "narrow.default", "permute", "reshape",
                "select.int", "slice.Tensor", "split.Tensor", "split_with_sizes", "squeeze", "swapaxes", "t",
                "transpose", "unbind.int", "unflatten.int", "unsqueeze", "view.default", "view_as",
            )
        ),
    ),
    Family(
        "copies elements to places that follow from sizes alone",
        frozenset(
            (
                "cat", "concat", "constant_pad_nd", "diff", "flip", "repeat", "repeat_interleave.self_int", "roll",
                "select_scatter", "slice_scatter", "stack", "tile", "tril", "triu",
            )
        ),
    ),
    Family(
        "fills a new tensor of the declared size",
        frozenset(("arange", "eye", "linspace")),
    ),
    Family(
        "reads every element once",
        frozenset(
            (
                "all", "amax", "amin", "any", "argmax", "argmin", "cumprod", "cumsum", "max.default", "max.dim", "mean",
                "min.default", "min.dim", "prod", "sum",
            )
        ),
    ),
    Family(
        "compares every index with the size that it indexes",
        frozenset(("gather", "index.Tensor", "index_select")),
    ),
    Family(
        "divides element by element; integer divisors of 0 and -1, on which processors trap, are kept from it",
        frozenset(("div", "floor_divide", "fmod", "remainder", "true_divide")),
    ),
)  # fmt: skip
COMPUTED = Family(  # not folded, but computed to recognise the masks and tables of positions of language models
    "reads every element of operands whose sizes are checked, or compares the numbers of rows with their count",
    frozenset(
        (
            "__and__", "__or__", "bmm", "embedding", "full", "full_like", "matmul", "mm", "new_full", "new_ones",
            "new_zeros", "ones", "ones_like", "outer", "scalar_tensor", "zeros", "zeros_like",
        )
    ),
)  # fmt: skip
_DIVISIONS = FAMILIES[-1].names
_ALLOWED = frozenset().union(*(family.names for family in FAMILIES))
_MOST_ITEMS = 64  # of a list, unless there is one for each output: as many as a tensor of torch has dimensions


def is_foldable(node: OpNode) -> bool:
    """Whether the kernel of a node is safe on any values of its inputs' shapes and dtypes, except where `traps`."""
    return _is_one_of(node, _ALLOWED)


def is_computable_here(node: OpNode) -> bool:
    """Whether the kernel of a node is safe on any values, also where `traps` cannot be asked: no integer divides."""
    if _is_one_of(node, _DIVISIONS) and not isinstance(node.attrs.get("other"), (int, float)):
        return all(TORCH_DTYPES[tensor.dtype].is_floating_point for tensor in node.inputs)
    return _is_one_of(node, _ALLOWED | COMPUTED.names) and not traps(node, {})


def rounds(node: OpNode) -> int:
    """Return how often a kernel may pass over its operands: `roll` for each of its shifts, `diff` n times."""
    number = node.attrs.get("n") if node.op_type.startswith("aten.diff.") else None
    lists = (len(value) for value in node.attrs.values() if isinstance(value, (list, tuple)))
    return max(1, number if isinstance(number, int) else 1, *lists)


def _is_one_of(node: OpNode, names: frozenset[str]) -> bool:
    namespace, _, name = node.op_type.partition(".")
    is_allowed = namespace == "aten" and (name in names or name.partition(".")[0] in names)
    return is_allowed and rounds(node) <= max(_MOST_ITEMS, len(node.outputs))


def traps(node: OpNode, values: Mapping[str, torch.Tensor]) -> bool:
    """Whether a node divides by an integer that traps: 0, or -1 (the lowest integer overflows)."""
    if node.op_type.split(".")[1] not in _DIVISIONS:
        return False
    divisor: Any = values.get("other", node.attrs.get("other"))
    if isinstance(divisor, torch.Tensor):
        return not divisor.dtype.is_floating_point and bool(((divisor == 0) | (divisor == -1)).any())
    return isinstance(divisor, int) and divisor in (0, -1)
