"""Dependencies between tensors: nodes before, after and between them, and extraction of a subgraph.

Tensors are passed as objects of the graph, or by name; nodes are returned in program order. A call is one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any, Union

from torch_ir.errors import GraphError, did_you_mean
from torch_ir.ir import IR, Expr, OpNode, Symbol, TensorMeta
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.regroup.functions import called_by
from torch_ir.ir.sizes.expressions import names_in

Tensors = Iterable[Union[TensorMeta, str]]


def ancestors(ir: IR, tensors: Tensors, *, stop: Tensors = ()) -> list[OpNode]:
    """Return the nodes that these tensors depend on, searching back to the tensors of `stop`."""
    return needed_for(_found(ir, tensors), ir.nodes, set(_found(ir, stop)))


def needed_for(
    tensors: Iterable[TensorMeta], nodes: Sequence[OpNode], known: Set[TensorMeta] = frozenset()
) -> list[OpNode]:
    """Return those of some nodes, in program order, that tensors depend on; the known ones need none."""
    needed = set(tensors) - known
    found = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            found.append(node)
            needed.update(tensor for tensor in node.inputs if tensor not in known)
    return found[::-1]


def descendants(ir: IR, tensors: Tensors) -> list[OpNode]:
    """Return the nodes that depend on any of these tensors."""
    reached = set(_found(ir, tensors))
    nodes = []
    for node in ir.nodes:
        if not reached.isdisjoint(node.inputs):
            nodes.append(node)
            reached.update(node.outputs)
    return nodes


def slice_between(ir: IR, inputs: Tensors, outputs: Tensors) -> list[OpNode]:
    """Return the nodes on paths from any of these inputs to any of these outputs."""
    first = _found(ir, inputs)
    after = set(descendants(ir, first))
    return [node for node in ancestors(ir, outputs, stop=first) if node in after]


def subgraph(ir: IR, inputs: Tensors, outputs: Tensors) -> IR:
    """Extract the graph that computes these outputs from these inputs; it uses the weights of the whole model.

    Everything else that the outputs need is included: nodes over weights, functions, the weights themselves, and guards
    that precede the outputs, if the inputs determine them.
    Mutations of buffers and inputs are not, nor are extensions, which describe the whole graph.
    """
    require_graph(ir, "subgraph")
    first, last = _found(ir, inputs), _found(ir, outputs)
    guards = _guards(ir, first, last)
    needed = needed_for([*last, *(tensor for guard in guards for tensor in guard.inputs)], ir.nodes, set(first))
    nodes = sorted([*needed, *guards], key={node: at for at, node in enumerate(ir.nodes)}.__getitem__)
    read = {tensor for node in nodes for tensor in node.inputs}.union(last)
    lacking = next((tensor for tensor in ir.graph_inputs if tensor in read and tensor not in first), None)
    if lacking is not None:
        raise GraphError(f"the outputs also depend on {lacking.name!r}, which is not among the inputs")
    copies: dict[TensorMeta, TensorMeta] = {tensor: tensor.copy() for tensor in first}
    for tensor in copies.values():
        tensor.param = None

    def copied(tensor: TensorMeta) -> TensorMeta:
        return copies.setdefault(tensor, tensor.copy())

    functions = {name: ir.functions[name] for name in called_by(nodes) if name in ir.functions}
    named = sizes_of(nodes, [*first, *last, *read], functions.values())
    return ir.replaced(
        nodes=[node.copy(copied) for node in nodes],
        graph_inputs=map(copied, first),
        graph_outputs=map(copied, last),
        mutations=(),
        params=[copied(param) for param in ir.params if param in read and param not in first],
        functions={name: body.clone() for name, body in functions.items()},
        symbols=[_bound(symbol, first, copies) for symbol in ir.symbols.values() if symbol.name in named],
        constraints=[text for text in ir.constraints if names_in(text) <= named],
        input_tree=None,
        output_tree=...,
        extensions=None,
    ).check()


def _guards(ir: IR, first: Sequence[TensorMeta], last: Sequence[TensorMeta]) -> list[OpNode]:
    """Return the guards before the nodes of some outputs that depend on no other inputs than these."""
    end = max((at for at, node in enumerate(ir.nodes) if not set(last).isdisjoint(node.outputs)), default=0)
    guards = [node for node in ir.nodes[:end] if node.op_type.startswith("torch_ir.") and not node.outputs]
    before = [(guard, [guard, *needed_for(guard.inputs, ir.nodes, set(first))]) for guard in guards]
    others = set(ir.graph_inputs).difference(first)
    return [guard for guard, nodes in before if all(others.isdisjoint(node.inputs) for node in nodes)]


def names_of(value: Any) -> Iterator[str]:
    """Yield the symbols that an argument reads, also in nested lists and dicts."""
    for found in values_in(value):
        if isinstance(found, Expr):
            yield from names_in(found)


def _found(ir: IR, tensors: Tensors) -> list[TensorMeta]:
    """Look up tensors in the graph, each once."""
    by_name = {tensor.name: tensor for tensor in ir.tensors()}
    names = [tensor if isinstance(tensor, str) else tensor.name for tensor in tensors]
    for name in names:
        if name not in by_name:
            raise GraphError(f"unknown tensor {name!r}{did_you_mean(name, by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)]


def sizes_of(nodes: Iterable[OpNode], tensors: Iterable[TensorMeta], functions: Iterable[IR]) -> set[str]:
    """Return the symbols that a part of a graph reads."""
    bodies = list(functions)
    inner = [node for body in bodies for node in body.all_nodes()]
    every = [*tensors, *(tensor for body in bodies for tensor in body.tensors())]
    made = [tensor for node in nodes for tensor in node.outputs]
    shapes = {name for tensor in [*every, *made] for dim in tensor.shape for name in names_in(dim)}
    return shapes.union(name for node in [*nodes, *inner] for name in names_of(node.attrs))


def _bound(symbol: Symbol, inputs: Sequence[TensorMeta], copies: dict[TensorMeta, TensorMeta]) -> Symbol:
    """Bind a symbol of the whole graph in the part: to the same tensor, or to an input that has it as a size."""
    if symbol.tensor is None or symbol.tensor in copies:
        return replace(symbol, tensor=symbol.tensor and copies[symbol.tensor])
    for tensor in inputs:
        if symbol.name in tensor.shape:
            return replace(symbol, tensor=copies[tensor], dim=tensor.shape.index(symbol.name))
    raise GraphError(f"no input of the subgraph determines the size {symbol.name!r}; choose inputs that do")
