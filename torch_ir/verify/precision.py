"""Distinguish rounding from small errors by running both sides in float64, where rounding is negligible."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from torch_ir.ir import IR, Dtype
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ops.torch_internals import pytree
from torch_ir.run.executor import IRExecutor, flatten_call
from torch_ir.run.seeding import seed_generators
from torch_ir.verify.compare_runs import details_of
from torch_ir.verify.copies import copied
from torch_ir.verify.reference_run import Call, Original

_WIDE = {"float32": "float64", "float16": "float64", "bfloat16": "float64", "complex64": "complex128"}
_LARGEST = 1 << 28  # elements of all weights, which are copied


def difference_in_float64(
    ir: IR, model: nn.Module, call: Call, weights: Mapping[str, torch.Tensor], constants: Mapping[str, torch.Tensor]
) -> str | None:
    """Return what still differs in float64: "" if nothing, None if one of the sides cannot run there."""
    if not _can_widen(ir):
        return None
    inputs = copied(call)
    made: dict[int, torch.Tensor] = {}  # a tensor passed twice stays one tensor
    wide_call = pytree.tree_map_only(torch.Tensor, lambda value: made.setdefault(id(value), _wide(value)), inputs)
    wide_ir = _widened(ir)
    keys = {key for param in ir.params if param.param and param.param.in_state_dict for key in param.stored_keys}
    wide_weights = {key: _wide(value) for key, value in weights.items() if key in keys}
    try:
        seed_generators(0)
        outcome = IRExecutor(wide_ir, wide_weights, constants).run(flatten_call(wide_ir, *copied(wide_call)))
        reference = Original(model, wide_ir, wide_weights).called(wide_call)
        details, _ = details_of(wide_ir, outcome, reference, None, None)
    except Exception:  # an operator or the model's code requires another dtype
        return None
    return next((f"{item['name']}: {item['reason']}" for item in details if not item["is_close"]), "")


def _can_widen(ir: IR) -> bool:
    """Whether all dtypes follow those of inputs and weights, and the weights are not too large."""
    named = (value for node in ir.all_nodes() for value in values_in(node.attrs))
    size = sum(math.prod(int(dim) for dim in param.shape) for param in ir.params)
    return size <= _LARGEST and not any(isinstance(value, Dtype) and value in _WIDE for value in named)


def _widened(ir: IR) -> IR:
    """Return the graph for float64 inputs and weights; constants keep their dtypes on both sides."""
    copy = ir.clone()
    for graph in copy.all_graphs():
        for tensor in graph.tensors():
            if tensor.param is None or tensor.param.in_state_dict:
                tensor.dtype = _WIDE.get(tensor.dtype, tensor.dtype)
    return copy


def _wide(tensor: Any) -> Any:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor
