"""Writes whose effect depends on whether an operator copied: `reshape` returns a view or a copy, by layout.

    y = x.reshape(-1)
    y.add_(1)
    return x          # is x + 1 where x is contiguous, and x where it is not

A graph is specialised to the layout at capture, so it may run only on inputs of that layout. Some operators share
memory with their input although their schema does not declare it; writes to their results are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from torch_ir.capture.program.provenance import user_line
from torch_ir.errors import ConversionError
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ops.effects import may_alias, mutated_arguments
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_internals import FakeTensor, HigherOrderOperator, OpOverload, dense_memory_key

# Return a view if the layout of their input allows it, else a copy.
_BY_LAYOUT = frozenset(("aten.contiguous", "aten.flatten", "aten.ravel", "aten.reshape", "aten.reshape_as"))
_CASTS = frozenset(("aten.to",))  # likewise with a memory format
# May return their input's memory, which their schemas do not declare.
_UNTOLD = frozenset(
    f"aten.{name}"
    for name in (
        "broadcast_tensors", "einsum", "flatten_dense_tensors", "meshgrid", "sum_to_size", "unsafe_chunk",
        "unsafe_split", "unsafe_split_with_sizes",
    )
)  # fmt: skip
_SPLITTING = frozenset(f"aten.{name}" for name in ("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"))
_COMBINING = frozenset(("aten.einsum", "aten.flatten_dense_tensors"))  # of several tensors, they return a new one
_KEEPING = (None, torch.preserve_format, "preserve_format")


class _Copy(NamedTuple):
    """A result that is either a view of `source` or a copy, with its time and source line."""

    source: Hashable
    time: int
    line: str
    is_declared: bool  # whether the operator's schema declares it
    split: Hashable = None  # the call that made it, if the results of that call do not overlap


class Sharing:
    """Tensors that certainly or possibly share memory in a run, with writes and reads in order."""

    def __init__(self) -> None:
        self._surely: dict[Hashable, Hashable] = {}  # tensor -> the base that it is certainly a view of
        self._perhaps: dict[Hashable, Hashable] = {}  # tensor -> the base that it is a view of if nothing was copied
        self._copies: dict[Hashable, _Copy] = {}
        self._copied: set[Hashable] = set()  # bases of these
        self._writes: dict[Hashable, list[tuple[int, Hashable]]] = {}
        self._time = 0

    def view(self, made: Hashable, source: Hashable) -> None:
        self._surely[made], self._perhaps[made] = self._root(source), self._whole(source)

    def maybe_view(
        self, made: Hashable, source: Hashable, line: str, is_declared: bool, split: Hashable = None
    ) -> None:
        self._perhaps[made] = self._whole(source)
        self._copied.add(self._whole(source))
        self._copies[made] = _Copy(source, self._time, line, is_declared, split)

    def write(self, target: Hashable) -> None:
        self._time += 1
        self._writes.setdefault(self._whole(target), []).append((self._time, target))
        self._time += 1

    def is_written(self, tensor: Hashable) -> bool:
        """Whether the memory of a tensor may be written to."""
        return self._whole(tensor) in self._writes

    def unsure(self, read: Hashable) -> _Copy | None:
        """Return the copy or view that determines whether a read sees an earlier write; None if none does."""
        whole = self._whole(read)
        for time, target in self._writes.get(whole, ()) if whole in self._copied else ():
            if (found := self._between(read, target, time)) is not None:
                return found
        return None

    def _between(self, read: Hashable, written: Hashable, time: int) -> _Copy | None:
        """Return the possible copy between a tensor and a write to the same memory."""
        wanted, root = self._root(written), self._root(read)
        while root != wanted:
            copy = self._copies.get(root)
            if copy is not None and copy.split is not None and copy.split == self._split_of(wanted):
                return None
            if copy is None:
                return self._copies[wanted]
            if copy.time < time:
                return copy
            root = self._root(copy.source)
        return None

    def _split_of(self, tensor: Hashable) -> Hashable:
        return self._copies[tensor].split if tensor in self._copies else None

    def _root(self, tensor: Hashable) -> Hashable:
        return self._surely.get(tensor, tensor)

    def _whole(self, tensor: Hashable) -> Hashable:
        return self._perhaps.get(tensor, tensor)


def layout_of_writes(
    nodes: Iterable[OpNode],
    given: Sequence[TensorMeta],
    returned: Sequence[TensorMeta],
    memory: Mapping[TensorMeta, Hashable],
    written: Mapping[OpNode, TensorMeta],
) -> str:
    """Return the line whose strides determine what a write changes, if any; `written` are the targets of writes."""
    sharing, found = Sharing(), _Found()
    for node in nodes:
        for tensor in node.inputs:
            found.note(sharing.unsure(tensor))
        if node in written:
            sharing.write(written[node])
            sharing.view(node.output, written[node])
            continue
        kind = _kind(node.op_type.rpartition(".")[0], node.attrs, len(node.inputs))
        for index, output in enumerate(node.outputs):
            if kind:
                source = node.inputs[min(index, len(node.inputs) - 1)]
                split = node if node.op_type.rpartition(".")[0] in _SPLITTING else None
                line = node.origin.source or node.op_type
                sharing.maybe_view(output, source, line, kind is _BY_LAYOUT, split)
            elif shared := [tensor for tensor in node.inputs if memory.get(tensor) == memory.get(output, output)]:
                sharing.view(output, shared[0])
    for tensor in (*returned, *given):
        found.note(sharing.unsure(tensor))
    return found.line


def layout_of_fx_writes(graph: fx.Graph) -> str:
    """Return the same for a graph of torch.export that still has writes."""
    sharing, found = Sharing(), _Found()
    for node in graph.nodes:
        for read in node.all_input_nodes:
            found.note(sharing.unsure(read))
        if node.op == "call_function":
            _follow(node, sharing)
    for node in graph.nodes:
        if node.op == "placeholder":
            found.note(sharing.unsure(node))
    return found.line


def _follow(node: fx.Node, sharing: Sharing) -> None:
    target = node.target
    if target is operator.getitem:
        sharing.view(node, node.all_input_nodes[0])
    elif isinstance(target, HigherOrderOperator):
        for operand in _written_operands(node):
            sharing.write(operand)
    elif isinstance(target, OpOverload):
        bound = bind(target, node.args, node.kwargs)
        written = [bound.get(name) for name in mutated_arguments(target)]
        for each in _nodes(written):
            sharing.write(each)
            sharing.view(node, each)
        kind = _kind(str(target).rpartition(".")[0], bound, len(node.all_input_nodes))
        if kind:
            line = user_line(node.meta.get("stack_trace") or "") or str(target)
            sharing.maybe_view(node, node.all_input_nodes[0], line, kind is _BY_LAYOUT)
        elif may_alias(target) and not written:
            shared = [each for each in node.all_input_nodes if _storage(each) == _storage(node) is not None]
            if shared:
                sharing.view(node, shared[0])


def _written_operands(call: fx.Node) -> Iterator[fx.Node]:
    """Yield the operands that a region writes to, directly or through a possible view."""
    for body in (_body(argument) for argument in call.all_input_nodes):
        if body is None:
            continue
        places = [node for node in body.graph.nodes if node.op == "placeholder"]
        operands = [argument for argument in call.all_input_nodes if _body(argument) is None]
        sharing = Sharing()
        for node in body.graph.nodes:
            if node.op == "call_function":
                _follow(node, sharing)
        yield from (operand for operand, place in zip(operands, places, strict=False) if sharing.is_written(place))


def _body(argument: fx.Node) -> fx.GraphModule | None:
    owner = argument.graph.owning_module
    found = getattr(owner, str(argument.target), None) if argument.op == "get_attr" else None
    return found if isinstance(found, fx.GraphModule) else None


def _kind(name: str, attrs: Mapping[str, Any], tensors: int) -> frozenset[str] | None:
    """Return how an operator may return its input's memory or a copy; None if it always does one of them."""
    if name in _UNTOLD:
        return None if name in _COMBINING and tensors > 1 else _UNTOLD
    asks = name in _CASTS and attrs.get("memory_format") not in _KEEPING and not attrs.get("copy")
    return _BY_LAYOUT if asks or name in _BY_LAYOUT else None


def _nodes(values: Iterable[Any]) -> Iterator[fx.Node]:
    for value in values:
        if isinstance(value, fx.Node):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _nodes(value)


def _storage(node: fx.Node) -> int | None:
    found: Any = node.meta.get("val")
    value: Any = found[0] if isinstance(found, (list, tuple)) and found else found
    return dense_memory_key(value) if isinstance(value, FakeTensor) else None  # wrappers of transforms have no memory


class _Found:
    """The first relevant line; a write that cannot be followed raises at once."""

    def __init__(self) -> None:
        self.line = ""

    def note(self, copy: _Copy | None) -> None:
        if copy is None:
            return
        if not copy.is_declared:
            raise ConversionError(
                f"{copy.line}: forward writes to a result that may share memory with its input, which the schema of "
                "the operator does not declare; clone it first"
            )
        self.line = self.line or copy.line
