"""A graph made ready by a back end: optimised, bound to weights, and called as the model is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ir.backends.deviations import check_supported
from torch_ir.backends.placement import find_device, placed
from torch_ir.backends.stateless import stateless
from torch_ir.backends.table import Run, find_backend
from torch_ir.backends.verifying import verify as check_results
from torch_ir.errors import CommandError, ExecutionError
from torch_ir.ir import IR, Expr, Symbol, TensorMeta
from torch_ir.ir.graph.io_tree import rebuild
from torch_ir.ir.sizes.expressions import Number, names_in
from torch_ir.ir.sizes.symbols import solve
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.passes import optimize
from torch_ir.run.compiled_plan import Sizes, computed
from torch_ir.run.executor import flatten_call, read_sizes
from torch_ir.run.overlapping_inputs import refuse_shared_memory, storage_of
from torch_ir.run.stored import loaded
from torch_ir.run.weights import fit_weights

ON_DEVICES = ("inductor", "torch")  # the back ends that run where the weights are


def compile(
    ir: IR,
    weights: Mapping[str, Tensor] | None = None,
    *,
    backend: str = "inductor",
    level: str | None = "full",
    device: str | torch.device | None = None,
    verify: bool = False,
) -> Compiled:
    """The graph, optimised, in a back end; what depends on weights alone is computed here and now.

    A graph with a node that the back end is known to compute differently from eager is refused before anything runs.
    With `verify`, the result is compared with the executor on random inputs; a difference beyond rounding is an error.

    `level` is that of `optimize`; None takes the graph as it is. Weights may be left out where the graph holds them.
    With `device`, weights are copied to it, and what the graph makes by itself is made there; inputs must be there.
    """
    found = find_backend(backend)
    place = None if device is None else find_device(device)
    if place is not None and place.type != "cpu" and backend not in ON_DEVICES:
        raise ExecutionError(f"{backend} runs on the CPU; on {place} there are {' and '.join(ON_DEVICES)}")
    if verify and backend == "auto":
        raise CommandError("verify= is for a back end by name; auto compares each one with torch before it chooses")
    given = dict(zip(map(_key, ir.params), fit_weights(ir, weights or {}, {}), strict=True))
    better = ir if level is None else optimize(ir, level)[0]
    better = better if place is None else placed(better, place)
    check_supported(better, backend)
    kept = {key: given[key] for key in map(_key, better.params) if key in given}
    held = [loaded(value, place).detach() for value in fit_weights(better, kept, {})]
    values = dict(zip(better.params, held, strict=True))
    graph, state = stateless(better, [symbol.tensor for symbol in _told_by_data(better) if symbol.tensor])
    run = found.prepare(graph, {_key(param): value for param, value in values.items() if param not in state})
    compiled = Compiled(better, backend, run, {param: values[param].clone() for param in state})
    if verify:
        check_results(backend, compiled.run_once, ir, given)
    return compiled


def _key(param: TensorMeta) -> str:
    return param.key or param.name


def _told_by_data(ir: IR) -> list[Symbol]:
    """The sizes and numbers that the model returns, and that no input shows."""
    named: set[str] = set()
    slots = [None] * len(ir.graph_outputs)
    rebuild(ir.output_tree, slots, lambda leaf: named.update(names_in(leaf)) if isinstance(leaf, Expr) else None)
    return [symbol for symbol in ir.symbols.values() if symbol.name in named and symbol.tensor not in ir.graph_inputs]


class Compiled:
    """Called as the model is, and gives what the model gives; buffers are kept here, inputs are written to.

    `graph` is the graph that runs.
    """

    def __init__(self, graph: IR, backend: str, run: Run, state: Mapping[TensorMeta, Tensor]) -> None:
        self.graph = graph
        self._backend = backend
        self._run = run
        self._state = dict(state)
        self._targets = [target for target, _ in graph.mutations]
        self._told = _told_by_data(graph)

    @property
    def backend(self) -> str:
        """The name of what runs the graph; of `auto`, what it chose."""
        return getattr(self._run, "chosen", "") or self._backend

    @property
    def why(self) -> str:
        """Why `auto` chose that, with what it measured."""
        return getattr(self._run, "why", f"{self._backend} was asked for")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for this call, nested as the model nests it."""
        values = flatten_call(self.graph, args, kwargs)
        sizes = read_sizes(self.graph, values)
        outputs, told = self._outputs(values)
        for symbol, value in zip(self._told, told, strict=True):
            sizes[symbol.name] = _size(symbol, value, sizes)
        return rebuild(self.graph.output_tree, outputs, lambda leaf: computed(leaf, sizes))

    def run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The flat outputs for the graph's inputs in order."""
        read_sizes(self.graph, values)
        return self._outputs(values)[0]

    def run_once(self, values: Sequence[Any]) -> list[Any]:
        """The flat outputs and the new values of what the model changes; nothing is kept or written."""
        read_sizes(self.graph, values)
        with torch.no_grad():
            results = self._run([*values, *(value.clone() for value in self._state.values())])
        return list(results[: len(results) - len(self._told)])

    def _outputs(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], Sequence[Any]]:
        """What the graph gives, and the tensors that show further sizes."""
        if self._targets:
            refuse_shared_memory(self.graph, self._targets, values, map(self._state.get, self.graph.params))
        with NeutralState():
            results = self._run([*values, *self._state.values()])
        last = len(results) - len(self._told)
        first = last - len(self._targets)
        with torch.no_grad():
            self._keep(values, results[:first], results[first:last])
        return tuple(results[:first]), results[last:]

    def _keep(self, values: Sequence[Any], outputs: Sequence[Any], changed: Sequence[Any]) -> None:
        """Write to inputs that the model writes to, and remember its buffers; the caller holds no memory of those."""
        inputs = dict(zip(self.graph.graph_inputs, values, strict=True))
        held = {storage_of(value) for value in (*values, *outputs)} if changed else set()
        for target, new in zip(self._targets, changed, strict=True):
            if target in inputs:
                inputs[target].copy_(new)
            else:
                self._state[target] = new.clone() if storage_of(new) in held else new


def _size(symbol: Symbol, value: Any, known: Sizes) -> Number:
    """What a tensor that a node made says about a size."""
    if symbol.dim is None or symbol.tensor is None:
        return value.item() if isinstance(value, Tensor) else value
    found = solve(symbol.tensor.shape[symbol.dim], symbol.name, value.shape[symbol.dim], known)
    if found is None:
        raise ExecutionError(f"no {symbol.name} makes {symbol.tensor.shape[symbol.dim]} of {value.shape[symbol.dim]}")
    return found
