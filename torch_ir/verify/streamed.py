"""Run the original model with its parameters in files: each is read when an operator needs it, then released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from torch_ir.errors import ExecutionError, WeightLoadError
from torch_ir.ops.effects import mutated_arguments
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    buffer_table,
    memory_key,
    parameter_table,
    pytree,
    schema_of,
)
from torch_ir.run.stored import Weight, loaded
from torch_ir.verify.reference_run import Call, named_tensors


class StreamedParameters(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """A mode in which operators receive the stored parameter for each placeholder tensor.

    `stand_ins` are the placeholders that replace the model's tensors, with the same shape, dtype and device.
    """

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, weights: Mapping[str, Weight]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._stored: dict[int, tuple[str, Weight]] = {}  # by the memory key of the placeholder
        known = [(name, tensor) for name, tensor in named_tensors(model) if name in weights]
        buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
        self.stand_ins = {
            name: loaded(weights[name]) if name in buffers else self._stand_in(name, tensor, weights[name])
            for name, tensor in known
        }

    def without_values(self, tree: Any) -> tuple[FakeTensorMode, Any]:
        """Return a mode in which the model runs on shapes alone, and nested tensors to call it with."""
        return self._fake, pytree.tree_map_only(torch.Tensor, self._fake.from_tensor, tree)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._refuse_writing(func, args, kwargs or {})
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._real, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _stand_in(self, name: str, tensor: torch.Tensor, weight: Weight) -> torch.Tensor:
        if (tuple(weight.shape), weight.dtype) != (tuple(tensor.shape), tensor.dtype):
            found, own = f"{weight.dtype}{list(weight.shape)}", f"{tensor.dtype}{list(tensor.shape)}"
            raise WeightLoadError(f"{name!r} is {found}, the model's is {own}")
        with self._fake:
            made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        self._stored[memory_key(made)] = name, weight
        return made

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta and not isinstance(tensor, FakeTensor):
            return tensor
        if memory_key(tensor) not in self._stored:
            raise ExecutionError(
                "the model reads a meta tensor that is not in the files; build the model under torch_ir.meta_init()"
            )
        _, weight = self._stored[memory_key(tensor)]
        return loaded(weight).contiguous().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _refuse_writing(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if not isinstance(func, OpOverload) or not schema_of(func).is_mutable:
            return
        bound = bind(func, args, kwargs)
        for tensor in pytree.tree_leaves([bound[name] for name in mutated_arguments(func)]):
            if isinstance(tensor, FakeTensor) and memory_key(tensor) in self._stored:
                name, _ = self._stored[memory_key(tensor)]
                raise ExecutionError(f"the model writes to its parameter {name!r}, which is read from a file")


def called_with(model: nn.Module, tensors: Mapping[str, torch.Tensor], call: Call) -> Any:
    """Call the model with these tensors instead of its own, and restore them."""
    tables: list[dict[str, Any]] = [
        table
        for module in model.modules()
        for table in (parameter_table(module), buffer_table(module))
        if isinstance(table, dict)  # not for TorchScript
    ]
    held = [dict(table) for table in tables]
    try:
        return functional_call(model, dict(tensors), *call)
    finally:  # torch does not restore a module that has two names
        for table, own in zip(tables, held, strict=True):
            table.update(own)


def stand_ins(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return replacements for the model's tensors: these as parameters or buffers, copies of its other buffers."""
    others = {id(tensor): tensors[name] for name, tensor in named_tensors(model) if name in tensors}
    parameters = {
        name: nn.Parameter(others.get(id(own), own).detach(), own.requires_grad)
        for name, own in model.named_parameters()
    }
    buffers = {name: others.get(id(own), own).detach().clone() for name, own in model.named_buffers()}
    return {**parameters, **buffers}
