"""Keys of nodes for matching: of a node alone, and including everything that it reads or that reads it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta

Keys = Sequence[Hashable]  # of the nodes of a graph, in order


class NodeKeys:
    """The keys of the nodes of one graph; graphs that share `numbers` are comparable: equal keys have equal numbers."""

    def __init__(self, ir: IR, numbers: dict[Hashable, int]) -> None:
        self._ir = ir
        self._numbers = numbers
        self.plain = [self._number(_plain(node)) for node in ir.nodes]

    def by(self, sign: str) -> Keys:
        """Return the keys of this kind."""
        return _SIGNS[sign](self)

    @cached_property
    def own(self) -> list[int]:
        """Keys of each node alone, including the keys of its weights."""
        return self._with_weights(lambda weight: weight.param and weight.param.keys)

    @cached_property
    def alike(self) -> list[int]:
        """Keys of each node alone; weights are identified by shape and dtype."""
        return self._with_weights(facts)

    def with_fact(self, fact: Callable[[OpNode], Hashable]) -> Keys:
        return [(node.op_type, fact(node)) for node in self._ir.nodes]

    def placed(self) -> Keys:
        """Return the own key of each node, with the module call that it came from."""
        origins = (node.origin for node in self._ir.nodes)
        return [(key, origin.module, origin.call) for key, origin in zip(self.own, origins, strict=True)]

    def forward(self, own: Sequence[int]) -> Keys:
        """Return keys of what each node computes: its own key and the keys of all that it reads, from the inputs on."""
        made: dict[TensorMeta, Hashable] = {tensor: -1 - at for at, tensor in enumerate(self._ir.graph_inputs)}
        keys = []
        for key, node in zip(own, self._ir.nodes, strict=True):
            read = tuple([made.get(tensor) for tensor in node.inputs])  # weights are part of the node's own key
            keys.append(self._number(("forward", key, read)))
            made.update((tensor, (keys[-1], tensor.index)) for tensor in node.outputs)
        return keys

    def backward(self, own: Sequence[int]) -> Keys:
        """Return keys of how outputs are used: own key and the keys of all readers, from the outputs back."""
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
    "name": lambda keys: keys.with_fact(lambda node: node.origins),
    "module": lambda keys: keys.with_fact(lambda node: (node.origin.module, node.origin.call, node.origin.function)),
    "operator": lambda keys: keys.with_fact(lambda node: None),
}


def typed(value: Any) -> str:
    """Return a value as text that distinguishes 1, 1.0 and True; functions are compared by their content elsewhere."""
    if isinstance(value, FunctionRef):
        return "@"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(typed, value))}]"
    return repr(value)


def facts(tensor: TensorMeta) -> Hashable:
    return tensor.shape, tensor.dtype, tensor.stride, tensor.placement


def _plain(node: OpNode) -> Hashable:
    """Return a key of a node alone; call arguments are ignored, as functions name them freely."""
    attrs = tuple([(name, typed(node.attrs[name])) for name in sorted(node.attrs)])
    return node.op_type, () if node.is_call else node.args, attrs, tuple(map(facts, node.outputs))
