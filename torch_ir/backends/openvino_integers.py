"""Integers in OpenVINO, which compares, divides and reduces them in float32, and adds 64-bit ones in 32 bits.

Integers beyond that are refused: constants when a graph is compiled, inputs when it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from torch_ir.analysis.cost_model.traffic import SOMETIMES_VIEWS, VIEWS
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ir.graph.operator_sets import base_name

_FLOAT32 = (-(1 << 24), 1 << 24)  # all integers between these are float32 numbers
_INT32 = (-(1 << 31), (1 << 31) - 1)
_WIDE = ("int32", "int64")
# compared with eager beyond 24 bits: they only move integers, or compute them as such
_IN_32_BITS = (
    VIEWS
    | SOMETIMES_VIEWS
    | frozenset(
        f"aten.{name}"
        for name in (
            "__and__", "__or__", "__xor__", "_to_copy", "_unsafe_index", "abs", "add", "arange", "argmax", "argmin",
            "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "cat", "clone", "constant_pad_nd", "copy",
            "cumsum", "diff", "embedding", "fill", "flip", "full", "full_like", "gather", "index", "index_put",
            "index_select", "lift_fresh_copy", "logical_and", "logical_not", "logical_or", "masked_fill", "maximum",
            "minimum", "mul", "neg", "ones_like", "pad", "repeat", "roll", "rsub", "scatter", "scatter_add",
            "select_scatter", "sign", "slice_scatter", "sort", "stack", "sub", "topk", "tril", "triu", "where",
            "zeros_like",
        )
    )
)  # fmt: skip


def range_of_inputs(ir: IR) -> tuple[int, int]:
    """Return the smallest and largest integers that a graph may be given, for results as in eager."""
    return _FLOAT32 if any(True for _ in _in_float32(ir)) else _INT32


def check_constants(ir: IR, weights: Mapping[str, Tensor]) -> None:
    """Raise ExecutionError if an operator computes in float32 with an integer constant that has more digits."""
    for node in _in_float32(ir):
        numbers = [value for value in values_in(node.attrs) if type(value) is int]
        tables = [weights.get(tensor.key or tensor.name) for tensor in node.inputs if tensor.param]
        if not all(abs(number) <= _FLOAT32[1] for number in numbers) or not all(
            table is None or fits(table, _FLOAT32) for table in tables
        ):
            raise ExecutionError(
                f"OpenVINO computes {node.op_type} ({node.name}) on integers in float32, and a constant exceeds "
                f"{_FLOAT32[1]:,}; use another back end"
            )


def fits(value: Tensor, limits: tuple[int, int]) -> bool:
    """Whether all elements of a tensor of 32-bit or 64-bit integers are in a range; others always fit."""
    if value.dtype not in (torch.int32, torch.int64) or not value.numel():
        return True
    low, high = torch.aminmax(value)
    return int(low) >= limits[0] and int(high) <= limits[1]


def _in_float32(ir: IR) -> Iterator[OpNode]:
    for node in ir.all_nodes():
        if base_name(node.op_type) not in _IN_32_BITS and any(tensor.dtype in _WIDE for tensor in node.inputs):
            yield node
