"""The module that `to_torch` gives: weights under their state-dict keys, and programs over them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from torch_ir.analysis.values.prologue import crossing, split_prologue
from torch_ir.errors import ConversionError, WeightLoadError, did_you_mean
from torch_ir.ir import IR, Branch, Param, Slot, TensorMeta
from torch_ir.ir.regroup.functions import fresh
from torch_ir.ops.effects import writes_in_place
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.ops.pytree import values_of_call
from torch_ir.ops.tensor_data import to_tensor
from torch_ir.ops.tensor_subclasses import plain_tensors
from torch_ir.ops.torch_internals import module_table, submodule_at
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name
from torch_ir.targets.torch.fx_graph import is_name, write_program

_READY = "_ready_{}"


class ATenModule(nn.Module):
    """A graph of ATen calls; `to_torch` makes a class of it for each graph, with the signature of the model."""

    def __init__(
        self,
        tree: Branch,
        ties: Sequence[tuple[str, ...]],
        prologue: fx.GraphModule | None,
        ready: int,
        program: fx.GraphModule,
    ) -> None:
        super().__init__()
        self._tree = tree
        self._ties = tuple(ties)  # of each weight, its keys
        self._paths = [tuple(keys[0].split(".")) for keys in self._ties]
        self._prologue = prologue
        self._program = program
        self._ready = [_READY.format(index) for index in range(ready)]
        self.register_load_state_dict_post_hook(_settle)  # type: ignore[no-untyped-call]  # torch does not annotate it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        values = values_of_call(self._tree, args, kwargs)
        return self._program(*values, *self._weights(), *(getattr(self, name) for name in self._ready))

    def _weights(self) -> list[Tensor]:
        return [_found(self, path) for path in self._paths]

    def settle(self) -> None:
        """Tie what is one weight, and compute what depends on weights alone."""
        for keys, weight in zip(self._ties, self._weights(), strict=True):
            for key in keys[1:]:
                holder, name = _holder(self, key)
                setattr(holder, name, weight)
        if self._prologue is not None:
            with NeutralState():
                for name, value in zip(self._ready, self._prologue(*self._weights()), strict=True):
                    self.register_buffer(name, value, persistent=False)


def _settle(module: ATenModule, _: Any) -> None:
    module.settle()


def build(ir: IR, weights: Mapping[str, Tensor] | None) -> nn.Module:
    """The module of a graph; see `to_torch`."""
    ir = with_calls_inline(ir)
    once, every = ([], ir.nodes) if weights is None else split_prologue(ir)
    ready = crossing(once, every, ir)
    module: ATenModule = _class_of(ir)(
        ir.input_tree,
        [_param(tensor).keys for tensor in ir.params],
        write_program(ir, once, ir.params, ready) if ready else None,
        len(ready),
        write_program(ir, every, [*ir.graph_inputs, *ir.params, *ready]),
    )
    values = _without_values(ir) if weights is None else _fitted(ir, plain_tensors(weights))
    writes = any(map(writes_in_place, ir.all_nodes()))
    changing = set(ir.params) if writes else {target for target, _ in ir.mutations}
    for tensor, value in zip(ir.params, values, strict=True):
        hold(module, _param(tensor), value.clone() if tensor in changing else value)
    if weights is not None:
        module.settle()
    return module.eval()


def _class_of(ir: IR) -> Any:
    """A class whose `forward` has the arguments of the model by name, which is how torch speaks of dynamic sizes."""

    def forward(self: ATenModule, *args: Any, **kwargs: Any) -> Any:
        return ATenModule.forward(self, *args, **kwargs)

    forward.__signature__ = signature_of(ir)  # type: ignore[attr-defined]  # what `inspect` asks for
    name = ir.model_name if is_name(ir.model_name) else ATenModule.__name__
    return type(name, (ATenModule,), {"forward": forward})


def signature_of(ir: IR) -> inspect.Signature:
    positional, keywords = ir.input_tree.items
    assert isinstance(positional, Branch)  # a tuple of arguments
    assert isinstance(keywords, Branch)  # a dict of keywords
    taken = {"self", *keywords.keys}
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for index, item in enumerate(positional.items):
        name = ir.graph_inputs[item].name if isinstance(item, Slot) else f"arg{index}"
        name = fresh(name if is_name(name) else f"arg{index}", taken)
        parameters.append(inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY))
    for key in keywords.keys:
        if not is_name(key):
            raise ConversionError(f"the model takes a keyword {key!r:.60}, which is no name of an argument")
        parameters.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY))
    return inspect.Signature(parameters)


# -- weights ----------------------------------------------------------------------------------------------------------


def _param(tensor: TensorMeta) -> Param:
    assert tensor.param is not None  # `check` says so
    return tensor.param


def _without_values(ir: IR) -> Iterator[Tensor]:
    """The values that the graph holds itself; everything else is on meta."""
    for tensor in ir.params:
        data = _param(tensor).data
        if data is not None:
            yield to_tensor(data, tensor.stride)
        else:
            shape: Any = tensor.shape
            stride: Any = tensor.stride or torch.empty(shape, device="meta").stride()
            yield torch.empty_strided(shape, stride, dtype=TORCH_DTYPES[tensor.dtype], device="meta")


def _fitted(ir: IR, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """A value for every weight, by any of its keys, or from the graph itself; all misfits are told at once."""
    values: list[Tensor] = []
    wrong: list[str] = []
    for tensor, held in zip(ir.params, _without_values(ir), strict=True):
        keys = _param(tensor).keys
        value = next((weights[key] for key in keys if key in weights), held)
        if value.is_meta:
            wrong.append(f"{keys[0]!r} has no values{did_you_mean(keys[0], weights)}")
        elif tuple(value.shape) != tensor.shape or value.dtype != TORCH_DTYPES[tensor.dtype]:
            given = f"{dtype_name(value.dtype)}{list(value.shape)}"
            wrong.append(f"{keys[0]!r} is {given}, the graph needs {tensor.dtype}{list(tensor.shape)}")
        values.append(value.detach())
    if wrong:
        listed = "\n  ".join(wrong)
        raise WeightLoadError(f"the weights do not fit {ir.model_name or 'the graph'}:\n  {listed}")
    return values


def hold(module: nn.Module, param: Param, value: Tensor) -> None:
    """Let a module have a weight under its keys, in modules of their own where these have dots."""
    parameter = nn.Parameter(value, requires_grad=False) if param.kind == "parameter" else value
    for key in param.keys:
        try:
            holder, name = _holder(module, key)
            if isinstance(parameter, nn.Parameter):
                holder.register_parameter(name, parameter)
            elif param.kind == "constant":  # neither does the model register it, so that it is exported as one again
                _refuse_taken(holder, name)
                setattr(holder, name, parameter)
            else:
                holder.register_buffer(name, parameter, persistent=param.kind == "buffer")
        except (KeyError, TypeError, AttributeError) as error:
            raise ConversionError(f"no module can hold a weight under {key!r:.80}: {error}") from None


def _refuse_taken(holder: nn.Module, name: str) -> None:
    if hasattr(holder, name):
        raise KeyError(f"attribute {name!r} already exists")


def _holder(module: nn.Module, key: str) -> tuple[nn.Module, str]:
    """The module that holds what a key names, and its name there; missing modules are made."""
    *path, name = key.split(".")
    for part in path:
        if part not in module_table(module):
            module.register_module(part, nn.Module())
        module = getattr(module, part)
    return module, name


def _found(module: nn.Module, path: Sequence[str]) -> Any:
    """What a path of names leads to; `getattr` on modules is slow, and this is done for every weight in every call."""
    return getattr(submodule_at(module, path[:-1]), path[-1])
