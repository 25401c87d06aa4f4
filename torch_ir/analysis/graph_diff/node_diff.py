"""Differences between matching nodes, and the merged sequence of the nodes of both graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_ir.analysis.graph_diff.alignment import Pair, in_order
from torch_ir.analysis.graph_diff.node_keys import facts, typed
from torch_ir.analysis.graph_diff.tensor_pairs import Counterparts
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.text.printer import print_node, print_value

_LONGEST = 160  # characters of a node in a diff
STATUSES = ("added", "removed", "changed", "renamed", "same")


@dataclass(frozen=True)
class NodeDiff:
    """A node of the first graph, of the second, or of both, and its status.

    `status` is `same`; `renamed`, if only names of the node or its outputs differ; `changed`, if it is the same
    operator with other attributes, shapes or operands; `added` or `removed`, if the other graph has no match. `details`
    describe the differences, or the nodes that replace it.
    """

    status: str
    first: OpNode | None
    second: OpNode | None
    details: tuple[str, ...] = ()

    @property
    def node(self) -> OpNode:
        """The node of the second graph, or else that of the first."""
        node = self.second or self.first
        assert node is not None
        return node

    @property
    def names(self) -> tuple[str | None, str | None]:
        """The name of the node in the first graph, and in the second; None if absent."""
        return self.first.name if self.first else None, self.second.name if self.second else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "first": self.names[0],
            "second": self.names[1],
            "op_type": self.node.op_type,
            "module": self.node.origin.module,
            "details": list(self.details),
        }


def marks_of(rows: Sequence[NodeDiff]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the status of every node by name, in the first graph and in the second."""
    return (
        {row.first.name: row.status for row in rows if row.first},
        {row.second.name: row.status for row in rows if row.second},
    )


def both_programs(one: IR, other: IR, pairs: list[Pair]) -> Iterator[tuple[int | None, int | None]]:
    """Yield the positions of all nodes in the order of the second graph, with removed nodes at their old places."""
    found, back = dict(pairs), {right: left for left, right in pairs}
    left = right = 0
    for stop_left, stop_right in [*in_order(pairs), (len(one.nodes), len(other.nodes))]:
        yield from ((at, None) for at in range(left, stop_left) if at not in found)
        yield from ((back.get(at), at) for at in range(right, stop_right))
        if stop_left < len(one.nodes):
            yield stop_left, stop_right
        left, right = stop_left + 1, stop_right + 1


def arguments(ir: IR, node: OpNode) -> dict[str, TensorMeta]:
    """Return the inputs of a node by argument; arguments of a call are numbered, as functions name them freely."""
    given = dict(zip(node.args, node.inputs, strict=True))
    body = ir.functions.get(node.attrs["function"]) if node.is_call else None
    if body is None:
        return given
    return {f"argument {at}": given[t.name] for at, t in enumerate(body.graph_inputs) if t.name in given}


def reads(mine: dict[str, TensorMeta], its: dict[str, TensorMeta], counterparts: Counterparts) -> Iterator[str]:
    """Yield the differences between the arguments of two nodes."""
    for name in {**mine, **its}:
        left, right = mine.get(name), its.get(name)
        if left is None or right is None:
            yield f"{name} only in the {'second' if left is None else 'first'}"
        elif not counterparts.are(left, right):
            yield f"{name} is {left.name!r} / {right.name!r}"


def properties(one: OpNode, other: OpNode, *, with_origins: bool) -> Iterator[str]:
    """Yield the differences between two nodes of the same operator, except their inputs."""
    yield from tables(one.attrs, other.attrs)
    if [*map(facts, one.outputs)] != [*map(facts, other.outputs)]:
        yield f"returns {', '.join(map(described, one.outputs))} / {', '.join(map(described, other.outputs))}"
    if with_origins and one.origin != other.origin:
        fields = zip(one.origin._fields, one.origin, other.origin, strict=True)
        yield f"comes from another {', '.join(f'{n} {x!r} / {y!r}' for n, x, y in fields if x != y)}"


def has_other_names(one: OpNode, other: OpNode) -> bool:
    return [one.name, *(t.name for t in one.outputs)] != [other.name, *(t.name for t in other.outputs)]


def tables(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between two tables of values."""
    for name in {**one, **other}:
        if name not in one or name not in other:
            value = print_value({**one, **other}[name])
            yield f"{name} {value} only in the {'first' if name in one else 'second'}"
        elif typed(one[name]) != typed(other[name]):
            left, right = print_value(one[name]), print_value(other[name])
            yield f"{name} {left} / {right}" if left != right else f"{name} {one[name]!r} / {other[name]!r}"


def node_text(node: OpNode) -> str:
    """Print a node, shortened to one line of limited length."""
    text = print_node(node)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def described(tensor: TensorMeta) -> str:
    strides = "" if tensor.stride is None else f" with strides {list(tensor.stride)}"
    placed = "" if tensor.placement is None else f" on {', '.join(tensor.placement)}"
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]{strides}{placed}"
