"""Inputs whose values are part of the capture: how a request names them, and the guards of the graph."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_ir.capture.export.dynamic import Call
from torch_ir.errors import ExportError, did_you_mean
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames, taken_names
from torch_ir.ir.graph.tensor import Param
from torch_ir.ops.guards import FIXED_VALUE
from torch_ir.ops.tensor_data import from_tensor

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class FixedCall(NamedTuple):
    """The arguments of a model with the fixed values among them, and these tensors."""

    call: Call
    tensors: tuple[torch.Tensor, ...]


def with_fixed(model: nn.Module, call: Call, fixed: Mapping[str, Any]) -> FixedCall:
    """Replace example inputs by fixed values, which are given by argument of forward; add those that are missing.

    A missing one is the next positional argument, or a keyword.
    """
    if not fixed:
        return FixedCall(call, ())
    args, kwargs = list(call[0]), dict(call[1])
    parameters = inspect.signature(model.forward).parameters
    takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    tensors = []
    for name, given in fixed.items():
        if name not in parameters and name not in kwargs and not takes_more:
            nearest = did_you_mean(name, parameters)
            raise ExportError(f"fixed={name!r}: forward of {type(model).__name__} has no such argument{nearest}")
        tensor = _value(name, given)
        positional = [each for each, parameter in parameters.items() if parameter.kind in _POSITIONAL]
        place = positional.index(name) if name in positional and name not in kwargs else len(args) + 1
        if place <= len(args):
            _require_same_form(name, args[place] if place < len(args) else None, tensor)
            args[place : place + 1] = [tensor]
        else:
            _require_same_form(name, kwargs.get(name), tensor)
            kwargs[name] = tensor
        tensors.append(tensor)
    return FixedCall((tuple(args), kwargs), tuple(tensors))


def _value(name: str, given: Any) -> torch.Tensor:
    """Return a new tensor that identifies this input among all others."""
    try:
        tensor = given.detach().clone() if isinstance(given, torch.Tensor) else torch.tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ExportError(f"fixed={name!r} takes a tensor or nested numbers: {error}") from error
    if tensor.is_meta:
        raise ExportError(f"fixed={name!r} is on meta and has no values; give a tensor with the values to fix")
    if not torch.equal(tensor, tensor):
        raise ExportError(f"fixed={name!r} contains NaN, which equals no value of a later run")
    return tensor


def _require_same_form(name: str, example: Any, tensor: torch.Tensor) -> None:
    if example is None:
        return
    if not isinstance(example, torch.Tensor):
        raise ExportError(f"fixed={name!r}: the example input is a {type(example).__name__}, not a tensor")
    if (example.shape, example.dtype) != (tensor.shape, tensor.dtype):
        one, other = (f"{list(each.shape)} of {each.dtype}" for each in (tensor, example))
        raise ExportError(f"fixed={name!r} has the shape {one}, but the example input has {other}")


def guard_inputs(ir: IR, fixed: Mapping[str, torch.Tensor]) -> None:
    """Insert a guard for each input with a fixed value, by name, before all other nodes."""
    names = FreeNames(taken_names(ir))
    guards = []
    for tensor in ir.graph_inputs:
        if tensor.name in fixed:
            value = from_tensor(fixed[tensor.name])
            expected = TensorMeta(names.free(f"fixed_{tensor.name}"), tensor.shape, tensor.dtype)
            expected.param = Param((f"fixed.{tensor.name}",), "constant", value)
            ir.params.append(expected)
            guard = OpNode(
                names.free("fixed_value"),
                FIXED_VALUE,
                [tensor, expected],
                [],
                {"place": tensor.name},
                args=["value", "expected"],
            )
            guards.append(guard)
    ir.nodes[:0] = guards
