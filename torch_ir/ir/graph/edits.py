"""Edits of a graph's nodes: each is applied completely, or refused with an error that leaves the graph unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Union

from torch_ir.errors import GraphError, suggestion
from torch_ir.ir.graph.name_grammar import is_name
from torch_ir.ir.graph.node import OpNode
from torch_ir.ir.graph.tensor import TensorMeta

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

Nodes = Union[OpNode, Iterable[OpNode]]
_LONGEST = 1000  # characters; the default of Limits.name_length


def erase(ir: IR, nodes: Nodes) -> None:
    """Remove nodes whose outputs no other node reads, and drop their uses."""
    chosen = _listed(nodes)
    gone = set(chosen)
    for node in gone.difference(ir.nodes):
        raise GraphError(f"{node!r:.200} is not in the graph", rule="R8", node=node.name)
    bound = {symbol.tensor: name for name, symbol in ir.symbols.items()}
    for node in chosen:
        for tensor in node.outputs:
            reader = next((one for one in tensor._uses if one not in gone), None)
            if reader is not None:
                who = "the graph returns it" if reader is ir.returns else f"{reader!r:.200} reads it"
                hint = "give its readers another tensor first: tensor.replace_all_uses_with(other)"
                raise GraphError(f"cannot erase {tensor.name!r:.80}: {who}", rule="R8", node=node.name, hint=hint)
            if tensor in bound:
                message = f"cannot erase {tensor.name!r:.80}: the size {bound[tensor]!r:.80} is read from it"
                raise GraphError(message, rule="R8", node=node.name)
    for node in gone:
        node.inputs = ()
    ir.nodes[:] = [node for node in ir.nodes if node not in gone]


def insert(ir: IR, anchor: OpNode, nodes: Nodes, *, after: bool) -> None:
    """Insert new nodes before or after a node of the graph."""
    added = _listed(nodes)
    if anchor not in ir.nodes:
        raise GraphError(f"{anchor!r:.200} is not in the graph", rule="R8", node=anchor.name)
    place = ir.nodes.index(anchor) + after
    _check_names(ir, added)
    made = {tensor.name: tensor for tensor in (*ir.graph_inputs, *ir.params)}
    made.update((tensor.name, tensor) for node in ir.nodes[:place] for tensor in node.outputs)
    later = {tensor for node in ir.nodes[place:] for tensor in node.outputs}
    for node in added:
        _check_reads(node, made, later)
        made.update((tensor.name, tensor) for tensor in node.outputs)
    ir.nodes[place:place] = added


def _listed(nodes: Nodes) -> list[OpNode]:
    found = [nodes] if isinstance(nodes, OpNode) else list(nodes)
    for node in found:
        if not isinstance(node, OpNode):
            raise GraphError(f"expected an OpNode, found {node!r:.80}")
    return found


def _check_names(ir: IR, added: Sequence[OpNode]) -> None:
    """Check that new nodes are not in the graph yet, and that they and their outputs have free, valid names."""
    nodes = {node.name for node in ir.nodes}
    tensors = {tensor.name for tensor in ir.tensors()}
    present = set(ir.nodes)
    for node in added:
        if node in present:
            raise GraphError(f"{node!r:.200} is in the graph already", rule="R8", node=node.name)
        present.add(node)
        _check_name("node", node.name, nodes, node)
        nodes.add(node.name)
        for index, tensor in enumerate(node.outputs):
            _check_output(node, index, tensor, tensors)
            tensors.add(tensor.name)


def _check_output(node: OpNode, index: int, tensor: TensorMeta, taken: set[str]) -> None:
    if tensor.producer is not node or tensor.index != index:
        message = f"{tensor!r:.200} is the output of {tensor.producer!r:.200}, not output {index} of {node!r:.200}"
        raise GraphError(message, rule="R7", node=node.name)
    _check_name("tensor", tensor.name, taken, node)


def _check_name(kind: str, name: str, taken: set[str], node: OpNode) -> None:
    if name in taken:
        raise GraphError(f"two {kind}s would be called {name!r:.80}", rule="R8", node=node.name)
    if not is_name(name, _LONGEST):
        raise GraphError(f"invalid {kind} name {name!r:.80}", rule="R6", node=node.name)


def _check_reads(node: OpNode, made: dict[str, TensorMeta], later: set[TensorMeta]) -> None:
    for tensor in node.inputs:
        if made.get(tensor.name) is tensor:
            continue
        message = f"{node!r:.200} reads {tensor.name!r:.80}, "
        if tensor in later:
            raise GraphError(f"{message}which is made after it", rule="R8", node=node.name)
        if tensor.name in made:
            raise GraphError(f"{message}but another tensor of that name is in the graph", rule="R8", node=node.name)
        hint = suggestion(tensor.name, made)
        raise GraphError(f"{message}which is not in the graph", rule="R8", node=node.name, hint=hint)
