"""Rows of a cost report: work, parameters and time, by module, operator or node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch_ir.analysis.cost_model.node_costs import Cost, Work, added, is_open
from torch_ir.analysis.cost_model.times import Clock, Times, added_times
from torch_ir.analysis.shapes.size_polynomials import product, total, weight_of
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.origins import joined, modules_around
from torch_ir.ir.json.json_fields import Dim

Weights = frozenset[TensorMeta]
Group = Callable[["Leaf"], str]
_NOTHING: Weights = frozenset()
_NO_TIME = Times()
_Pattern = tuple[str | None, ...]  # a step of a path may itself be `*`: an expert of a checkpoint that stacks them


@dataclass(frozen=True)
class Row:
    """The work of a group of nodes, and the parameters that they read or that the module owns."""

    name: str
    count: int
    work: Work
    params: Dim
    times: Times = _NO_TIME
    members: tuple[str, ...] = ()  # the modules that a folded row represents

    @property
    def computing(self) -> float:
        """Seconds of compute-bound nodes."""
        return self.times.computing

    @property
    def moving(self) -> float:
        """Seconds of memory-bound nodes."""
        return self.times.moving

    @property
    def seconds(self) -> float:
        return self.times.seconds

    @property
    def bound(self) -> str:
        """Whether most of the time is compute-bound, memory-bound, or that of starting operators."""
        return self.times.bound

    def to_dict(self) -> dict[str, Any]:
        names = ("macs", "flops", "bytes_read", "bytes_written", "communication")
        amounts = dict(zip(names, self.work.amounts(), strict=True))
        if not self.work.communication:  # the graph is not sharded
            del amounts["communication"]
        facts = {"name": self.name, "nodes": self.count, **amounts, "intensity": self.work.intensity}
        return {**facts, "params": self.params, **({"modules": list(self.members)} if self.members else {})}


class Leaf(NamedTuple):
    """A node that does work, possibly nested in calls, and the weights that it uses."""

    top: str  # the enclosing node of the main graph
    module: str
    op_type: str
    work: Work
    weights: Weights
    times: Times


def leaves_of(
    costs: Cost, carried: dict[str, Weights], clock: Clock | None = None, module: str = "", top: str = ""
) -> Iterator[Leaf]:
    """Yield the nodes of a graph, and those inside its calls; `carried` are the weights behind tensors, by name."""
    for row in costs.nodes:
        node, path, name = row.node, joined(module, row.node.origin.module), top or row.node.name
        body = costs.functions.get(node.attrs["function"]) if is_open(node) else None
        reached = [carried.get(tensor.name, _NOTHING) for tensor in node.inputs]
        if body is None:
            times = clock.node(row, costs.functions) if clock else Times()
            yield Leaf(name, path, node.op_type, row, _NOTHING.union(*reached), times)
        else:
            yield from leaves_of(body, dict(zip(node.args, reached, strict=True)), clock, path, name)


def weights_behind(params: Iterable[TensorMeta], once: Iterable[OpNode]) -> dict[str, Weights]:
    """Map tensor names to weights: weights themselves, and those behind tensors computed from weights alone."""
    carried: dict[str, Weights] = {param.name: frozenset([param]) for param in params}
    for node in once:
        reached = _NOTHING.union(*(carried.get(tensor.name, _NOTHING) for tensor in node.inputs))
        carried.update((tensor.name, reached) for tensor in node.outputs)
    return carried


def row_of(name: str, leaves: Sequence[Leaf]) -> Row:
    params = parameters(_NOTHING.union(*(leaf.weights for leaf in leaves)))
    times = added_times([leaf.times for leaf in leaves])._replace(sending=0.0)
    return Row(name, len(leaves), added(leaf.work for leaf in leaves), params, times)


def rows_of(leaves: Iterable[Leaf], group: Group) -> list[Row]:
    """Return a row for every group."""
    groups: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        groups.setdefault(group(leaf), []).append(leaf)
    return [row_of(name, members) for name, members in groups.items()]


def rows_by_module(leaves: Iterable[Leaf], params: Iterable[TensorMeta], depth: int | None) -> list[Row]:
    """Return a row for every module, with the parameters that it owns according to their keys."""

    def shown(path: str) -> str:
        return modules_around(path)[: None if depth is None else depth + 1][-1]

    owned: dict[str, list[TensorMeta]] = {}
    for param in params:
        owned.setdefault(shown((param.key or "").rpartition(".")[0]), []).append(param)
    rows = {row.name: row for row in rows_of(leaves, lambda leaf: shown(leaf.module))}
    for name in owned:
        rows.setdefault(name, row_of(name, ()))
    found = [replace(row, params=parameters(owned.get(name, ()))) for name, row in rows.items()]
    return [row for row in found if row.count or row.params]


def most_first(rows: Iterable[Row], top: int | None) -> list[Row]:
    """Sort rows by time, then FLOPs, then bytes; merge those after the first `top`."""
    found = sorted(rows, key=lambda row: (-row.seconds, -weight_of(row.work.flops), -weight_of(row.work.bytes)))
    kept, rest = (found, []) if top is None or len(found) <= top + 1 else (found[:top], found[top:])
    return [*kept, *([replace(joined_rows(f"{len(rest)} more", rest), members=())] if rest else [])]


def joined_rows(name: str, rows: Sequence[Row]) -> Row:
    """Return one row with the sums of several."""
    return Row(
        name,
        sum(row.count for row in rows),
        added(row.work for row in rows),
        total(row.params for row in rows),
        added_times([row.times for row in rows]),
        tuple(row.name for row in rows),
    )


def parameters(weights: Iterable[TensorMeta]) -> Dim:
    """Return the number of learnt values: those of parameters, without buffers and constants."""
    return total(product(*weight.shape) for weight in weights if weight.param and weight.param.is_learnt)


def fold_layers(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with those of modules that differ only in numbers, and cost the same, joined.

    layers.0.mlp, layers.1.mlp, layers.2.mlp   ->  layers.*.mlp, or layers.0-1.mlp if the last one differs
    """
    groups: dict[Hashable, list[Row]] = {}
    numbers: dict[_Pattern, list[tuple[int, ...]]] = {}
    for row in rows:
        pattern, number = _parted(row.name)
        groups.setdefault((pattern, row.count, row.work.amounts(), row.params), []).append(row)
        numbers.setdefault(pattern, []).append(number)
    return [
        members[0] if len(members) == 1 else joined_rows(_name(members, numbers), members)
        for members in groups.values()
    ]


def _parted(name: str) -> tuple[_Pattern, tuple[int, ...]]:
    """Return the steps of a path with None for its numbers, and the numbers."""
    steps = name.split(".")
    numbers = tuple(int(step) for step in steps if step.isdecimal())
    return tuple(None if step.isdecimal() else step for step in steps), numbers


def _name(members: Sequence[Row], numbers: dict[_Pattern, list[tuple[int, ...]]]) -> str:
    """Name folded rows: `*` for all numbers of a list of modules, otherwise the numbers themselves."""
    pattern = _parted(members[0].name)[0]
    mine = zip(*(_parted(row.name)[1] for row in members), strict=True)
    every = zip(*numbers[pattern], strict=True)
    texts = iter(["*" if set(own) == set(known) else _ranges(own) for own, known in zip(mine, every, strict=True)])
    return ".".join(next(texts) if step is None else step for step in pattern)


def _ranges(numbers: Iterable[int]) -> str:
    """Format numbers: `0-2,5`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
