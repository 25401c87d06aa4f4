"""Patterns: a few connected nodes, with names for what a rule needs from them.

    conv = op("aten.conv2d.default", input="x", weight="w", bias="b", groups=1).named("conv").read_once()
    found = match(op("aten.relu.default", self=conv), node)
    found["w"].key  # "layer1.0.conv1.weight"

The value of an argument says what it must be:

| written | meaning |
|---|---|
| a string | anything; captured under that name: a tensor, a list of tensors, an attribute, `None` |
| a pattern | a tensor whose producer matches that pattern |
| any other value | an attribute equal to it; `None` is an absent optional argument |
| `...`, or omitted | anything |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_names import check_call


@dataclass(frozen=True)
class Pattern:
    """Pattern of a node; created by `op`, refined by the methods, immutable."""

    op_types: tuple[str, ...]
    arguments: Mapping[str, Any]
    name: str = ""
    is_read_once: bool = False
    index: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def named(self, name: str) -> Pattern:
        """Return this pattern with the node itself captured under a name."""
        return replace(self, name=name)

    def read_once(self) -> Pattern:
        """Return this pattern for a value that is read exactly once; a graph output is a reader, too."""
        return replace(self, is_read_once=True)

    def output(self, index: int) -> Pattern:
        """Return this pattern for another output of the node than its first."""
        return replace(self, index=index)

    def when(self, /, **attributes: Any) -> Pattern:
        """Return this pattern with required attribute values, which may be strings: `.when(approximate="tanh")`."""
        return replace(self, attributes={**self.attributes, **attributes})

    @cached_property
    def parts(self) -> list[tuple[str, Pattern]]:
        """The argument names and patterns of inputs."""
        return [(name, expected) for name, expected in self.arguments.items() if isinstance(expected, Pattern)]

    def check_names(self, place: str = "", *, arguments: bool = True) -> None:
        """Raise RegistryError for an operator, or also an argument, that torch does not have; checked once."""
        if arguments in self._checked:
            return
        names = (*self.arguments, *self.attributes) if arguments else ()
        is_known = check_call(self.op_types, names, place or f"pattern {self!s:.200}")
        for _, part in self.parts:
            part.check_names(place, arguments=arguments)
        if is_known:
            self._checked.add(arguments)

    @cached_property
    def _checked(self) -> set[bool]:
        """Whether names were checked, without and with those of arguments."""
        return set()

    @cached_property
    def _named(self) -> dict[str, bool]:
        """Memo of `names`."""
        return {}

    def names(self, op_type: str) -> bool:
        """Whether this is one of the pattern's operators."""
        if op_type not in self._named:
            self._named[op_type] = any(names_op(name, op_type) for name in self.op_types)
        return self._named[op_type]

    @property
    def captures(self) -> frozenset[str]:
        """Every name under which a match captures something."""
        return frozenset(self._names())

    @property
    def size(self) -> int:
        """Number of nodes in the pattern."""
        return 1 + sum(part.size for _, part in self.parts)

    def _names(self) -> Iterator[str]:
        if self.name:
            yield self.name
        for expected in self.arguments.values():
            if isinstance(expected, Pattern):
                yield from expected._names()
            elif _is_capture(expected):
                yield expected

    def __str__(self) -> str:
        parts = [f"{name}={expected!s}" for name, expected in self.arguments.items() if isinstance(expected, Pattern)]
        return f"{' | '.join(self.op_types)}({', '.join(parts)})"


@dataclass(frozen=True)
class Match:
    """A match: the last node, the captures, and all matched nodes in topological order."""

    node: OpNode
    captures: dict[str, Any]
    nodes: tuple[OpNode, ...]

    def __getitem__(self, name: str) -> Any:
        return self.captures[name]


def op(op_type: str, /, *others: str, **arguments: Any) -> Pattern:
    """Return a pattern for a node of one of these operators; `aten.add` means all its overloads.

    List elements are named as in the node: `op("aten.cat.default", **{"tensors.0": "first"})`.
    """
    return Pattern((op_type, *others), arguments)


def either_order(pattern: Pattern) -> tuple[Pattern, Pattern]:
    """Return a pattern on a commutative operator as it is and with `self` and `other` exchanged."""
    one, other = pattern.arguments["self"], pattern.arguments["other"]
    return pattern, replace(pattern, arguments={**pattern.arguments, "self": other, "other": one})


def match(pattern: Pattern, node: OpNode) -> Match | None:
    """Match the pattern with `node` as its last node, or return None; equal names must be the same object.

    If torch is loaded, an operator that it does not have raises RegistryError.
    """
    pattern.check_names(arguments=False)
    return find_match(pattern, node)


def find_match(pattern: Pattern, node: OpNode) -> Match | None:
    """Return what `match` does, for a pattern whose names were checked."""
    if not may_match(pattern, node):
        return None
    search = _Search()
    found = 0 <= pattern.index < max(1, len(node.outputs)) and search.is_like(pattern, node)
    return Match(node, search.captures, tuple(search.nodes)) if found else None


def may_match(pattern: Pattern, node: OpNode) -> bool:
    """Compare only the operators, which is quick and rules out most nodes."""
    if not pattern.names(node.op_type):
        return False
    for name, part in pattern.parts:
        args = node._args
        maker = node.inputs[args.index(name)].producer if name in args else None
        if maker is None or not may_match(part, maker):
            return False
    return True


def names_op(name: str, op_type: str) -> bool:
    """Whether a name means this operator, with or without its overload."""
    return name in (op_type, op_type.rpartition(".")[0])


class _Search:
    """One match attempt: the captures so far, and the matched nodes."""

    def __init__(self) -> None:
        self.captures: dict[str, Any] = {}
        self.nodes: dict[OpNode, None] = {}

    def is_like(self, pattern: Pattern, node: OpNode) -> bool:
        if not pattern.names(node.op_type):
            return False
        if pattern.is_read_once and [sum(t._uses.values()) for t in node.outputs if t.index == pattern.index] != [1]:
            return False
        for name, expected in pattern.arguments.items():
            if not self._is_argument(expected, node, name):
                return False
        for name, value in pattern.attributes.items():
            if name not in node.attrs or not _same(value, node.attrs[name]):
                return False
        self.nodes[node] = None
        return not pattern.name or self._capture(pattern.name, node)

    def _is_argument(self, expected: Any, node: OpNode, name: str) -> bool:
        if expected is ...:
            return True
        try:
            value = node[name]
        except KeyError:
            return False
        if isinstance(expected, Pattern):
            is_made = isinstance(value, TensorMeta) and value.producer is not None and value.index == expected.index
            return is_made and self.is_like(expected, value.producer)
        return self._capture(expected, value) if _is_capture(expected) else _same(expected, value)

    def _capture(self, name: str, value: Any) -> bool:
        if name in self.captures:
            return _same(self.captures[name], value)
        self.captures[name] = value
        return True


def _is_capture(expected: Any) -> bool:
    return type(expected) is str  # a typed name such as Dtype("bfloat16") is a value


def _same(one: Any, other: Any) -> bool:
    """Whether tensors and nodes are identical, or attributes equal; lists equal tuples, and True is not 1."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
