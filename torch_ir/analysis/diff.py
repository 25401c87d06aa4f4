"""Diff: whether two graphs are the same but for the names of nodes and tensors, and in what they differ.

    found = diff(one, other)
    found.is_equal       # the same operators, arguments, order, weights, wiring and signature
    print(found)         # node 17, aten.sum.dim_IntList: dim [1] / [2]

Functions are compared with functions, each pair once, and calls with calls; nothing is put inline unless only one side
has calls, or the sides call differently often.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch_ir.analysis.alignment import Pair, aligned
from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta
from torch_ir.ir.text import print_node, print_value

_LONGEST = 160  # characters of a node in a line


@dataclass(frozen=True)
class Diff:
    """What two graphs differ in, a line each; none where they are equal."""

    differences: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        return "\n".join(self.differences) or "the graphs are equal"


def diff(one: IR, other: IR, *, ignore_origins: bool = True) -> Diff:
    """In what two graphs differ, names of nodes, tensors, functions and models apart.

    Values have types here: 1, 1.0 and True differ. Weights are told by their keys, and are equal if their kinds and
    values are too. Symbolic sizes are told by their names. Without `ignore_origins`, nodes must also have come from the
    same calls of modules and lines of code.
    """
    if _calls(one) != _calls(other):
        one, other = one.at_level("aten"), other.at_level("aten")
    return Diff(tuple(_Comparison(ignore_origins).graphs(one, other)))


def _calls(ir: IR) -> int:
    return sum(node.is_call for node in ir.nodes)


class _Comparison:
    """One comparison; a pair of functions that many nodes name is compared once."""

    def __init__(self, ignore_origins: bool) -> None:
        self._ignore_origins = ignore_origins

    def graphs(self, one: IR, other: IR) -> Iterator[str]:
        yield from _signatures(one, other, with_modules=not self._ignore_origins)
        yield from _weights(one, other)
        pairs = _paired(one, other)
        yield from self._functions(one, other, pairs)
        counterparts = _Counterparts(one, other, pairs)
        left = right = 0
        for stop_left, stop_right in pairs:
            yield from _alone(one, left, stop_left, "first")
            yield from _alone(other, right, stop_right, "second")
            place = f"node {stop_left}" if stop_left == stop_right else f"node {stop_left} / {stop_right}"
            mine, its = one.nodes[stop_left], other.nodes[stop_right]
            reads = _reads(_arguments(one, mine), _arguments(other, its), counterparts)
            yield from (f"{place}, {mine.op_type}: {text}" for text in (*reads, *self._nodes(mine, its)))
            left, right = stop_left + 1, stop_right + 1
        yield from _alone(one, left, len(one.nodes), "first")
        yield from _alone(other, right, len(other.nodes), "second")
        yield from _returns(one, other, counterparts)
        yield from _sizes(one, other, counterparts)

    def _functions(self, one: IR, other: IR, pairs: Iterable[Pair]) -> Iterator[str]:
        """The bodies that nodes of both sides name, and the functions that no node names, by name."""
        if not one.functions and not other.functions:
            return
        nodes = ((one.nodes[left], other.nodes[right]) for left, right in pairs)
        both = dict.fromkeys(
            (mine[1], its[1])
            for left, right in nodes
            for mine, its in zip(_references(left), _references(right), strict=False)
            if mine[0] == its[0]  # else the attributes differ, which is told there
        )
        free = _entry_points(one), _entry_points(other)
        for name in sorted(free[0] ^ free[1]):
            yield f"function {name!r} only in the {'first' if name in free[0] else 'second'}"
        for mine, its in [*both, *((name, name) for name in sorted(free[0] & free[1]))]:
            title = f"function {str(mine)!r}" if mine == its else f"function {str(mine)!r} / {str(its)!r}"
            yield from (f"{title}: {text}" for text in self.graphs(one.functions[mine], other.functions[its]))

    def _nodes(self, one: OpNode, other: OpNode) -> Iterator[str]:
        """What two nodes of the same operator differ in, besides what they read."""
        yield from _tables(one.attrs, other.attrs)
        if [*map(_facts, one.outputs)] != [*map(_facts, other.outputs)]:
            yield f"gives {', '.join(map(_described, one.outputs))} / {', '.join(map(_described, other.outputs))}"
        if not self._ignore_origins and one.origin != other.origin:
            fields = zip(one.origin._fields, one.origin, other.origin, strict=True)
            yield f"comes from another {', '.join(f'{n} {x!r} / {y!r}' for n, x, y in fields if x != y)}"


def _paired(one: IR, other: IR) -> list[Pair]:
    """The nodes that belong together: all in turn, if the operators are the same in turn; else those that are alike."""
    if [node.op_type for node in one.nodes] == [node.op_type for node in other.nodes]:
        return [(at, at) for at in range(len(one.nodes))]
    pairs = aligned([*map(_key, one.nodes)], [*map(_key, other.nodes)])
    return sorted([*pairs, *_changed(one, other, pairs)])


def _key(node: OpNode) -> Hashable:
    """A node as far as it can be told without the graph around it."""
    attrs = tuple((name, _typed(value)) for name, value in node.attrs.items())
    weights = tuple(tensor.param and tensor.param.keys for tensor in node.inputs)
    args = () if node.is_call else node.args
    return node.op_type, args, attrs, weights, tuple(map(_facts, node.outputs))


def _arguments(ir: IR, node: OpNode) -> dict[str, TensorMeta]:
    """What a node reads, by argument; the arguments of a call are numbered, as functions name theirs as they like."""
    given = dict(zip(node.args, node.inputs, strict=True))
    body = ir.functions.get(node.attrs["function"]) if node.is_call else None
    if body is None:
        return given
    return {f"argument {at}": given[t.name] for at, t in enumerate(body.graph_inputs) if t.name in given}


def _reads(mine: dict[str, TensorMeta], its: dict[str, TensorMeta], counterparts: _Counterparts) -> Iterator[str]:
    for name in {**mine, **its}:
        left, right = mine.get(name), its.get(name)
        if left is None or right is None:
            yield f"{name} only in the {'second' if left is None else 'first'}"
        elif not counterparts.are(left, right):
            yield f"{name} is {left.name!r} / {right.name!r}"


def _changed(one: IR, other: IR, pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Nodes between those that are alike which have at least the operator in common."""
    left = right = 0
    for stop_left, stop_right in [*pairs, (len(one.nodes), len(other.nodes))]:
        sides = one.nodes[left:stop_left], other.nodes[right:stop_right]
        for more, again in aligned(*([node.op_type for node in side] for side in sides)):
            yield left + more, right + again
        left, right = stop_left + 1, stop_right + 1


class _Counterparts:
    """The tensor of the other graph for each tensor that has one there."""

    def __init__(self, one: IR, other: IR, pairs: Iterable[Pair]) -> None:
        self._of = dict(zip(one.graph_inputs, other.graph_inputs, strict=False))
        by_keys = {_keys(tensor): tensor for tensor in other.params}
        self._of.update((tensor, by_keys[_keys(tensor)]) for tensor in one.params if _keys(tensor) in by_keys)
        for left, right in pairs:
            self._of.update(zip(one.nodes[left].outputs, other.nodes[right].outputs, strict=False))
        self._found = set(self._of.values())

    def are(self, mine: TensorMeta | None, its: TensorMeta | None) -> bool:
        """Whether these two are; so are two that have none, as it is told already that they are there."""
        if mine is None or its is None:
            return mine is its
        return self._of.get(mine) is its or (mine not in self._of and its not in self._found)


def _alone(ir: IR, start: int, stop: int, side: str) -> Iterator[str]:
    for at in range(start, stop):
        text = print_node(ir.nodes[at])
        yield f"node {at}: {text if len(text) <= _LONGEST else f'{text[:_LONGEST]}…'} only in the {side}"


def _signatures(one: IR, other: IR, with_modules: bool) -> Iterator[str]:
    """All that a graph says about itself besides its weights, nodes and functions."""
    if len(one.graph_inputs) != len(other.graph_inputs):
        yield f"{len(one.graph_inputs)} / {len(other.graph_inputs)} inputs"
    for at, (mine, its) in enumerate(zip(one.graph_inputs, other.graph_inputs, strict=False)):
        if _facts(mine) != _facts(its):
            yield f"input {at}: {_described(mine)} / {_described(its)}"
    for name in ("input_tree", "output_tree", "constraints", "device", "mesh", "fixed_layout", "extensions"):
        mine, its = getattr(one, name), getattr(other, name)
        if repr(mine) != repr(its):
            yield f"{name}: {mine!r} / {its!r}"
    ranges = [{name: symbol.range for name, symbol in ir.symbols.items()} for ir in (one, other)]
    yield from (f"size {text}" for text in _tables(*ranges))
    if with_modules:
        yield from (f"module {text}" for text in _tables(one.modules, other.modules))


def _weights(one: IR, other: IR) -> Iterator[str]:
    sides = [{_keys(tensor): tensor for tensor in ir.params} for ir in (one, other)]
    for keys in {**sides[0], **sides[1]}:
        mine, its = sides[0].get(keys), sides[1].get(keys)
        title = f"weight {' = '.join(map(repr, keys))}"
        if mine is None or its is None:
            yield f"{title} only in the {'second' if mine is None else 'first'}"
        elif _facts(mine) != _facts(its):
            yield f"{title}: {_described(mine)} / {_described(its)}"
        elif mine.param and its.param:
            if mine.param.kind != its.param.kind:
                yield f"{title}: a {mine.param.kind} / a {its.param.kind}"
            if mine.param.data != its.param.data:
                yield f"{title}: its values differ"
    if sides[0].keys() == sides[1].keys() and [*sides[0]] != [*sides[1]]:
        yield "weights come in another order"


def _returns(one: IR, other: IR, counterparts: _Counterparts) -> Iterator[str]:
    """Outputs, and the values that inputs and weights are given."""
    if len(one.graph_outputs) != len(other.graph_outputs):
        yield f"{len(one.graph_outputs)} / {len(other.graph_outputs)} outputs"
    for at, (mine, its) in enumerate(zip(one.graph_outputs, other.graph_outputs, strict=False)):
        if not counterparts.are(mine, its):
            yield f"output {at}: {mine.name!r} / {its.name!r}"
    if len(one.mutations) != len(other.mutations):
        yield f"{len(one.mutations)} / {len(other.mutations)} tensors are changed"
    for left, right in zip(one.mutations, other.mutations, strict=False):
        if not all(map(counterparts.are, left, right)):
            yield f"changes {left[0].name!r} to {left[1].name!r} / {right[0].name!r} to {right[1].name!r}"


def _sizes(one: IR, other: IR, counterparts: _Counterparts) -> Iterator[str]:
    """Where symbolic sizes are read off."""
    for name in (name for name in one.symbols if name in other.symbols):
        mine, its = one.symbols[name], other.symbols[name]
        if not counterparts.are(mine.tensor, its.tensor) or mine.dim != its.dim:
            yield f"size {name} is bound to another tensor or dimension"


def _tables(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    for name in {**one, **other}:
        if name not in one or name not in other:
            value = print_value({**one, **other}[name])
            yield f"{name} {value} only in the {'first' if name in one else 'second'}"
        elif _typed(one[name]) != _typed(other[name]):
            left, right = print_value(one[name]), print_value(other[name])
            yield f"{name} {left} / {right}" if left != right else f"{name} {one[name]!r} / {other[name]!r}"


def _references(node: OpNode) -> list[tuple[str, FunctionRef]]:
    """The functions that a node names, each with the attribute that names it."""
    found = []
    for name in sorted(node.attrs):
        waiting = [node.attrs[name]]
        while waiting:
            value = waiting.pop()
            waiting += value if isinstance(value, (list, tuple)) else ()
            found += [(name, value)] if isinstance(value, FunctionRef) else []
    return found


def _entry_points(ir: IR) -> set[str]:
    """The functions that no node names."""
    return ir.functions.keys() - {name for node in ir.nodes for _, name in _references(node)}


def _typed(value: Any) -> str:
    """A value as text that tells 1 from 1.0 and from True; functions are compared by what they compute."""
    if isinstance(value, FunctionRef):
        return "@"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_typed, value))}]"
    return repr(value)


def _keys(tensor: TensorMeta) -> tuple[str, ...]:
    return tensor.param.keys if tensor.param else (tensor.name,)


def _facts(tensor: TensorMeta) -> Hashable:
    return tensor.shape, tensor.dtype, tensor.stride, tensor.placement


def _described(tensor: TensorMeta) -> str:
    strides = "" if tensor.stride is None else f" with strides {list(tensor.stride)}"
    placed = "" if tensor.placement is None else f" on {', '.join(tensor.placement)}"
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]{strides}{placed}"
