"""A compiled graph: optimised, bound to weights, with the model's signature."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_ir.backends.deviations import check_supported
from torch_ir.backends.placement import find_device, placed
from torch_ir.backends.stateless import stateless
from torch_ir.backends.table import Run, find_backend
from torch_ir.backends.verifying import verify as check_results
from torch_ir.backends.verifying import verify_unswept
from torch_ir.errors import CommandError, ExecutionError
from torch_ir.ir import IR, Expr, Symbol, TensorMeta
from torch_ir.ir.graph.given_graph import ExampleInputs, graph_of
from torch_ir.ir.graph.io_tree import rebuild
from torch_ir.ir.sizes.expressions import Number, names_in
from torch_ir.ir.sizes.symbols import solve
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.torch_internals import dense_memory_key
from torch_ir.passes import optimize
from torch_ir.run.compiled_plan import Sizes, computed
from torch_ir.run.executor import CallReader, flatten_call
from torch_ir.run.input_updates import apart_from
from torch_ir.run.overlapping_inputs import refuse_shared_memory
from torch_ir.run.storage_inputs import counted_inputs, refuse_parts
from torch_ir.run.stored import Weight, device_of, loaded
from torch_ir.run.weight_files import WeightSource, fit_weights, weights_from

ON_DEVICES = ("inductor", "torch")  # back ends that run on the device of the weights


def compile(
    ir: IR | nn.Module,
    weights: WeightSource | None = None,
    *,
    backend: str = "inductor",
    level: str | None = "full",
    device: str | torch.device | None = None,
    verify: bool | None = None,
    example_inputs: ExampleInputs | None = None,
) -> Compiled:
    """Optimise a graph and compile it with a back end; computations on weights alone are done now.

    `weights` are a state dict, a model, or the path of a checkpoint, and may be omitted if the graph contains them. A
    model in place of the graph is captured with `example_inputs`, and has its own weights unless others are given.

    A graph with a node that the back end is known to compute differently from eager is rejected before anything runs.
    With `verify`, the result is compared with the executor on random inputs; a difference beyond rounding is an error.
    By default, that is done for operators and dtypes in which the back end was never compared with eager; False never.

    `level` is that of `optimize`; None takes the graph as it is.
    With `device`, weights are copied to it and new tensors are created there; inputs must be there too. By default, it
    is the device of the weights.
    """
    found = find_backend(backend)
    place = None if device is None else find_device(device)
    if verify and backend == "auto":
        raise CommandError("verify= needs a named back end; auto already compares each one with torch")
    if weights is None:
        weights = ir if isinstance(ir, nn.Module) else {}
    ir = graph_of(ir, example_inputs, "compile")
    with NeutralState(new_on_cpu=True):
        fitted: Sequence[Weight] = fit_weights(ir, weights_from(weights), {})
        place = place or device_of(ir, fitted)
        if place is not None and place.type != "cpu" and backend not in ON_DEVICES:
            raise ExecutionError(
                f"{backend} runs only on the CPU; on {place}, use {' or '.join(ON_DEVICES)}, or pass device='cpu'"
            )
        if place is not None:
            ir, fitted = placed(ir, place), [loaded(value, place) for value in fitted]
        given = dict(zip(map(_key, ir.params), fitted, strict=True))
        better = ir if level is None else optimize(ir, level)[0]
        check_supported(better, backend)
        kept = {key: given[key] for key in map(_key, better.params) if key in given}
        held = [loaded(value, place).detach() for value in fit_weights(better, kept, {})]
        values = dict(zip(better.params, held, strict=True))
        shown = [symbol.tensor for symbol in _data_dependent(better) if symbol.tensor]
        graph, state = stateless(better, shown, in_place=found.in_place)
        run = found.compile(graph, {_key(param): value for param, value in values.items() if param not in state})
        buffers = {param: values[param].clone() for param in state}
        compiled = Compiled(better, backend, run, buffers, [target.name for target, _ in graph.mutations])
        if verify:
            check_results(backend, compiled.run_once, ir, given)
        elif verify is None:
            verify_unswept(backend, compiled.run_once, better, ir, given)
    return compiled


def _key(param: TensorMeta) -> str:
    return param.key or param.name


def _data_dependent(ir: IR) -> list[Symbol]:
    """Return the returned symbols that no input determines."""
    named: set[str] = set()
    slots = [None] * len(ir.graph_outputs)
    rebuild(ir.output_tree, slots, lambda leaf: named.update(names_in(leaf)) if isinstance(leaf, Expr) else None)
    return [symbol for symbol in ir.symbols.values() if symbol.name in named and symbol.tensor not in ir.graph_inputs]


class Compiled:
    """A callable with the model's signature; it keeps the buffers and writes to inputs like the model.

    `graph` is the graph that runs; `run` itself writes to the inputs named in `written`.
    """

    def __init__(
        self, graph: IR, backend: str, run: Run, state: Mapping[TensorMeta, Tensor], written: Collection[str] = ()
    ) -> None:
        self.graph = graph
        self._backend = backend
        self._run = run
        self._state = dict(state)
        self._targets = [target for target, _ in graph.mutations]
        self._written = [index for index, tensor in enumerate(graph.graph_inputs) if tensor.name in written]
        self._returned = [target for target in self._targets if target.name not in written]  # `run` returns new values
        self._shown = _data_dependent(graph)
        self._reader = CallReader(graph)
        self._counted = [] if backend == "torch" else counted_inputs(graph)
        self._is_pure = not (self._targets or self._state or self._shown or self._counted)

    @property
    def backend(self) -> str:
        """The name of the back end; for `auto`, the chosen one."""
        return getattr(self._run, "chosen", "") or self._backend

    @property
    def why(self) -> str:
        """Why this back end runs; for `auto`, with the measurements."""
        return getattr(self._run, "why", f"{self._backend} was requested")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of a call, nested as the model nests them."""
        flat = self._reader.flat(args, kwargs)
        values = flatten_call(self.graph, args, kwargs) if flat is None else flat
        sizes = self._reader.sizes(values)
        outputs, shown = self._outputs(values)
        for symbol, value in zip(self._shown, shown, strict=True):
            sizes[symbol.name] = _size(symbol, value, sizes)
        return rebuild(self.graph.output_tree, outputs, lambda leaf: computed(leaf, sizes))

    def run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the flat outputs for the graph's inputs in order."""
        self._reader.sizes(values)
        return self._outputs(values)[0]

    def run_once(self, values: Sequence[Any]) -> list[Any]:
        """Return the flat outputs and the new values of changed tensors, without storing them."""
        self._reader.sizes(values)
        with NeutralState(new_on_cpu=True):
            values = [value.clone() if index in self._written else value for index, value in enumerate(values)]
            results = self._run([*values, *(value.clone() for value in self._state.values())])
        last = len(results) - len(self._shown)
        first = last - len(self._returned)
        new = dict(zip(self._returned, results[first:last], strict=True))
        new.update((self.graph.graph_inputs[index], values[index]) for index in self._written)
        return [*results[:first], *(new[target] for target in self._targets)]

    def bound(self, values: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        """Return a function that repeats the call on these tensors, which are checked once and never copied.

        The caller changes their contents between calls. On a GPU, a call is one launch of a CUDA graph. The flat
        outputs may be overwritten by the next call.
        """
        self._reader.sizes(values)
        refuse_parts(self.graph, self._counted, values)
        refuse_shared_memory(self.graph, self._targets, values, map(self._state.get, self.graph.params))
        bind = getattr(self._run, "bound", None)
        if bind is None or self._returned or self._shown:
            return lambda: self.run(values)
        changing = self._changing(values)
        with NeutralState(written=changing):
            run: Callable[[], Sequence[Any]] = bind(values)

        def again() -> Sequence[Any]:
            with NeutralState(written=changing):
                return run()

        return again

    def _outputs(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], Sequence[Any]]:
        """Return the outputs of the graph, and the tensors that determine further sizes."""
        if self._is_pure:
            with NeutralState(new_on_cpu=True):
                return tuple(self._run(values)), ()
        refuse_parts(self.graph, self._counted, values)
        if self._targets:
            refuse_shared_memory(self.graph, self._targets, values, map(self._state.get, self.graph.params))
        with NeutralState(written=self._changing(values), new_on_cpu=True):
            results = self._run([*values, *self._state.values()])
            last = len(results) - len(self._shown)
            first = last - len(self._returned)
            given = zip(self.graph.graph_inputs, values, strict=True)
            outputs = apart_from(results[:first], [value for tensor, value in given if tensor in self._returned])
            self._keep(values, outputs, results[first:last])
        return tuple(outputs), results[last:]

    def _changing(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of the inputs that the model changes."""
        given = zip(self.graph.graph_inputs, values, strict=True)
        return [value for tensor, value in given if tensor in self._targets]

    def _keep(self, values: Sequence[Any], outputs: Sequence[Any], changed: Sequence[Any]) -> None:
        """Write to the inputs that the model changes, and store its buffers, copied if the caller has their memory."""
        inputs = dict(zip(self.graph.graph_inputs, values, strict=True))
        held = {dense_memory_key(value) for value in (*values, *outputs)} if changed else set()
        kept = [new.clone() if dense_memory_key(new) in held else new for new in changed]
        for target, new in zip(self._returned, kept, strict=True):
            if target in inputs:
                inputs[target].copy_(new)
            else:
                self._state[target] = new


def _size(symbol: Symbol, value: Any, known: Sizes) -> Number:
    """Return the size that a computed tensor determines."""
    if symbol.dim is None or symbol.tensor is None:
        return value.item() if isinstance(value, Tensor) else value
    found = solve(symbol.tensor.shape[symbol.dim], symbol.name, value.shape[symbol.dim], known)
    if found is None:
        raise ExecutionError(
            f"no value of {symbol.name} makes {symbol.tensor.shape[symbol.dim]} equal to {value.shape[symbol.dim]}"
        )
    return found
