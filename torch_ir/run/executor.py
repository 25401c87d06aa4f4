"""Run a graph with real weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torch_ir.analysis.values.prologue import crossing, split_prologue
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, Limits, OpNode, TensorMeta, evaluate
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.io_tree import Branch, Slot, rebuild
from torch_ir.ir.regroup.functions import FUSED, inline_all, with_calls_open
from torch_ir.ir.sizes.symbols import solve
from torch_ir.ops.guards import FIXED_ATTRIBUTE, OFFSET, check_attribute, overridden
from torch_ir.ops.neutral_state import NeutralState, reads_default_dtype
from torch_ir.ops.prepare_run import check_operators, with_named_arguments
from torch_ir.ops.pytree import values_of_call
from torch_ir.ops.registry import executor_of
from torch_ir.ops.torch_internals import dense_memory_key
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name
from torch_ir.run.compiled_plan import Program, Sizes, Watch, computed, writes_in_place
from torch_ir.run.input_updates import input_updates, write_back
from torch_ir.run.isolated import run_isolated
from torch_ir.run.memory_check import MemoryCheck
from torch_ir.run.overlapping_inputs import refuse_shared_memory
from torch_ir.run.ranks import NO_RANK, Rank
from torch_ir.run.stored import StoredTensor, Weight, device_of, loaded
from torch_ir.run.watched_values import DeclarationWatch, NamedValues
from torch_ir.run.weight_files import (
    WeightSource,
    fit_weights,
    has_pieces,
    load_weights,
    open_weights,
    stream_weights,
    weights_for,
    weights_from,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


_NUMBERS = {bool: "bool", int: "int64", float: "float64"}  # Python type -> dtype in the graph


@dataclass
class Outcome:
    """The result of one run: outputs, new values of mutated tensors, and the sizes of the inputs."""

    outputs: tuple[Any, ...]
    mutations: dict[TensorMeta, Any]
    sizes: Sizes


class IRExecutor:
    """A graph ready to run: compiled once, bound to weights, then run many times.

    The caller's tensors are not written to. Buffers that the model changes are kept between runs, as in the model;
    `state` returns them. With `in_place`, inputs that the graph changes (`ir.mutations`) are written to, without a copy
    where their old value is not read any more. `watch` is called with every value that a node makes; one
    inside a function is named as in a golden pack: `block/linear@2` in the third call. A run that would need more than
    `limits.memory_bytes`, by the sizes that the graph declares, is refused. A sharded graph needs the `mesh` that this
    process is a rank of; whole weights are sharded for it, and only its pieces of files are read. Without `device`, it
    runs on the device of the weights.
    """

    def __init__(
        self,
        ir: IR,
        weights: WeightSource | None = None,
        constants: Mapping[str, torch.Tensor] | None = None,
        *,
        device: str | torch.device | None = None,
        watch: Watch | None = None,
        limits: Limits = Limits(),
        mesh: DeviceMesh | None = None,
        in_place: bool = False,
    ) -> None:
        require_graph(ir, "IRExecutor")
        check_operators(ir.check())
        self.ir = with_named_arguments(ir)
        self.rank = NO_RANK if mesh is None else Rank.of(mesh, ir)
        self.limits = limits
        self.device = self._given_device = torch.device(device) if device is not None else None
        self.constants = {**self.rank.constants(), **(constants or {})}
        self._named = None if watch is None or isinstance(watch, DeclarationWatch) else NamedValues(self.ir, watch)
        self._watch = self._named or watch
        self._writes = writes_in_place(self.ir)
        self._reads_default_dtype = reads_default_dtype(self.ir)
        self._mutated = [target for target, _ in self.ir.mutations]
        self._in_place = in_place
        self._written = [at for at, tensor in enumerate(self.ir.graph_inputs) if in_place and tensor in self._mutated]
        self._reader = CallReader(self.ir)
        self._params: list[Any] | None = None
        self._ready: list[Any] = []
        self._plan(lazy=False)
        if isinstance(weights, (str, os.PathLike)):
            self.load_weights(weights)
        elif weights is not None:
            self.load_weights_from_state_dict(weights_from(weights))

    def _plan(self, lazy: bool) -> None:
        """Compile the programs; if weights are in files, nothing is computed ahead."""
        ir, once, every = _split(self.ir, is_whole=self._watch is not None, is_ahead=not (self._writes or lazy))
        reused = input_updates(ir) if self._in_place and not self._writes else {}
        kept = crossing(once, every, ir)
        given = [*ir.graph_inputs, *ir.params, *kept]
        read = {tensor for node in (*every, ir.returns) for tensor in node.inputs} | {each for each, _ in ir.mutations}
        self._is_kept = [self._watch is not None or param in read or not param.consumers for param in ir.params]
        self._lazy = lazy
        device = self.device.type if self.device else ir.device.partition(":")[0]
        self._memory = MemoryCheck(ir, self.limits, streamed=lazy, device=device)
        groups = self.rank.groups
        self._prologue = Program(ir, once, ir.params, kept, self.device, self._watch, groups=groups)
        self._program = Program(ir, every, given, ir.returns.inputs, self.device, self._watch, lazy, groups, reused)

    def load_weights(self, path: str | os.PathLike[str], *, stream: bool = False) -> None:
        """Bind the weights of a file; with `stream`, each is read when needed and freed after its last use."""
        weights: Mapping[str, Weight]
        if self.rank.numbers and has_pieces(path):
            weights = self.rank.weights(self.ir, open_weights(path))
            weights = weights if stream else {key: loaded(piece) for key, piece in weights.items()}
        else:
            weights = stream_weights(path) if stream else load_weights(path)
        self.load_weights_from_state_dict(weights)

    def load_weights_from_state_dict(self, state_dict: Mapping[str, Weight]) -> None:
        """Bind weights by key, and compute everything that depends on them alone."""
        weights = self.rank.weights(self.ir, weights_for([self.ir], state_dict))
        values = fit_weights(self.ir, weights, self.constants)
        lazy = any(isinstance(value, StoredTensor) for value in values)
        if lazy and self._writes:
            raise ExecutionError(
                "the graph writes in place, so its weights cannot be streamed; load them without stream"
            )
        device = self._given_device or device_of(self.ir, values)
        if (lazy, device) != (self._lazy, self.device):
            self.device = device
            self._plan(lazy)
        changing = {target for target, _ in self.ir.mutations}
        self._params = [
            value if isinstance(value, StoredTensor) and param not in changing else loaded(value, self.device).detach()
            for param, value in zip(self.ir.params, values, strict=True)
        ]
        if self._prologue.nodes:
            self._memory.check({})
        if self._named is not None:
            self._named.start_binding()
        with NeutralState(self._reads_default_dtype):
            self._ready = self._prologue(*self._params, {})
        # what the prologue alone reads is let go, such as the float weights of a quantised graph
        self._params = [value if held else None for value, held in zip(self._params, self._is_kept, strict=True)]

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """The current weights by key; streamed ones are read.

        Those that only the prologue reads are not there, unless the executor is watched.
        """
        values = zip(self.ir.params, self._params or [], strict=False)
        return {param.key or param.name: loaded(value, self.device) for param, value in values if value is not None}

    def execute(self, inputs: Any) -> tuple[Any, ...]:
        """Return the flat outputs for inputs that are flat, or nested as in the model's signature."""
        return self.run(flat_inputs(self.ir, _checked(inputs), {})).outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the graph with the model's signature; the result is nested as the model's."""
        values = self._reader.flat(args, kwargs)
        outcome = self.run(flat_inputs(self.ir, args, kwargs) if values is None else values)
        return rebuild(self.ir.output_tree, outcome.outputs, lambda leaf: computed(leaf, outcome.sizes))

    def run(self, values: Sequence[Any]) -> Outcome:
        """Run on the graph's inputs in order, and return outputs, mutations and sizes."""
        _refuse_other_forms(values)
        if self._params is None and all(tensor.param and tensor.param.data for tensor in self.ir.params):
            self.load_weights_from_state_dict({})  # the graph contains all values
        if self._params is None:
            raise ExecutionError("no weights are bound: pass weights= or call load_weights first")
        sizes = self._reader.sizes(values)
        self._memory.check(sizes)
        params, caller_values = self._params, values
        if self._mutated:
            refuse_shared_memory(self.ir, self._mutated, values, params)
        if self._named is not None:
            self._named.start_run()
        with NeutralState(self._reads_default_dtype, written=[values[at] for at in self._written]):
            if self._writes:
                values = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
                params = [param.clone() for param in params]
            results = self._program(*values, *params, *self._ready, sizes)
            if not self._mutated:
                return Outcome(tuple(results), {}, sizes)
            first = len(results) - len(self._mutated)
            changed = dict(zip(self._mutated, results[first:], strict=True))
            self._keep(changed, [*values, *results[:first]])
            outputs: Sequence[Any] = results[:first]
            if self._in_place:
                outputs = write_back(self.ir, caller_values, changed, outputs)
        return Outcome(tuple(outputs), changed, sizes)

    def places(self) -> dict[str, dict[int, OpNode]]:
        """Map the lines of the programs to nodes, by file name in tracebacks."""
        return {**self._prologue.places(), **self._program.places()}

    def _keep(self, changed: Mapping[TensorMeta, Any], outside: Sequence[Any]) -> None:
        """Keep the values that the model changed, copied if the caller holds the same memory and may write to it."""
        assert self._params is not None  # bound before the run
        shared = {dense_memory_key(value) for value in outside}
        for index, param in enumerate(self.ir.params):
            if param in changed:
                new = changed[param]
                self._params[index] = new.clone() if dense_memory_key(new) in shared else new


def _split(ir: IR, *, is_whole: bool, is_ahead: bool) -> tuple[IR, list[OpNode], list[OpNode]]:
    """Return a graph with fused operators inlined, unless it stays whole, its prologue, and the nodes of every run.

    Operators with a user's executor are not inlined. The nodes of a fused operator run when it runs, so those that
    depend on weights alone, such as dequantisation, belong to the prologue only if the whole operator does.
    """

    def is_open(node: OpNode) -> bool:
        return node.op_type.startswith(FUSED) and executor_of(node) is None

    if is_whole or not any(node.is_call and is_open(node) for node in ir.all_nodes()):
        once, every = split_prologue(ir) if is_ahead else ([], ir.nodes)
        return ir, once, every
    ir = ir.clone()
    kept = set(split_prologue(ir)[0]) if is_ahead else set[OpNode]()
    inline_all(ir, lambda node: is_open(node) and node not in kept)
    always = set(ir.nodes) - kept
    inline_all(ir, is_open)
    for name, body in ir.functions.items():
        ir.functions[name] = with_calls_open(body, is_open)
    return ir, [node for node in ir.nodes if node not in always], [node for node in ir.nodes if node in always]


def execute_ir(
    ir: IR,
    inputs: Sequence[Any],
    weights: WeightSource | None = None,
    weights_path: str | os.PathLike[str] | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    *,
    isolated: bool = False,
    limits: Limits = Limits(),
) -> tuple[Any, ...]:
    """Run a graph once with weights from a dict, a model or a file; with `isolated`, in a separate process."""
    require_graph(ir, "execute_ir")
    if weights is None and weights_path is None:
        raise ValueError("execute_ir needs weights or weights_path")
    if isolated:
        source = weights if weights is not None else weights_path or {}
        given = os.fspath(source) if isinstance(source, (str, os.PathLike)) else weights_from(source)
        return _execute_isolated(ir, inputs, given, constants or {}, limits)
    executor = IRExecutor(ir, weights, constants, limits=limits)
    if weights is None and weights_path is not None:
        executor.load_weights(weights_path)
    return executor.execute(inputs)


def _execute_isolated(
    ir: IR,
    inputs: Sequence[Any],
    weights: Mapping[str, Weight] | str,
    constants: Mapping[str, torch.Tensor],
    limits: Limits,
) -> tuple[Any, ...]:
    """Check everything that can be checked here, then run in the other process."""
    check_operators(ir.check())
    values = flat_inputs(ir, _checked(inputs), {})
    sizes = read_sizes(ir, values)
    streamed = not isinstance(weights, str) and any(isinstance(value, StoredTensor) for value in weights.values())
    MemoryCheck(_split(ir, is_whole=False, is_ahead=False)[0], limits, streamed=streamed).check(sizes)
    return run_isolated(ir, values, weights, constants, sizes, limits)


def _checked(inputs: Any) -> tuple[Any, ...]:
    _refuse_other_forms(inputs)
    if not isinstance(inputs, (tuple, list)):
        raise ExecutionError(f"inputs must be a tuple, not {type(inputs).__name__}")
    return tuple(inputs)


def _refuse_other_forms(inputs: Any) -> None:
    if isinstance(inputs, torch.Tensor):
        raise ExecutionError("inputs is a tensor; wrap it in a tuple: (tensor,)")
    if isinstance(inputs, Mapping):
        raise ExecutionError("inputs is a dict; pass a tuple, or call the executor by keyword: executor(**inputs)")


def flat_inputs(ir: IR, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the graph's inputs in order, from a call that is flat or nested as in the model's signature."""
    if not kwargs and len(args) == len(ir.graph_inputs) and all(isinstance(arg, torch.Tensor) for arg in args):
        return list(args)
    return flatten_call(ir, args, kwargs)


def flatten_call(ir: IR, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the graph's inputs from a call in the model's signature; other arguments must equal the captured ones."""
    return values_of_call(ir.input_tree, args, kwargs)


class CallReader:
    """Reads the inputs of many calls of one graph; what the usual call needs is prepared."""

    def __init__(self, ir: IR) -> None:
        self._ir = ir
        positional, keywords = ir.input_tree.items
        assert isinstance(positional, Branch)  # the two parts of a call
        assert isinstance(keywords, Branch)
        leaves = [*positional.items, *keywords.items]
        in_order = all(isinstance(leaf, Slot) and leaf == at for at, leaf in enumerate(leaves))
        self._names: tuple[str, ...] | None = keywords.keys if in_order else None
        self._set_of_names = set(keywords.keys)
        self._positional = len(positional.items)
        guards = any(node.op_type == FIXED_ATTRIBUTE for node in ir.nodes[:1])
        is_plain = not (ir.symbols or ir.constraints or ir.fixed_layout or guards)
        self._expected = (
            [(tensor.shape, TORCH_DTYPES[tensor.dtype]) for tensor in ir.graph_inputs] if is_plain else None
        )

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """Return the graph's inputs from a call that names each, without nesting; None for any other call."""
        names = self._names
        if names is None or len(args) != self._positional or kwargs.keys() != self._set_of_names:
            return None
        return [*args, *[kwargs[name] for name in names]]

    def sizes(self, values: Sequence[Any]) -> Sizes:
        """Check inputs against the graph, and return the symbolic sizes; see `read_sizes`."""
        if self._expected is None or len(values) != len(self._expected):
            return read_sizes(self._ir, values)
        for value, (shape, dtype) in zip(values, self._expected, strict=True):
            if type(value) is not torch.Tensor or value.dtype is not dtype or value.shape != shape:
                return read_sizes(self._ir, values)
        return {}


def read_sizes(ir: IR, values: Sequence[Any]) -> Sizes:
    """Check inputs against the graph, and return the symbolic sizes."""
    if len(values) != len(ir.graph_inputs):
        raise ExecutionError(f"the graph takes {len(ir.graph_inputs)} inputs, but {len(values)} were given")
    place = dict(zip(ir.graph_inputs, values, strict=True))
    sizes: Sizes = {}
    for symbol in ir.symbols.values():
        if symbol.tensor not in place:
            continue
        value = place[symbol.tensor]
        if symbol.dim is None:
            _check_input(symbol.tensor, value, sizes)
            sizes[symbol.name] = value
        elif isinstance(value, torch.Tensor) and value.dim() == len(symbol.tensor.shape):
            found = solve(symbol.tensor.shape[symbol.dim], symbol.name, value.shape[symbol.dim], sizes)
            if found is None:
                raise ExecutionError(
                    f"input {symbol.tensor.name!r} has size {value.shape[symbol.dim]} in dimension {symbol.dim}, "
                    f"which must be {symbol.tensor.shape[symbol.dim]}"
                )
            sizes[symbol.name] = found
        if symbol.name in sizes and not symbol.admits(sizes[symbol.name]):
            raise ExecutionError(f"{symbol.name} = {sizes[symbol.name]} is out of range: {symbol.range}")
    for tensor, value in place.items():
        _check_input(tensor, value, sizes)
        if ir.fixed_layout and isinstance(value, torch.Tensor):
            _check_strides(ir, tensor, value, sizes)
    for node in ir.nodes:
        if node.op_type != FIXED_ATTRIBUTE:  # they are before all others
            break
        value = place.get(node["value"])
        if isinstance(value, torch.Tensor):
            check_attribute(f"input {node['value'].name!r}", value, node["name"], node["assumed"], node["place"])
    for text in ir.constraints:
        if not evaluate(text, sizes):
            known = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            raise ExecutionError(f"the graph holds only where {text}, but {known}")
    return sizes


def _check_input(tensor: TensorMeta, value: Any, sizes: Sizes) -> None:
    if not isinstance(value, torch.Tensor):
        if tensor.shape == () and _NUMBERS.get(type(value)) == tensor.dtype:
            if type(value) is int and not -(1 << 63) <= value < 1 << 63:
                raise ExecutionError(f"input {tensor.name!r} is {value}, which does not fit into int64")
            return
        kind = tensor.dtype if tensor.shape == () and isinstance(value, (int, float)) else "a tensor"
        raise ExecutionError(f"input {tensor.name!r} must be {kind}, not {type(value).__name__}")
    if type(value) is not torch.Tensor and (changed := overridden(type(value))):
        raise ExecutionError(
            f"input {tensor.name!r} is a {type(value).__name__}, whose own {changed} a graph does not call; pass a "
            "plain tensor: x.as_subclass(torch.Tensor)"
        )
    expected = tuple(evaluate(dim, sizes) for dim in tensor.shape) if value.dim() == len(tensor.shape) else tensor.shape
    if tuple(value.shape) != expected:
        raise ExecutionError(
            f"input {tensor.name!r} has shape {list(value.shape)}, the graph takes {list(tensor.shape)}"
        )
    if value.dtype != TORCH_DTYPES[tensor.dtype]:
        raise ExecutionError(f"input {tensor.name!r} is {dtype_name(value.dtype)}, the graph takes {tensor.dtype}")


def _check_strides(ir: IR, tensor: TensorMeta, value: torch.Tensor, sizes: Sizes) -> None:
    """Raise ExecutionError if the model depends on strides and those of an input differ from capture."""
    if tensor.stride is None:
        expected = torch.empty(value.shape, device="meta").stride()
    else:
        expected = tuple(int(evaluate(step, sizes)) for step in tensor.stride)
    matches = [value.stride(dim) == expected[dim] or size == 1 for dim, size in enumerate(value.shape)]
    if not all(matches) and value.numel():
        raise ExecutionError(
            f"input {tensor.name!r} has strides {list(value.stride())}, but {ir.fixed_layout} depends on strides "
            f"and was captured for {list(expected)}; convert the input to that layout"
        )
    if value.storage_offset() and ir.fixed_layout.endswith(OFFSET):
        raise ExecutionError(
            f"input {tensor.name!r} has storage offset {value.storage_offset()}, but "
            f"{ir.fixed_layout} depends on it and was captured for offset 0; clone the input"
        )
