"""Levels of granularity: the same graph with layers, torch functions, or operators as nodes.

    at_level(ir, "aten")      conv2d: float32[1, 8, 6, 6] = aten.conv2d.default(input=x, weight=p_weight, stride=[1, 1])
    at_level(ir, "function")  conv2d: float32[1, 8, 6, 6] = torch.conv2d(input=x, weight=p_weight, stride=[1, 1],
                                                                         function=@conv2d)
    at_level(ir, "module")    conv1: float32[1, 8, 6, 6] = torch.nn.Conv2d(input=x, weight=p_weight, stride=[1, 1],
                                                                           function=@Conv2d)

A layer is a call of a module that ran no other module; `leaf` names classes whose calls are always kept as one node.
What a container computes itself, such as the sum at the end of a residual block, stays as operators. Only a recording
knows which torch functions the model called.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch_ir.errors import GraphError, did_you_mean
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.node import OpNode, Origin, copy_value
from torch_ir.ir.graph.origins import call_around, common_origin, is_below, modules_around
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.regroup.functions import (
    Reads,
    around,
    called_by,
    drop_unused,
    enclose,
    given_by,
    holds_modules,
    inline_all,
    read_by,
)
from torch_ir.ir.regroup.shared_functions import SharedFunctions

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

LEVELS = ("aten", "function", "module")
_TORCH_LAYER = re.compile(r"torch\.nn\.modules\.\w+\.(\w+)")


class Run(NamedTuple):
    """Adjacent nodes that become one call, with its name, its op_type, and the module call they came from."""

    nodes: list[OpNode]
    name: str
    op_type: str
    origin: Origin


def at_level(ir: IR, level: str, leaf: Collection[str | type] = ()) -> IR:
    """Return a copy of a graph in which every layer or torch function is one node, or no node is a function call."""
    if level not in LEVELS:
        raise GraphError(
            f"unknown level {level!r:.60}; expected one of {', '.join(LEVELS)}{did_you_mean(str(level), LEVELS)}"
        )
    if isinstance(leaf, str):
        raise GraphError(f"leaf takes several classes or their names; wrap the one in a tuple: ({leaf!r:.80},)")
    copy = ir.clone()
    inline_all(copy, lambda call: level != "module" or _can_be_folded_again(copy, call, _names(leaf)))
    if level == "module" or leaf:
        _fold_layers(copy, _Layers(copy, leaf, only_leaf=level != "module"))
    if level == "function":
        _fold_functions(copy)
    return copy


def _can_be_folded_again(ir: IR, call: OpNode, leaf: set[str]) -> bool:
    """Whether a call is a module call that is not a leaf; its layers are then determined again."""
    body = ir.functions[call.attrs["function"]]
    if body.symbols or body.params or not leaf.isdisjoint((call.op_type, short(call.op_type))):
        return False
    return call.is_layer or holds_modules(body)


def fold(ir: IR, nodes: Iterable[OpNode], name: str, op_type: str) -> OpNode:
    """Replace nodes by one call, with arguments and attributes like a layer's."""
    inside, before, after = around(ir, nodes)
    if not given_by(inside):
        raise GraphError(f"no output of {inside[-1]!r} and the nodes to fold with it is read")
    ir.nodes = [*before, *inside, *after]
    return fold_runs(ir, [Run(inside, name, op_type, common_origin(inside))])[0]


def fold_runs(ir: IR, runs: Iterable[Run]) -> list[OpNode]:
    """Replace each run whose results are read by one call; equal bodies share one function."""
    first = {run.nodes[0]: run for run in runs if given_by(run.nodes)}
    inside = {node for run in first.values() for node in run.nodes}
    names = Names(node.name for node in ir.nodes if node not in inside)
    shared = SharedFunctions(ir)
    calls, nodes = [], []
    for node in ir.nodes:
        if node in first:
            calls.append(_call(ir, first[node], fresh(first[node].name, names), shared))
            nodes.append(calls[-1])
        elif node not in inside:
            nodes.append(node)
    ir.nodes = nodes
    drop_unused(ir, called_by(inside))
    return calls


def public_name(module_class: str) -> str:
    """Return `torch.nn.Conv2d` for `torch.nn.modules.conv.Conv2d`."""
    found = _TORCH_LAYER.fullmatch(module_class)
    return f"torch.nn.{found[1]}" if found else module_class


def _call(ir: IR, run: Run, name: str, shared: SharedFunctions) -> OpNode:
    node = run.nodes[0]
    is_plain = len(run.nodes) == 1 and node.has_named_args and not called_by(run.nodes)
    reads = list(zip(node.args, node.inputs, strict=True)) if is_plain else _local_names(run)
    call, body = enclose(ir, run.nodes, reads, run.origin)
    call.name, call.op_type = name, run.op_type
    if is_plain:  # a layer of a single operator has its attributes
        call.attrs.update((key, copy_value(value)) for key, value in node.attrs.items() if key != "function")
    if any(map(is_gap, run.nodes)):  # the body cannot run, but an executor for the layer can
        call.attrs.pop("function", None)
    else:
        shared.bind(call, body, identifier(short(run.op_type)))
    return call


def _local_names(run: Run) -> Reads:
    """Name weights relative to the module, and everything else `input`; `fresh` numbers duplicates."""
    return [(local_name(tensor, run.origin.module), tensor) for tensor in read_by(run.nodes)]


def local_name(tensor: TensorMeta, module: str) -> str:
    """Return the argument name of a tensor that a module call reads; a weight has its name within the module."""
    if tensor.param is None:
        return "input"
    own = (key[len(module) :].removeprefix(".") for key in tensor.param.keys if is_below(key, module))
    return identifier(next(own, tensor.key or tensor.name))


def _fold_layers(ir: IR, layers: _Layers) -> None:
    """Fold the layers of a graph, and of the functions used by control flow."""
    for name in called_by(node for node in ir.nodes if not node.is_call):
        _fold_layers(ir.functions[name], layers)
    runs = list(_runs(ir, layers))
    for run in runs:
        read_past(run.nodes)
    fold_runs(ir, runs)


def _runs(ir: IR, layers: _Layers) -> Iterator[Run]:
    """Yield each layer call as one run; if other nodes interrupt it, its pieces are numbered."""
    bound = {symbol.tensor for symbol in ir.symbols.values()}  # a tensor that determines a size must stay in the graph
    sizes = Counter(map(layers.call_of, ir.nodes))
    pieces: Counter[Origin] = Counter()
    for (origin, stays), group in itertools.groupby(
        ir.nodes, lambda node: (layers.call_of(node), layers.shows(node) or not bound.isdisjoint(node.outputs))
    ):
        nodes = list(group)
        if origin is None or stays:
            continue
        op_type = layers.class_of(origin)
        if len(nodes) < sizes[origin]:
            op_type = f"{op_type}[{pieces[origin]}]"
            pieces[origin] += 1
        if len(nodes) > 1 or not nodes[0].is_call or nodes[0].op_type != op_type:
            name = identifier(origin.module or short(op_type))
            yield Run(nodes, name, op_type, origin._replace(source=nodes[-1].origin.source))


def read_past(nodes: Sequence[OpNode]) -> None:
    """Redirect outside readers of a cast to the same dtype to its input; else a layer would also return its input."""
    inside = set(nodes)
    for node in nodes:
        if not node.outputs or not is_passed_on(node.outputs[0]) or node.inputs[0].producer in inside:
            continue
        given, made = node.inputs[0], node.outputs[0]
        for reader in [reader for reader in made._uses if reader not in inside]:
            reader.inputs = tuple(given if tensor is made else tensor for tensor in reader.inputs)


def is_passed_on(tensor: TensorMeta) -> bool:
    """Whether a tensor is the result of a cast to the same dtype, which returns its input."""
    node = tensor.producer
    if node is None or node.op_type != "aten.to.dtype" or not node.inputs:
        return False
    is_copy = node.attrs.get("copy") or node.attrs.get("memory_format") is not None
    return not is_copy and node.inputs[0].dtype == tensor.dtype


def _fold_functions(ir: IR) -> None:
    """Fold each torch function call, in a graph and in the functions used by control flow."""
    for name in called_by(node for node in ir.nodes if not node.is_call):
        _fold_functions(ir.functions[name])
    bound = {symbol.tensor for symbol in ir.symbols.values()}
    runs = []
    for function, group in itertools.groupby(ir.nodes, lambda node: "" if node.is_call else node.origin.function):
        nodes = [node for node in group if bound.isdisjoint(node.outputs)]
        op_type = function.rpartition("@")[0]
        if op_type and nodes and not any(map(is_gap, nodes)):
            runs.append(Run(nodes, identifier(short(op_type)), op_type, nodes[-1].origin))
    fold_runs(ir, runs)


def is_gap(node: OpNode) -> bool:
    """Whether a node is a placeholder for code outside torch."""
    return node.op_type.startswith("opaque.")


class _Layers:
    """Maps each node to its layer call."""

    def __init__(self, ir: IR, leaf: Collection[str | type], only_leaf: bool = False) -> None:
        self._modules = ir.modules
        self._only_leaf = only_leaf
        self._leaf = _names(leaf)
        self._containers = {path for node in _nodes(ir) for path in modules_around(node.origin.module)[:-1]}
        self._paths: dict[tuple[str, str], str | None] = {}

    def call_of(self, node: OpNode) -> Origin | None:
        """Return the layer call that a node belongs to, without a source line; None if it stays an operator."""
        key = (node.origin.module, node.origin.module_class)
        if key not in self._paths:
            self._paths[key] = self._path(node.origin)
        path = self._paths[key]
        if path is None:
            return None
        call = call_around(node.origin, path)
        return call._replace(source="", function="", module_class=short(self.class_of(call)))

    def shows(self, node: OpNode) -> bool:
        """Whether a node is a gap that must stay visible, as its layer was not requested as a leaf."""
        if not is_gap(node):
            return False
        origin = self.call_of(node)
        return origin is None or not self._is_leaf(self.class_of(origin))

    def class_of(self, origin: Origin) -> str:
        return public_name(self._modules.get(origin.module) or origin.module_class)

    def _path(self, origin: Origin) -> str | None:
        around = modules_around(origin.module)
        classes = [self._modules.get(path, "") for path in around[:-1]] + [self.class_of(origin)]
        whole = (path for path, name in zip(around, classes, strict=True) if self._is_leaf(name))
        is_inner = not self._only_leaf and origin.module and origin.module not in self._containers
        return next(whole, origin.module if is_inner and self.class_of(origin) else None)

    def _is_leaf(self, name: str) -> bool:
        return not self._leaf.isdisjoint((public_name(name), short(name)))


def _names(leaf: Collection[str | type]) -> set[str]:
    names = (item if isinstance(item, str) else f"{item.__module__}.{item.__qualname__}" for item in leaf)
    return set(map(public_name, names))


def _nodes(ir: IR) -> Iterator[OpNode]:
    """Yield the nodes of a graph and of the functions used by control flow."""
    yield from ir.nodes
    for name in called_by(node for node in ir.nodes if not node.is_call):
        yield from _nodes(ir.functions[name])


def short(name: str) -> str:
    """Return the last part of a dotted name: `Conv2d` of `torch.nn.Conv2d`."""
    return name.rpartition(".")[2]


def identifier(text: str) -> str:
    """Replace everything but letters, digits and underscores; never empty."""
    return re.sub(r"\W", "_", text) or "_"
