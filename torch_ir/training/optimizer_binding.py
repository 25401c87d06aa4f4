"""An optimiser of `torch.optim` as part of a graph: its state under named keys, its own code as the update."""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_ir.errors import ExportError
from torch_ir.training.scalar_numbers import Number, numbers_recorded

RATE = "lr"
# The variant of an update with one call for each parameter and operator; the others compute the same.
_PLAIN = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}
# Optimisers whose state starts as zeros. Others store their first values in ways that a graph of every step lacks.
_ZERO_START = frozenset(
    ("Adadelta", "Adafactor", "Adam", "AdamW", "Adamax", "Muon", "RMSprop", "SGD")  # classes of torch.optim
)
State = dict[str, dict[str, Tensor]]  # parameter key -> name in the optimiser's state -> value


class OptimizerBinding:
    """The optimisers of a training step, bound to the parameters of a model by key."""

    def __init__(self, optimizers: Sequence[Optimizer], parameters: Mapping[str, Tensor]) -> None:
        self._keys = {id(tensor): key for key, tensor in parameters.items()}
        self._optimizers = optimizers
        for optimizer in optimizers:
            _refuse(optimizer)
        self._groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        owned = [key for group in self._groups for key in self._keys_of(group)]
        twice = next((key for key in owned if owned.count(key) > 1), None) if len(set(owned)) < len(owned) else None
        if twice is not None:
            raise ExportError(f"two optimisers update {twice!r}; each parameter belongs to one")

    def _keys_of(self, group: Mapping[str, Any]) -> list[str]:
        unknown = next((tensor for tensor in group["params"] if id(tensor) not in self._keys), None)
        if unknown is not None:
            raise ExportError(
                f"the optimiser holds a parameter of shape {tuple(unknown.shape)} that is not one of the model; "
                "create it from the parameters of the model that is captured"
            )
        return [self._keys[id(tensor)] for tensor in group["params"]]

    def state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the optimisers keep from step to step, as tensors on meta: `exp_avg.<parameter key>`, ..."""
        like = self._alike(parameters)
        chosen = set(like.values())
        with torch.no_grad():  # on meta, where nothing is computed
            blank = {key: torch.empty_like(parameters[key], device="meta") for key in chosen}
            grads = {key: torch.empty_like(tensor) for key, tensor in blank.items()}
            rates = {name: torch.empty((), dtype=rate.dtype, device="meta") for name, rate in self._rates()}
            found = self._stepped(blank, grads, {}, rates)
        names = dict.fromkeys(name for values in found.values() for name in values)
        kept = {f"{name}.{key}": found[one][name] for name in names for key, one in like.items() if name in found[one]}
        return {name: torch.empty_like(value, device="meta") for name, value in (*rates.items(), *kept.items())}

    def _alike(self, parameters: Mapping[str, Tensor]) -> dict[str, str]:
        """Map each trained parameter to the first one that has the same shape, dtype and settings."""
        first: dict[Any, str] = {}
        found = {}
        for number, group in enumerate(self._groups):
            for key in self._keys_of(group):
                tensor = parameters[key]
                if tensor.requires_grad:
                    found[key] = first.setdefault((number, tensor.shape, tensor.stride(), tensor.dtype), key)
        return found

    def rates(self) -> dict[str, float]:
        """Return the learning rates that are tensors, which the graph reads as state."""
        return {name: float(rate) for name, rate in self._rates()}

    def _rates(self) -> Iterator[tuple[str, Tensor]]:
        for number, group in enumerate(self._groups):
            if isinstance(group.get(RATE), Tensor):
                yield f"{RATE}.{number}", group[RATE]

    def update(
        self, parameters: Mapping[str, Tensor], grads: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> None:
        """Update parameters and state in place, by the code of the optimisers."""
        state: State = defaultdict(dict)
        rates = {}
        for path, value in buffers.items():
            name, _, key = path.partition(".")
            if name == RATE and key.isdecimal():
                rates[path] = value
            else:
                state[key][name] = value
        self._stepped(parameters, grads, state, rates)

    def _stepped(
        self, parameters: Mapping[str, Tensor], grads: Mapping[str, Tensor], state: State, rates: Mapping[str, Tensor]
    ) -> State:
        """Run the `step` of each optimiser on these tensors in place of its own; return the state after it."""
        after: State = {}
        number = 0
        with numbers_recorded(), _gradients_set(parameters, grads):
            for optimizer in self._optimizers:
                bound = copy.copy(optimizer)
                bound.param_groups, bound.state = [], defaultdict(dict)
                for group in optimizer.param_groups:
                    keys = [key for key in self._keys_of(group) if key in parameters]
                    plain = {name: value for name, value in _PLAIN.items() if name in group}
                    held = {**group, **plain, "params": [parameters[key] for key in keys]}
                    if (rate := rates.get(f"{RATE}.{number}")) is not None:
                        held[RATE] = Number(rate.to(torch.float64))
                    bound.param_groups.append(held)
                    bound.state.update((parameters[key], dict(state[key])) for key in keys if key in state)
                    number += 1
                inspect.unwrap(type(optimizer).step)(bound)  # without the hooks of profilers
                names = {id(tensor): key for key, tensor in parameters.items()}
                after.update((names[id(tensor)], _tensors(values)) for tensor, values in bound.state.items())
        return after


@contextmanager
def _gradients_set(parameters: Mapping[str, Tensor], grads: Mapping[str, Tensor]) -> Iterator[None]:
    """Set the gradients that optimisers read."""
    for key, gradient in grads.items():
        parameters[key].grad = gradient
    try:
        yield
    finally:
        for key in grads:
            parameters[key].grad = None


def _tensors(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of one parameter; raise if something in it is not a tensor."""
    found = {name: value for name, value in values.items() if value is not None}
    other = next((name for name, value in found.items() if not isinstance(value, Tensor)), None)
    if other is not None:
        raise ExportError(f"the optimiser keeps {other!r}, which is a {type(found[other]).__name__} and not a tensor")
    return found


def _refuse(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise ExportError(f"optimizer must be one of torch.optim, or several of them, not {optimizer!r:.80}")
    name = type(optimizer).__name__
    if type(optimizer).__module__.partition(".")[0] != "torch" or name not in _ZERO_START:
        raise ExportError(f"the state of {name} does not start as zeros; supported: {', '.join(sorted(_ZERO_START))}")
    if any(group.get("dampening") for group in optimizer.param_groups):
        raise ExportError("SGD with dampening treats its first step differently, so its update is not one graph")


def nested(tensors: Mapping[str, Tensor], root: nn.Module) -> nn.Module:
    """Register tensors as buffers of a tree of modules, so that their keys are these dotted names."""
    for path, tensor in tensors.items():
        *parents, name = path.split(".")
        module = root
        for parent in parents:
            if parent not in dict(module.named_children()):
                module.add_module(parent, nn.Module())
            module = module.get_submodule(parent)
        module.register_buffer(name, tensor)
    return root
