"""Keys of nodes for comparing graphs: what a node is by itself, and by all that it reads or all that reads it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta

Keys = Sequence[Hashable]  # of the nodes of a graph, in order


class NodeKeys:
    """The keys of the nodes of one graph; graphs that share `numbers` can be compared: equal keys have one number."""

    def __init__(self, ir: IR, numbers: dict[Hashable, int]) -> None:
        self._ir = ir
        self._numbers = numbers
        self.plain = [self._number(_plain(node)) for node in ir.nodes]

    def by(self, sign: str) -> Keys:
        """The keys that tell nodes by a sign."""
        return _SIGNS[sign](self)

    @cached_property
    def own(self) -> list[int]:
        """What each node is without the graph around it, with the keys of its weights."""
        return self._with_weights(lambda weight: weight.param and weight.param.keys)

    @cached_property
    def alike(self) -> list[int]:
        """What each node is without the graph around it; of its weights only what they are like."""
        return self._with_weights(facts)

    def told(self, ask: Callable[[OpNode], Hashable]) -> Keys:
        return [(node.op_type, ask(node)) for node in self._ir.nodes]

    def placed(self) -> Keys:
        """The own key of each node, with the call of the module that it came from."""
        origins = (node.origin for node in self._ir.nodes)
        return [(key, origin.module, origin.call) for key, origin in zip(self.own, origins, strict=True)]

    def forward(self, own: Sequence[int]) -> Keys:
        """What each node computes: its own key, and the keys of all that it reads, from the inputs on."""
        made: dict[TensorMeta, Hashable] = {tensor: -1 - at for at, tensor in enumerate(self._ir.graph_inputs)}
        keys = []
        for key, node in zip(own, self._ir.nodes, strict=True):
            read = tuple([made.get(tensor) for tensor in node.inputs])  # of a weight the node's own key tells
            keys.append(self._number(("forward", key, read)))
            made.update((tensor, (keys[-1], tensor.index)) for tensor in node.outputs)
        return keys

    def backward(self, own: Sequence[int]) -> Keys:
        """What becomes of what each node makes: its own key, and the keys of all readers, from the outputs back."""
        uses: dict[TensorMeta, list[tuple[int, int]]] = {}
        for place, tensor in enumerate(self._ir.returns.inputs):
            uses.setdefault(tensor, []).append((-1, place))
        keys = []
        for key, node in zip(reversed(own), reversed(self._ir.nodes), strict=True):
            read_by = tuple([tuple(sorted(uses.get(tensor, ()))) for tensor in node.outputs])
            keys.append(self._number(("backward", key, read_by)))
            for place, tensor in enumerate(node.inputs):
                uses.setdefault(tensor, []).append((keys[-1], place))
        return keys[::-1]

    def _with_weights(self, ask: Callable[[TensorMeta], Hashable]) -> list[int]:
        weights = (tuple([t.param and ask(t) for t in node.inputs]) for node in self._ir.nodes)
        return [self._number(key) for key in zip(self.plain, weights, strict=True)]

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


_SIGNS: dict[str, Callable[[NodeKeys], Keys]] = {
    "forward": lambda keys: keys.forward(keys.own),
    "backward": lambda keys: keys.backward(keys.own),
    "alike forward": lambda keys: keys.forward(keys.alike),
    "alike backward": lambda keys: keys.backward(keys.alike),
    "own": lambda keys: keys.own,
    "own at its place": lambda keys: keys.placed(),
    "alike": lambda keys: keys.alike,
    "name": lambda keys: keys.told(lambda node: node.origins),
    "module": lambda keys: keys.told(lambda node: (node.origin.module, node.origin.call, node.origin.function)),
    "operator": lambda keys: keys.told(lambda node: None),
}


def typed(value: Any) -> str:
    """A value as text that tells 1 from 1.0 and from True; functions are compared by what they compute."""
    if isinstance(value, FunctionRef):
        return "@"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(typed, value))}]"
    return repr(value)


def facts(tensor: TensorMeta) -> Hashable:
    return tensor.shape, tensor.dtype, tensor.stride, tensor.placement


def _plain(node: OpNode) -> Hashable:
    """A node without the graph around it; functions name their arguments as they like."""
    attrs = tuple([(name, typed(node.attrs[name])) for name in sorted(node.attrs)])
    return node.op_type, () if node.is_call else node.args, attrs, tuple(map(facts, node.outputs))
