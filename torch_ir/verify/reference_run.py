"""Reference runs: the original model runs on its own parameters and memory and is restored afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR
from torch_ir.ops.fast_paths import masks_as_in_eager, plain_attention
from torch_ir.ops.torch_internals import dense_memory_key
from torch_ir.run.executor import flatten_call
from torch_ir.run.seeding import seed_generators
from torch_ir.run.tolerances import compare
from torch_ir.verify.copies import copied, copied_apart
from torch_ir.verify.model_state import ModelState
from torch_ir.verify.reachable import Reachable, distinct

Call = tuple[tuple[Any, ...], dict[str, Any]]
_Tensors = dict[str, torch.Tensor]


class ReferenceRun:
    """One run of the original model: its outputs, and its tensors and inputs afterwards.

    `after` has every parameter, buffer and input by name, and the plain attributes that the graph reads; `changed`
    names those with new values, `regrown` the tables with a new shape.
    """

    def __init__(self, model: nn.Module, ir: IR, call: Call, before: ModelState, tensors: _Tensors) -> None:
        own = copied(call)
        given, inputs = flatten_call(ir, *call), flatten_call(ir, *own)
        kept = model.state_dict(keep_vars=True).keys()
        seed_generators(0)
        with torch.no_grad(), masks_as_in_eager(list(model.modules())), plain_attention():
            output = model(*own[0], **own[1])
        after = _tensors_by_name(model, ir)
        changed = [name for name, tensor in tensors.items() if not before.is_as_before(tensor, after.get(name))]
        changed += after.keys() - tensors.keys()
        # a table outside the state dict that the model resizes on demand is a cache, not state
        self.regrown = {name for name in changed if name not in kept and _is_regrown(name, tensors, after)}
        self.changed = [name for name in changed if name not in self.regrown]
        self.after: dict[str, Any] = dict(after)
        written = {key for target, _ in ir.mutations if target.param for key in target.param.keys}
        self.after |= {name: after[name].detach().clone() for name in after.keys() & written.union(changed)}
        for index, (old, new) in enumerate(zip(given, inputs, strict=True)):
            is_written = isinstance(new, torch.Tensor) and bool(compare(old, new, 0.0, 0.0).reason)
            self.changed += [f"input {index}"] if is_written else []
            self.after[f"input {index}"] = new.detach().clone() if is_written else new
        self.output = copied_apart(output, {*before.memory.storages(), *map(dense_memory_key, inputs)})


class Original:
    """The original model, callable any number of times; its state is collected once.

    `weights` replace some of the model's values while it runs.
    """

    def __init__(self, model: nn.Module, ir: IR, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        self.model, self.ir, self.weights = model, ir, weights or {}
        with weights_replaced(model, self.weights):
            self.before, self.tensors = ModelState(model), _tensors_by_name(model, ir)

    @contextmanager
    def calls(self) -> Iterator[Callable[[Call], ReferenceRun]]:
        """Yield a function that calls the model on a copy of a call, each from the state that the last one left.

        The model is restored at the end.
        """
        with weights_replaced(self.model, self.weights), self.before.restored():
            yield lambda call: ReferenceRun(self.model, self.ir, call, self.before, self.tensors)

    def called(self, call: Call) -> ReferenceRun:
        """Make one call and restore the model."""
        with self.calls() as run:
            return run(call)


@contextmanager
def weights_replaced(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Replace values of the model's own parameters and buffers, which stay the same objects.

    Values of the same dtype are written in place, so that views see them; others replace the tensor's memory, which is
    an error if another tensor shares it.
    """
    chosen = {id(tensor): (tensor, weights[name]) for name, tensor in named_tensors(model) if name in weights}
    written = [(tensor, value) for tensor, value in chosen.values() if _fits(tensor, value)]
    moved = [(tensor, value) for tensor, value in chosen.values() if not _fits(tensor, value)]
    if moved:
        _refuse_shared_memory(model, [tensor for tensor, _ in moved])
    copies = [(tensor, tensor.detach().clone()) for tensor, _ in written]
    aliases = [(tensor, tensor.detach()) for tensor, _ in moved]
    try:
        for tensor, value in written:
            tensor.data.copy_(value)
        for tensor, value in moved:
            tensor.data = value.detach()
        yield
    finally:
        for tensor, alias in aliases:
            tensor.data = alias
        for tensor, copy in copies:
            tensor.data.copy_(copy)


def _fits(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    return (tensor.shape, tensor.dtype) == (value.shape, value.dtype)


def _refuse_shared_memory(model: nn.Module, moved: Sequence[torch.Tensor]) -> None:
    everything = distinct([*(tensor for _, tensor in named_tensors(model)), *Reachable(model).tensors])
    storages = Counter(map(dense_memory_key, everything))
    if any(storages[dense_memory_key(tensor)] > 1 for tensor in moved):
        raise ExecutionError(f"tensors of {type(model).__name__} share memory, so their dtype cannot be changed")


def _tensors_by_name(model: nn.Module, ir: IR) -> _Tensors:
    """Return parameters, buffers and the plain attributes that a graph reads."""
    named = dict(named_tensors(model))
    others = {param.key for param in ir.params if param.param and param.param.kind == "temporary" and param.key}
    found = {key: _attribute(model, key) for key in sorted(others - named.keys())}
    return {**named, **{key: value for key, value in found.items() if isinstance(value, torch.Tensor)}}


def _is_regrown(name: str, before: _Tensors, after: _Tensors) -> bool:
    return name in after and (name not in before or before[name].shape != after[name].shape)


def named_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return every parameter and buffer under each of its names."""
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def values_outside_state_dict(ir: IR, model: nn.Module) -> _Tensors:
    """Return non-persistent buffers and plain tensor attributes that the graph needs but does not contain."""
    found = {}
    for param in ir.params:
        if param.param and not param.param.in_state_dict and param.param.data is None and param.key is not None:
            value = _attribute(model, param.key)
            if isinstance(value, torch.Tensor):
                found[param.key] = value.detach().clone()
    return found


def _attribute(model: nn.Module, key: str) -> Any:
    """Return the object at a dotted path of attributes, indices and keys; None if there is none."""
    value: Any = model
    for part in key.split("."):
        value = _step_into(value, part)
    return value


def _step_into(value: Any, part: str) -> Any:
    """Return an attribute, or an item of a container by index or key."""
    if isinstance(value, (list, tuple)) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    if isinstance(value, Mapping):
        return next((item for key, item in value.items() if str(key) == part), None)
    return getattr(value, part, None)


def apart_from(model: nn.Module, state_dict: Mapping[str, torch.Tensor]) -> _Tensors:
    """Return the weights with copies of the buffers, which the model may change while it runs."""
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {key: value.detach().clone() if key in buffers else value for key, value in state_dict.items()}
