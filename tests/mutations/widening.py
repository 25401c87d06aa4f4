"""The same graph in float64, where small errors exceed rounding."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from tests.mutations.kinds import graphs
from torch_ir import IR
from torch_ir.ir import Dtype
from torch_ir.ops.tensor_data import from_tensor, to_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES

_WIDE = {"float32": "float64", "bfloat16": "float64", "float16": "float64", "complex64": "complex128"}


def widened(ir: IR) -> IR:
    """A copy in which every floating-point dtype is the widest."""
    copy = ir.clone()
    for graph in graphs(copy):
        for tensor in graph.tensors():
            tensor.dtype = _WIDE.get(tensor.dtype, tensor.dtype)
            if tensor.param is not None and tensor.param.data is not None:
                (values,) = widened_values([to_tensor(tensor.param.data)])
                tensor.param = replace(tensor.param, data=from_tensor(values))
        for node in graph.nodes:
            node.attrs = {
                name: Dtype(_WIDE.get(value, value)) if isinstance(value, Dtype) else value
                for name, value in node.attrs.items()
            }
    return copy


def dtypes_in(ir: IR) -> list[str]:
    """Every dtype that a node names."""
    nodes = [node for graph in graphs(ir) for node in graph.nodes]
    return sorted(value for node in nodes for value in node.attrs.values() if isinstance(value, Dtype))


def widened_values(values: Iterable[Any]) -> list[Any]:
    """Tensors of the widest dtype of their kind, and everything else as it is."""
    return [_widened(value) if isinstance(value, torch.Tensor) else value for value in values]


def widened_table(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same for tensors by name; shared tensors stay shared."""
    made = {id(tensor): _widened(tensor) for tensor in tensors.values()}
    return {name: made[id(tensor)] for name, tensor in tensors.items()}


def _widened(value: torch.Tensor) -> torch.Tensor:
    name = str(value.dtype).removeprefix("torch.")
    return value.to(TORCH_DTYPES[_WIDE.get(name, name)])
