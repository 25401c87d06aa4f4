"""Functionalise a graph without decomposing operators.

A read of memory after a write reads a new value: the written tensor itself, a new view of it, or the tensor that it
was a view of with the new part inserted.

    before   part = aten.slice.Tensor(self=whole, end=2);  aten.copy_.default(self=part, src=x);  whole is read
    after    whole_1 = aten.slice_scatter.default(self=whole, src=x, end=2);                      whole_1 is read
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_ir.capture.program.may_copy import layout_of_writes
from torch_ir.errors import ConversionError
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ir.graph.node import copy_value
from torch_ir.ops.view_inverse import gives_all, put_back, repeats_elements

_COPY = "aten.copy.default"


class UnfollowedWriteError(ConversionError):
    """A write whose effect on other tensors of the same memory is unknown."""


@dataclass
class Writes:
    """Aliasing facts of a capture: the memory of each tensor, and the target of each call that writes."""

    memory: dict[TensorMeta, Hashable] = field(default_factory=dict)
    written: dict[OpNode, TensorMeta] = field(default_factory=dict)


@dataclass
class Functional:
    """Nodes without writes, the returned tensors, and the new values of inputs and weights."""

    nodes: list[OpNode]
    returned: list[TensorMeta]
    mutations: list[tuple[TensorMeta, TensorMeta]]
    layout: str = ""  # the line whose strides determine what a write changes


def without_writes(
    nodes: list[OpNode], given: Sequence[TensorMeta], returned: Sequence[TensorMeta], writes: Writes, taken: set[str]
) -> Functional:
    """Make each read of written memory read its current value; new names avoid those in `taken`.

    Writing calls are passed as their functional twins already: only their readers have to change.
    """
    if not writes.written:
        return Functional(nodes, list(returned), [])
    layout = layout_of_writes(nodes, given, returned, writes.memory, writes.written)
    functional = _Rewriting(given, writes, taken).done(nodes, returned)
    functional.layout = layout
    return functional


class _View(NamedTuple):
    """A tensor as a view of another: the node, the input index, and the other tensor."""

    node: OpNode
    place: int
    source: TensorMeta


class _Rewriting:
    """One pass over a graph: the current value of each tensor in written memory."""

    def __init__(self, given: Sequence[TensorMeta], writes: Writes, taken: set[str]) -> None:
        self.given = given
        self.memory = writes.memory
        self.written = writes.written
        self.names = FreeNames(taken)
        self.touched = {self._memory(tensor) for tensor in writes.written.values()}
        self.versions: dict[Hashable, int] = dict.fromkeys(self.touched, 0)
        self.now: dict[TensorMeta, tuple[int, TensorMeta]] = {}
        self.roots: dict[Hashable, TensorMeta] = {}
        self.views_of: dict[TensorMeta, _View] = {}
        self.aliases: dict[TensorMeta, TensorMeta] = {}  # result of a writing call -> its target
        self.nodes: list[OpNode] = []
        self.views: list[OpNode] = []
        for tensor in given:
            self._begin(tensor)

    def done(self, nodes: list[OpNode], returned: Sequence[TensorMeta]) -> Functional:
        for node in nodes:
            target = self.written.get(node)
            if target is None:
                self._read(node)
            else:
                self._write(node, target)
        results = [self._current(tensor, nodes[-1]) for tensor in returned]
        mutations = [(tensor, self.now[tensor][1]) for tensor in self.given if self._is_touched(tensor)]
        self._drop_unread({*results, *(value for _, value in mutations)})
        return Functional(self.nodes, results, [(target, value) for target, value in mutations if value is not target])

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self, node: OpNode) -> None:
        before = [self.aliases.get(tensor, tensor) for tensor in node.inputs]
        node.inputs = tuple([self._current(tensor, node) for tensor in before])
        self.nodes.append(node)
        for output in node.outputs:
            if self._is_touched(output):
                self._add_view(node, before, output)

    def _add_view(self, node: OpNode, inputs: Sequence[TensorMeta], output: TensorMeta) -> None:
        """Add a tensor in memory that is written to: a new root, or a view of a known one."""
        memory = self._memory(output)
        places = [place for place, tensor in enumerate(inputs) if self._memory(tensor) == memory]
        if not places:
            self._begin(output)
            return
        if len(places) > 1:
            raise UnfollowedWriteError(f"{node!r} returns memory that several of its inputs share")
        self.views_of[output] = _View(node, places[0], inputs[places[0]])
        self.now[output] = (self.versions[memory], output)
        self.views.append(node)

    def _begin(self, tensor: TensorMeta) -> None:
        memory = self._memory(tensor)
        if memory not in self.touched:
            return
        if memory in self.roots:
            raise UnfollowedWriteError(f"{tensor.name!r} and {self.roots[memory].name!r} share memory")
        self.roots[memory] = tensor
        self.now[tensor] = (0, tensor)

    def _current(self, tensor: TensorMeta, reader: OpNode) -> TensorMeta:
        """Return the current value of a tensor: itself, or a new view."""
        tensor = self.aliases.get(tensor, tensor)
        if not self._is_touched(tensor):
            return tensor
        version, found = self.now[tensor]
        if version == self.versions[self._memory(tensor)]:
            return found
        view = self.views_of[tensor]
        source = self._current(view.source, reader)
        name = self.names.free(view.node.name)
        several = len(view.node.outputs) > 1
        outputs = {
            old: old.copy(self.names.free(f"{name}_{old.index}") if several else name) for old in view.node.outputs
        }
        inputs = list(view.node.inputs)
        inputs[view.place] = source
        attrs = {key: copy_value(value) for key, value in view.node.attrs.items()}
        op_type, args = view.node.op_type, view.node.args
        self._add(OpNode(name, op_type, inputs, outputs.values(), attrs, args=args, origin=reader.origin))
        for old, new in outputs.items():
            self.now[old] = (self.versions[self._memory(old)], new)
        return outputs[tensor]

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(self, node: OpNode, target: TensorMeta) -> None:
        """Make the result of a call the value of its target; through views, insert it into each base in turn."""
        target = self.aliases.get(target, target)
        memory, result = self._memory(target), node.output
        chain = list(self._chain(target))
        for tensor in (target, *(view.source for view in chain)):
            if tensor.stride is not None and repeats_elements(tensor.shape, tensor.stride):
                raise UnfollowedWriteError(f"{node!r} writes to {tensor.name!r}, whose elements share memory")
        before = {view.source: self._current(view.source, node) for view in chain}
        node.inputs = tuple([self._current(tensor, node) for tensor in node.inputs])
        value = self._value(node, target)
        if value is result:
            self.nodes.append(node)
        else:
            node.inputs = ()
        self.aliases[result] = target
        self.versions[memory] += 1
        part = target
        for view in chain:
            self._hold(part, value)
            value = self._put_back(view, part, before[view.source], value, node)
            part = view.source
        if not _is_like(value, part):
            raise UnfollowedWriteError(f"{node!r} returns another dtype or layout than that of its target")
        self._hold(part, value)

    def _value(self, node: OpNode, target: TensorMeta) -> TensorMeta:
        """Return the new value of a target; for a `copy_` without conversion, its source."""
        source = node["src"] if node.op_type == _COPY else None
        if source is not None and (source.shape, source.dtype) == (target.shape, target.dtype):
            return source if target in self.views_of or _is_like(source, target) else node.output
        return node.output

    def _chain(self, tensor: TensorMeta) -> Iterator[_View]:
        """Yield the views by which a tensor was made, the last one first."""
        while tensor in self.views_of:
            yield self.views_of[tensor]
            tensor = self.views_of[tensor].source

    def _hold(self, tensor: TensorMeta, value: TensorMeta) -> None:
        """Set the current value of a tensor; if its layout differs, a new view is made when needed."""
        if _is_like(value, tensor):
            self.now[tensor] = (self.versions[self._memory(tensor)], value)

    def _put_back(
        self, view: _View, part: TensorMeta, whole: TensorMeta, value: TensorMeta, writer: OpNode
    ) -> TensorMeta:
        if (value.shape, value.dtype) != (part.shape, part.dtype):
            raise UnfollowedWriteError(f"{writer!r} returns another dtype than that of its target")
        if gives_all(view.node):
            return value
        found = put_back(view.node, part.index, whole)
        if found is None or not (found.takes_whole or _is_like(value, part)):
            raise UnfollowedWriteError(f"{writer!r} writes to the result of {view.node!r}")
        name = self.names.free(found.op_type.split(".")[1])
        made = view.source.copy(name)
        made.param = None
        inputs = {"self": whole, "src": value} if found.takes_whole else {"self": value}
        attrs = {key: copy_value(item) for key, item in found.attrs.items()}
        self._add(OpNode(name, found.op_type, inputs.values(), [made], attrs, args=inputs, origin=writer.origin))
        return made

    def _add(self, node: OpNode) -> None:
        self.nodes.append(node)
        self.views.append(node)

    def _drop_unread(self, kept: set[TensorMeta]) -> None:
        """Remove views that were only written to, and inserted parts that are not read."""
        dropped = set()
        for node in sorted(set(self.views), key={node: at for at, node in enumerate(self.nodes)}.__getitem__)[::-1]:
            if not any(output.consumers or output in kept for output in node.outputs):
                node.inputs = ()
                dropped.add(node)
        self.nodes = [node for node in self.nodes if node not in dropped]

    def _memory(self, tensor: TensorMeta) -> Hashable:
        return self.memory.get(tensor, tensor)

    def _is_touched(self, tensor: TensorMeta) -> bool:
        return self._memory(tensor) in self.touched


def _is_like(one: TensorMeta, other: TensorMeta) -> bool:
    return (one.shape, one.dtype, one.stride) == (other.shape, other.dtype, other.stride)
