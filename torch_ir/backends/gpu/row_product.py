"""The product of one row with a matrix, as an operator with its own kernel on a GPU.

It is as fast as the memory is read. Torch's kernels for matrix products reach two thirds of that with one row, and code
that Inductor generates for it half, as it computes what the row is made of again for every output.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from torch_ir.ir import IR, OpNode

_LINEAR = "aten.linear.default"
_OPERATOR = "torch_ir.row_product.default"
_NAMES = {"input": "row", "weight": "matrix", "bias": "bias"}
_DTYPES = ("bfloat16", "float16", "float32")
_LEAST = 1 << 16  # elements of a matrix

_library: Any = torch.library.Library("torch_ir", "FRAGMENT")  # type: ignore[no-untyped-call]  # not annotated
_library.define("row_product(Tensor row, Tensor matrix, Tensor? bias) -> Tensor")


def _on_gpu(row: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    from torch_ir.backends.gpu.row_product_kernel import launch

    return launch(row, matrix, bias)


def _shape(row: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return row.new_empty(*row.shape[:-1], matrix.shape[0])


_library.impl("row_product", linear, "CompositeExplicitAutograd")
_library.impl("row_product", _on_gpu, "CUDA")
_library.impl("row_product", _shape, "Meta")


def with_row_products(ir: IR) -> IR:
    """Return a copy in which linear layers of one row are this operator."""
    copy = ir.clone()
    for node in copy.nodes:
        if _fits(node):
            node.op_type = _OPERATOR
            node.attrs = {}
            node.set_inputs(node.inputs, [_NAMES[name] for name in node.args])
            if "bias" not in node.args:
                node.attrs["bias"] = None
    return copy.check()


def _fits(node: OpNode) -> bool:
    """Whether a node multiplies one row with a large weight."""
    if node.op_type != _LINEAR or node["weight"].param is None:
        return False
    row, matrix = node["input"], node["weight"]
    is_known = row.is_static and matrix.is_static and row.dtype in _DTYPES and row.dtype == matrix.dtype
    return is_known and math.prod(row.shape[:-1]) == 1 and math.prod(matrix.shape) >= _LEAST
