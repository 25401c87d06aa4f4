"""Direct calls: torch's own Python function for an operator, which converts arguments faster than the operator object.

`torch.ops.aten.mul.Tensor` finds the kernel through the operator's schema, for any operator; `torch.mul`, which eager
code calls, parses its arguments in generated C++. Both dispatch the same operator with the same arguments, so results
are bit-identical. Listed are functions whose positional arguments are those of the schema, in order, and which choose
this overload for such arguments. Factory functions are not listed: a default device changes their results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_ir.ir import OpNode
from torch_ir.ops.torch_internals import OpOverload, nn_functions, plain_call, schema_of

_OF_TORCH = (
    "abs.default", "add.Tensor", "addmm.default", "batch_norm.default", "bmm.default", "cat.default", "conv1d.default",
    "conv2d.default", "cos.default", "div.Tensor", "embedding.default", "eq.Tensor", "exp.default",
    "flatten.using_ints", "ge.Tensor", "gt.Tensor", "layer_norm.default", "le.Tensor", "lt.Tensor", "matmul.default",
    "max_pool2d.default", "mean.dim", "mul.Tensor", "ne.Tensor", "neg.default", "permute.default", "pow.Tensor_Scalar",
    "relu.default", "reshape.default", "rsqrt.default", "select.int", "sigmoid.default", "sin.default", "softmax.int",
    "sqrt.default", "squeeze.dim", "sub.Tensor", "tanh.default", "transpose.int", "unsqueeze.default", "where.self",
    "_assert_tensor_metadata.default",
)  # fmt: skip
_OF_NN = (
    "adaptive_avg_pool2d.default", "gelu.default", "linear.default", "scaled_dot_product_attention.default",
    "silu.default",
)  # fmt: skip
_OF_TENSORS = ("contiguous.default", "expand.default", "to.dtype", "view.default")
_SOURCES = ((torch, _OF_TORCH), (nn_functions, _OF_NN), (torch.Tensor, _OF_TENSORS))
DIRECT: dict[str, Callable[..., Any]] = {
    f"aten.{name}": getattr(source, name.partition(".")[0]) for source, names in _SOURCES for name in names
}


_WITHOUT = {"aten.to.dtype": "memory_format"}  # an argument that the function takes by name alone
_WITH_NUMBERS = frozenset(f"aten.{name}.Tensor" for name in ("add", "div", "mul", "sub"))  # no overload for numbers


def direct_call(node: OpNode, operator: OpOverload) -> Callable[..., Any]:
    """Return the fastest callable that runs an operator on the arguments of a node, in schema order."""
    found = DIRECT.get(node.op_type)
    numbers = [node.attrs.get(name) for name in _tensors_of(operator) if name not in node.args]
    # elsewhere, a number for a tensor may be another overload
    has_tensors = not numbers or (node.op_type in _WITH_NUMBERS and all(type(each) in (int, float) for each in numbers))
    is_fit = has_tensors and node.attrs.get(_WITHOUT.get(node.op_type, "")) is None
    return found if found is not None and is_fit else plain_call(operator)


def _tensors_of(operator: OpOverload) -> list[str]:
    """Return the names of the tensors that an operator must be given."""
    return [argument.name for argument in schema_of(operator).arguments if str(argument.type) == "Tensor"]
