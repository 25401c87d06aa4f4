"""The original model as the witness of a verification: one run of it on copies, and all that the run left behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.func import functional_call

from torch_ir.ir import IR
from torch_ir.ops.fast_paths import plain_attention
from torch_ir.run.executor import flatten_call

Call = tuple[tuple[Any, ...], dict[str, Any]]
_Tensors = dict[str, torch.Tensor]


class Witness:
    """One run of the original model: what it returned, and what became of its tensors and inputs.

    `weights` stand in for some of the model's own.
    """

    def __init__(self, model: nn.Module, ir: IR, call: Call, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        inputs = {f"input {index}": value for index, value in enumerate(flatten_call(ir, *call))}
        named = named_tensors(model)
        firsts = {tensor: name for name, tensor in reversed(named)}  # of several names, torch takes one
        tensors = stand_ins(model, weights or {})
        for key in {key for target, _ in ir.mutations if target.param for key in target.param.keys} & tensors.keys():
            tensors[key] = tensors[key].clone()  # parameters may be written to as well; the model keeps its own
        before = {**{name: tensors[firsts[tensor]] for name, tensor in named}, **inputs}
        versions = {name: _version(value) for name, value in before.items()}
        with torch.no_grad(), plain_attention():
            self.output = called_with(model, tensors, call)  # puts what the model replaces into `tensors`
        after = {name: tensors[firsts[tensor]] for name, tensor in named}
        self.after: dict[str, Any] = {**dict(model.named_buffers()), **after, **inputs}
        replaced = {name for name, value in self.after.items() if value is not before.get(name)}
        # a table that no state dict holds and that the model regrows to fit is a memo, not state
        kept = {*model.state_dict(keep_vars=True), *inputs}
        self.regrown = {name for name in replaced - kept if _shape(before.get(name)) != _shape(self.after[name])}
        self.changed = [
            name
            for name, value in self.after.items()
            if name not in self.regrown and (name in replaced or _version(value) != versions[name])
        ]


def called_with(model: nn.Module, tensors: _Tensors, call: Call) -> Any:
    """The model called with these tensors for its own, which it has again afterwards."""
    tables: list[dict[str, Any]] = [
        table
        for module in model.modules()
        for table in (module._parameters, module._buffers)
        if isinstance(table, dict)  # that of TorchScript is none
    ]
    held = [dict(table) for table in tables]
    try:
        return functional_call(model, tensors, *call)
    finally:  # torch leaves a module that has two names with what stood in
        for table, own in zip(tables, held, strict=True):
            table.update(own)


def stand_ins(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> _Tensors:
    """Copies of the buffers, and the parameters without gradients, with which torch would pick other kernels."""
    others = {tensor: weights[name] for name, tensor in named_tensors(model) if name in weights}
    parameters = {name: others.get(tensor, tensor).detach() for name, tensor in model.named_parameters()}
    buffers = {name: others.get(tensor, tensor).detach().clone() for name, tensor in model.named_buffers()}
    return {**parameters, **buffers}


def named_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Every parameter and buffer under each of its names."""
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, torch.Tensor) else None


def _version(value: Any) -> int:
    """Torch counts the writes to a tensor."""
    return value._version if isinstance(value, torch.Tensor) else 0


def values_outside_state_dict(ir: IR, model: nn.Module) -> _Tensors:
    """Non-persistent buffers and plain tensor attributes that the graph needs and does not hold."""
    found = {}
    for param in ir.params:
        if param.param and not param.param.in_state_dict and param.param.data is None and param.key is not None:
            value: Any = model
            for part in param.key.split("."):
                value = _step_into(value, part)
            if isinstance(value, torch.Tensor):
                found[param.key] = value.detach().clone()
    return found


def _step_into(value: Any, part: str) -> Any:
    """An attribute, or an item of a container by its index or key."""
    if isinstance(value, (list, tuple)) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    if isinstance(value, Mapping):
        return next((item for key, item in value.items() if str(key) == part), None)
    return getattr(value, part, None)


def apart_from(model: nn.Module, state_dict: Mapping[str, torch.Tensor]) -> _Tensors:
    """The weights, with copies of the buffers, which the model may change while it runs."""
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {key: value.detach().clone() if key in buffers else value for key, value in state_dict.items()}


def copied(call: Call) -> Call:
    """The call on tensors that nobody else holds."""
    made: Call = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), call)
    return made
