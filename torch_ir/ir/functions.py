"""Functions: several nodes as one call of a named body, and back.

A node that has the attribute `function` and whose op_type is no operator of its own computes what that body computes;
its arguments are named after the body's inputs. Repeated blocks and fused operators are such nodes.

    y: float32[2, 4] = call(x=a, function=@block)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch_ir.errors import GraphError
from torch_ir.ir.graph import IR
from torch_ir.ir.node import OpNode
from torch_ir.ir.tensor import TensorMeta
from torch_ir.ir.values import FunctionRef

CALL = "call"


def outline(ir: IR, nodes: Iterable[OpNode], name: str, op_type: str = CALL) -> OpNode:
    """Move nodes into a new function of the graph and put one call in their place.

    before   a = aten.neg.default(self=x);  b = aten.relu.default(self=a)
    after    b = call(x=x, function=@block)     with     function block(x) { ...the same two nodes... }
    """
    if name in ir.functions:
        raise GraphError(f"the graph already has a function {name!r}")
    chosen = set(nodes)
    inside = [node for node in ir.nodes if node in chosen]
    before, after = _around(ir, inside, chosen)
    made = _made_by(inside)
    reads = dict.fromkeys(tensor for node in inside for tensor in node.inputs if tensor not in made)
    gives = [tensor for tensor in made if any(reader not in chosen for reader in tensor._uses)]
    taken = {tensor.name for tensor in made}
    copies = {tensor: tensor.copy() for tensor in made}
    copies.update((tensor, tensor.copy(_fresh(tensor.name.replace(".", "_"), taken))) for tensor in reads)
    body = [node.copy(copies.__getitem__) for node in inside]
    used: dict[str, IR] = {ref: ir.functions[ref].clone() for ref in _called_by(inside)}
    ir.functions[name] = IR(
        body, [copies[tensor] for tensor in reads], [copies[tensor] for tensor in gives], functions=used
    )
    for node in inside:
        node.inputs = ()
    call = OpNode(
        inside[-1].name,
        op_type,
        reads,
        gives,
        {"function": FunctionRef(name)},
        args=[copies[tensor].name for tensor in reads],
        origin=inside[-1].origin,
        origins=dict.fromkeys(origin for node in inside for origin in node.origins),
    )
    ir.nodes = [*before, call, *after]
    _drop_unused(ir, used)
    return call


def inline(ir: IR, call: OpNode) -> list[OpNode]:
    """Put the nodes of a called body in the place of the call; the function goes when nobody else calls it."""
    name = call.attrs.get("function")
    if not isinstance(name, FunctionRef) or name not in ir.functions:
        raise GraphError(f"{call!r} calls no function of the graph")
    body = ir.functions[name]
    if body.symbols or body.params:
        raise GraphError(f"function {str(name)!r} has symbols or weights of its own and cannot be put inline")
    given = dict(zip(call.args, call.inputs, strict=True))
    copies = {tensor: given[tensor.name] for tensor in body.graph_inputs}
    tensors = {tensor.name for tensor in ir.tensors()} - {tensor.name for tensor in call.outputs}
    names = {node.name for node in ir.nodes if node is not call}
    taken = set(ir.functions)
    functions = {ref: FunctionRef(_fresh(ref, taken)) for ref in body.functions}
    added = []
    for node in body.nodes:
        copies.update((tensor, tensor.copy(_fresh(tensor.name, tensors))) for tensor in node.outputs)
        added.append(node.copy(copies.__getitem__, _fresh(node.name, names)))
        renamed = {key: functions[ref] for key, ref in node.attrs.items() if isinstance(ref, FunctionRef)}
        added[-1].attrs.update(renamed)
    for inner, outer in zip(body.graph_outputs, call.outputs, strict=True):
        outer.replace_all_uses_with(copies[inner])
    call.inputs = ()
    position = ir.nodes.index(call)
    ir.nodes[position : position + 1] = added
    ir.functions.update((functions[ref], nested.clone()) for ref, nested in body.functions.items())
    _drop_unused(ir, [name])
    return added


def inline_all(ir: IR) -> int:
    """Put every call of a body inline until none is left; return how many there were."""
    count = 0
    while calls := [node for node in ir.nodes if node.is_call]:
        for call in calls:
            inline(ir, call)
        count += len(calls)
    return count


def _around(ir: IR, inside: Sequence[OpNode], chosen: set[OpNode]) -> tuple[list[OpNode], list[OpNode]]:
    """The nodes that stay before the call and those that come after it, which are those that read its results."""
    if not inside or len(inside) != len(chosen):
        raise GraphError("the nodes to outline are none, or not all of this graph")
    made = _made_by(inside)
    for symbol in ir.symbols.values():
        if symbol.tensor in made:
            raise GraphError(f"{symbol.tensor!r} gives the size {symbol.name!r} to the graph and cannot be outlined")
    first, last = ir.nodes.index(inside[0]), ir.nodes.index(inside[-1])
    before, after, later = ir.nodes[:first], list[OpNode](), set[TensorMeta]()
    for node in ir.nodes[first : last + 1]:
        if node in chosen:
            outer = next((tensor for tensor in node.inputs if tensor in later), None)
            if outer is not None:
                raise GraphError(f"{node!r} reads {outer!r}, which is made outside from what is made inside")
        elif any(tensor in later or tensor in made for tensor in node.inputs):
            after.append(node)
            later.update(node.outputs)
        else:
            before.append(node)
    return before, [*after, *ir.nodes[last + 1 :]]


def _made_by(nodes: Iterable[OpNode]) -> dict[TensorMeta, None]:
    return dict.fromkeys(tensor for node in nodes for tensor in node.outputs)


def _called_by(nodes: Iterable[OpNode]) -> dict[FunctionRef, None]:
    return dict.fromkeys(value for node in nodes for value in node.attrs.values() if isinstance(value, FunctionRef))


def _fresh(name: str, taken: set[str]) -> str:
    found, number = name, 1
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


def _drop_unused(ir: IR, names: Iterable[str]) -> None:
    called = _called_by(ir.nodes)
    for name in names:
        if name not in called:
            ir.functions.pop(name, None)
