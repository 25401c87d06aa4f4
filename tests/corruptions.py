"""Ways to break one node of a graph, for tests that must find it."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_ir import IR, OpNode

# operators of one tensor that stand in for each other, so that a node calls the wrong one
_UNARY = ("aten.neg.default", "aten.cos.default", "aten.bitwise_not.default", "aten.logical_not.default")

_CRASHES = frozenset(("num_layers", "has_biases", "bidirectional"))  # torch's recurrent kernels do not check these


class Corruption(NamedTuple):
    """A broken copy of a graph, the node that was broken, and how."""

    ir: IR
    node: str
    how: str


def corruptions(ir: IR, seed: int) -> Iterator[Corruption]:
    """Copies of a graph, each with one thing wrong: an attribute, the order of inputs, an input, or the operator.

    They come in random order, and a copy is made when it is asked for.
    """
    changes = [(node.name, how, change) for node in ir.nodes for how, change in _changes(ir, node)]
    random.Random(seed).shuffle(changes)
    for name, how, change in changes:
        broken = ir.clone()
        change(broken, broken.node(name))
        yield Corruption(broken, name, how)


def _changes(ir: IR, node: OpNode) -> Iterator[tuple[str, Any]]:
    for name, value in node.attrs.items():
        for other in _others(value) if name not in _CRASHES else ():
            yield f"{name}={value} -> {other}", lambda ir, node, n=name, o=other: node.attrs.update({n: o})
    alike = [i for i, tensor in enumerate(node.inputs) if _kind(tensor) == _kind(node.inputs[0])]
    if len(alike) > 1 and len(set(node.inputs)) > 1:
        yield "inputs swapped", lambda ir, node: _swap(node, alike[0], alike[-1])
    for index, tensor in enumerate(node.inputs):
        earlier = [t.name for t in _before(ir, node) if t not in node.inputs and _kind(t) == _kind(tensor)]
        if earlier:
            yield (
                f"{node.args[index]} = {earlier[-1]}",
                lambda ir, node, i=index, e=earlier[-1]: _rewire(ir, node, i, e),
            )
    if node.args == ("self",) and len(node.outputs) == 1 and not node.attrs:
        for op_type in _UNARY:
            if op_type != node.op_type:
                yield op_type, lambda ir, node, o=op_type: setattr(node, "op_type", o)


def _others(value: Any) -> list[Any]:
    """Values of the same type that mean something else."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [value * 1.5 + 0.25]
    if type(value) is list and value and all(type(item) is int for item in value):
        return [[item + 1 for item in value], value[::-1]] if len(set(value)) > 1 else [[item + 1 for item in value]]
    return []


def _kind(tensor: Any) -> Any:
    return tensor.shape, tensor.dtype


def _before(ir: IR, node: OpNode) -> list[Any]:
    return [*ir.graph_inputs, *ir.params, *(t for n in ir.nodes[: ir.nodes.index(node)] for t in n.outputs)]


def _swap(node: OpNode, one: int, other: int) -> None:
    inputs = list(node.inputs)
    inputs[one], inputs[other] = inputs[other], inputs[one]
    node.inputs = inputs


def _rewire(ir: IR, node: OpNode, index: int, name: str) -> None:
    tensor = next(tensor for tensor in ir.tensors() if tensor.name == name)
    node.inputs = [tensor if i == index else old for i, old in enumerate(node.inputs)]
