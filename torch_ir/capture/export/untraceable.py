"""Refuse tensors and modules that no capture step supports, by name and before the first step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torch_ir.capture.walk import own_attributes, walk
from torch_ir.errors import Cause, ExportError, first_line
from torch_ir.ops.guards import overridden
from torch_ir.ops.torch_internals import buffer_table, parameter_table, pytree, script_type

_NO_TENSOR = frozenset((type(None), bool, int, float, str, list, dict, set, tuple, OrderedDict))
_COMMON = (nn.Parameter, torch.Tensor)
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def refuse_nameless(inputs: Any) -> None:
    """Raise ExportError for an input of a pytree class without key paths, which name the graph's inputs."""
    try:
        pytree.tree_flatten_with_path(inputs)
    except ValueError as error:  # a class was registered without key paths
        raise ExportError(
            "an input is of a pytree class without key paths; pass flatten_with_keys_fn to register_pytree_node "
            f"({first_line(error)})"
        ) from None


def refuse_untraceable(model: nn.Module, inputs: Any) -> None:
    """Raise ExportError for the first tensor that no capture step supports."""
    for path, leaf in pytree.tree_flatten_with_path(inputs)[0]:
        if isinstance(leaf, torch.Tensor):
            _refuse_tensor(f"input{pytree.keystr(path[1:])}", leaf)
    for name, value in _held(model):
        if type(value) in _COMMON and value.layout is torch.strided and not (value.is_quantized or value.is_nested):
            continue
        if isinstance(value, torch.ScriptObject):
            kind = script_type(value).rpartition(".")[2]
            raise ExportError(
                f"{name!r} is a {kind}: weights packed for a kernel cannot be traced; capture the "
                "model before it is converted, or quantise it with torchao"
            )
        if is_lazy(value):
            raise ExportError(
                f"{name!r} has no shape yet; call the model once on real inputs to initialise its lazy modules"
            )
        if isinstance(value, torch.Tensor):
            _refuse_tensor(repr(name), value)
            if value.layout in _COMPRESSED:
                raise ExportError(
                    f"{name!r} has the layout {value.layout}, which cannot be traced as a weight; make it dense with "
                    "to_dense(), or pass it as an input"
                )


def refuse_scripted(model: nn.Module) -> None:
    """Raise ExportError for the first TorchScript module, which only a recording of real values supports."""
    for name, module in walk(model):
        if isinstance(module, torch.jit.ScriptModule):
            raise ExportError(
                f"{name or 'the model'!r} is TorchScript, which cannot be traced without values; use the original "
                "module, or capture on real tensors",
                cause=Cause.NO_VALUE,
            )


def _held(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a model's modules that may be tensors, with their paths."""
    for path, module in walk(model):
        if isinstance(module, torch.jit.ScriptModule):
            continue  # its attributes are TorchScript, too
        tables = (parameter_table(module).items(), buffer_table(module).items(), own_attributes(module))
        for items in tables:
            for name, value in items:
                if type(value) in _NO_TENSOR:
                    continue
                yield f"{path}.{name}" if path else name, value


def _refuse_tensor(name: str, tensor: torch.Tensor) -> None:
    if changed := overridden(type(tensor)):
        raise ExportError(
            f"{name} is a {type(tensor).__name__}, a subclass of Tensor with its own {changed}, which a graph does not "
            "call; capture with a plain tensor: x.as_subclass(torch.Tensor)"
        )
    if tensor.is_quantized:
        raise ExportError(
            f"{name} is a quantised tensor ({tensor.dtype}), which cannot be traced; dequantise it, or quantise the "
            "model with torchao"
        )
    if tensor.is_nested:
        raise ExportError(f"{name} is a nested tensor, which the IR cannot hold; pad it, or pass values and offsets")
