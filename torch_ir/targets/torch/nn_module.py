"""The module that `to_torch` returns: weights under their state-dict keys, and fx programs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from torch_ir.analysis.values.prologue import crossing, split_prologue
from torch_ir.errors import ConversionError, WeightLoadError, did_you_mean
from torch_ir.ir import IR, Branch, Param, Slot, TensorMeta
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ir.graph.io_tree import leaves
from torch_ir.ops.effects import writes_in_place
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.ops.pytree import slots_of_call
from torch_ir.ops.tensor_data import plain_tensors, to_tensor
from torch_ir.ops.torch_internals import is_transforming, module_table, submodule_at
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name
from torch_ir.run.executor import read_sizes
from torch_ir.run.overlapping_inputs import refuse_shared_memory
from torch_ir.targets.torch.fx_graph import is_name, write_program

_READY = "_ready_{}"


class ATenModule(nn.Module):
    """A graph of ATen calls; `to_torch` subclasses it per graph, with the signature of the model."""

    def __init__(
        self,
        tree: Branch,
        ties: Sequence[tuple[str, ...]],
        prologue: fx.GraphModule | None,
        early: Sequence[int],
        ready: int,
        program: fx.GraphModule,
        checked: IR,
    ) -> None:
        super().__init__()
        self._checked = checked  # the graph, with which inputs are compared
        self._tree = tree
        slots = [int(leaf) for _, leaf in leaves(tree) if isinstance(leaf, Slot)]
        self._places = sorted(range(len(slots)), key=slots.__getitem__)  # torch.compile of 2.11 does not trace Slots
        self._ties = tuple(ties)  # the keys of each weight
        self._paths = [tuple(keys[0].split(".")) for keys in self._ties]
        self._prologue = prologue
        self._early = early  # the weights that the prologue reads
        self._program = program
        self._ready = [_READY.format(index) for index in range(ready)]
        self.register_load_state_dict_post_hook(_settle)  # type: ignore[no-untyped-call]  # torch does not annotate it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = slots_of_call(self._tree, args, kwargs)
        values = [found[place][1] for place in self._places]
        weights = self._weights()
        if not _is_traced(values):
            _check_inputs(self._checked, values, weights)
        return self._program(*values, *weights, *self._computed(weights))

    def _weights(self) -> list[Tensor]:
        return [_found(self, path) for path in self._paths]

    def _computed(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the results of the prologue; those of weights that are trained are computed again in every call."""
        if self._prologue is not None and any(weights[index].requires_grad for index in self._early):
            found: Sequence[Tensor] = self._prologue(*weights)
            return found
        return [getattr(self, name) for name in self._ready]

    def settle(self) -> None:
        """Tie weights with several keys, and compute the prologue."""
        for keys, weight in zip(self._ties, self._weights(), strict=True):
            for key in keys[1:]:
                holder, name = _holder(self, key)
                setattr(holder, name, weight)
        if self._prologue is not None:
            with NeutralState():
                for name, value in zip(self._ready, self._prologue(*self._weights()), strict=True):
                    self.register_buffer(name, value, persistent=False)


def _is_traced(values: Sequence[Any]) -> bool:
    """Whether inputs have no sizes of their own that could be compared."""
    jit: Any = torch.jit  # torch does not annotate its functions
    if torch.compiler.is_compiling() or jit.is_tracing() or is_transforming():
        return True
    return any(
        isinstance(value, (fx.Proxy, torch.SymInt, torch.SymFloat, torch.SymBool))
        or (isinstance(value, Tensor) and any(type(size) is not int for size in value.shape))
        for value in values
    )


def _check_inputs(ir: IR, values: Sequence[Any], weights: Sequence[Tensor]) -> None:
    """Raise ExecutionError for inputs with sizes, dtypes, strides or shared memory that the graph is not valid for."""
    read_sizes(ir, values)
    if ir.mutations:
        refuse_shared_memory(ir, [target for target, _ in ir.mutations], values, weights)


def _settle(module: ATenModule, _: Any) -> None:
    module.settle()


def build(ir: IR, weights: Mapping[str, Tensor] | None) -> nn.Module:
    """Build the module of a graph; see `to_torch`."""
    ir = with_calls_inline(ir)
    once, every = ([], ir.nodes) if weights is None else split_prologue(ir)
    ready = crossing(once, every, ir)
    read = set(once)
    module: ATenModule = _class_of(ir)(
        ir.input_tree,
        [_param(tensor).keys for tensor in ir.params],
        write_program(ir, once, ir.params, ready) if ready else None,
        [index for index, tensor in enumerate(ir.params) if not read.isdisjoint(tensor.consumers)],
        len(ready),
        write_program(ir, every, [*ir.graph_inputs, *ir.params, *ready]),
        ir,
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
    """Return a class whose `forward` has the model's argument names, which torch's dynamic shapes refer to."""

    def forward(self: ATenModule, *args: Any, **kwargs: Any) -> Any:
        return ATenModule.forward(self, *args, **kwargs)

    forward.__signature__ = signature_of(ir)  # type: ignore[attr-defined]  # read by `inspect`
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
            raise ConversionError(f"the model takes a keyword {key!r:.60}, which is not a valid argument name")
        parameters.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY))
    return inspect.Signature(parameters)


# -- weights ----------------------------------------------------------------------------------------------------------


def _param(tensor: TensorMeta) -> Param:
    assert tensor.param is not None  # guaranteed by `check`
    return tensor.param


def _without_values(ir: IR) -> Iterator[Tensor]:
    """Yield the constants of the graph; everything else on meta."""
    for tensor in ir.params:
        data = _param(tensor).data
        if data is not None:
            yield to_tensor(data, tensor.stride)
        else:
            shape: Any = tensor.shape
            stride: Any = tensor.stride or torch.empty(shape, device="meta").stride()
            yield torch.empty_strided(shape, stride, dtype=TORCH_DTYPES[tensor.dtype], device="meta")


def _fitted(ir: IR, weights: Mapping[str, Tensor]) -> list[Tensor]:
    """Return a value for every weight, by any of its keys or from the graph; all mismatches are reported at once."""
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
        raise WeightLoadError(f"the weights do not match {ir.model_name or 'the graph'}:\n  {listed}")
    return values


def hold(module: nn.Module, param: Param, value: Tensor) -> None:
    """Register a weight under its keys, creating submodules for dotted keys."""
    parameter = nn.Parameter(value, requires_grad=False) if param.kind == "parameter" else value
    for key in param.keys:
        try:
            holder, name = _holder(module, key)
            if isinstance(parameter, nn.Parameter):
                holder.register_parameter(name, parameter)
            elif param.kind == "constant":  # not registered in the model either, so that it is exported as a constant
                if hasattr(holder, name):
                    raise KeyError(f"attribute {name!r} already exists")
                setattr(holder, name, parameter)
            else:
                holder.register_buffer(name, parameter, persistent=param.kind == "buffer")
        except (KeyError, TypeError, AttributeError) as error:
            raise ConversionError(f"no module can hold a weight under {key!r:.80}: {error}") from None


def _holder(module: nn.Module, key: str) -> tuple[nn.Module, str]:
    """Return the module that contains a key, created if missing, and the name there."""
    *path, name = key.split(".")
    for part in path:
        if part not in module_table(module):
            module.register_module(part, nn.Module())
        module = getattr(module, part)
    return module, name


def _found(module: nn.Module, path: Sequence[str]) -> Any:
    """Return the object at a path; `getattr` on modules is slow, and this runs for every weight in every call."""
    return getattr(submodule_at(module, path[:-1]), path[-1])
