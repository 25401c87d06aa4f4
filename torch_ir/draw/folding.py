"""Fold repeated layers: consecutive equal modules are drawn once, in a frame with their number.

A frame represents, for example, 32 modules with the same operators, connected in the same way, each reading the output
of the one before it. It is named after the first and the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch_ir.draw.node_texts import span
from torch_ir.ir import IR, OpNode, Param, TensorMeta
from torch_ir.ir.graph.operator_sets import RESTORING
from torch_ir.ir.graph.origins import call_around, modules_around
from torch_ir.ir.regroup.functions import FUSED, check_size_inline, inline, read_by

_PERIOD = 6  # alternating layers, such as five of local attention and one of global, repeat together


@dataclass(frozen=True)
class Fold:
    """Several equal modules that are drawn once; `module` is the path of the first, or of their list."""

    title: str
    module: str
    items: tuple[OpNode | Fold, ...]


@dataclass
class Folding:
    """A graph with repeated layers drawn once: the drawn items, and the drawn tensor for each that is not drawn."""

    ir: IR
    items: list[OpNode | Fold]
    representatives: dict[TensorMeta, TensorMeta] = field(default_factory=dict)  # of a repetition -> drawn for it

    def drawn(self, tensor: TensorMeta) -> TensorMeta:
        while tensor in self.representatives:
            tensor = self.representatives[tensor]
        return tensor


def unfolded(ir: IR) -> Folding:
    """Return every node on its own."""
    return Folding(ir, list(ir.nodes))


def folded(ir: IR, marks: Mapping[str, object] | None = None, open_calls: bool = False) -> Folding:
    """Fold runs of equal modules; modules whose nodes have different marks, by name, are not equal.

    Nodes that depend on weights alone are drawn as weights. With `open_calls`, the nodes inside a call are drawn
    instead of it: of equal layers, those of the first.
    """
    if open_calls:
        check_size_inline(ir)
    shown = ir.clone()
    shown.nodes = without_ready(shown, shown.nodes)
    folder = _Folder(shown, marks or {})
    items = list(folder.items(shown.nodes, 0))
    return Folding(shown, list(folder.opened(items)) if open_calls else items, folder.representatives)


def without_ready(ir: IR, nodes: Sequence[OpNode]) -> list[OpNode]:
    """Return the nodes that depend on more than weights; the outputs of others become weights, only for drawing.

    A buffer that the graph changes is not such a weight: what is computed from it differs from run to run. Nodes that
    restore quantised weights are drawn, as they run each time.
    """
    changing = {target for target, _ in ir.mutations}
    kept = []
    for node in nodes:
        is_result = any(ir.returns in made._uses for made in node.outputs)
        is_ready = all(tensor.param and tensor not in changing for tensor in node.inputs)
        runs_each_time = node.is_call or node.op_type.startswith(RESTORING)
        if node.inputs and not runs_each_time and not is_result and is_ready:
            node.inputs = ()
            for made in node.outputs:
                made.producer, made.param = None, Param((made.name,))
        else:
            kept.append(node)
    return kept


def nodes_in(items: Sequence[OpNode | Fold]) -> Iterator[OpNode]:
    """Yield the nodes that are drawn, in order."""
    for item in items:
        yield from nodes_in(item.items) if isinstance(item, Fold) else [item]


def times(count: int) -> str:
    return f"\N{MULTIPLICATION SIGN}{count}"


class _Unit:
    """The nodes of one call of a possibly repeated module, or of several such calls that repeat together."""

    def __init__(self, paths: list[str], nodes: list[OpNode], marks: list[Hashable]) -> None:
        self.paths = paths
        self.nodes = nodes
        self.marks = marks  # what else must be equal for each node: its place in the module, and its mark
        self.reads = read_by(nodes)
        self.makes = [tensor for node in nodes for tensor in node.outputs]

    @classmethod
    def joined(cls, units: Sequence[_Unit]) -> _Unit:
        return cls(
            [path for unit in units for path in unit.paths],
            [node for unit in units for node in unit.nodes],
            [mark for unit in units for mark in unit.marks],
        )

    @cached_property
    def structure(self) -> Hashable:
        numbers = {tensor: number for number, tensor in enumerate((*self.reads, *self.makes))}
        facts = tuple((tensor.shape, tensor.dtype) for tensor in numbers)
        return facts, tuple(
            (node.computation, mark, len(node.outputs), *(numbers[t] for t in node.inputs))
            for node, mark in zip(self.nodes, self.marks, strict=True)
        )

    def roles(self, before: _Unit | None) -> list[tuple[str, Hashable]]:
        """Return the role of each tensor that this unit reads, if it follows another one."""
        places = {tensor: place for place, tensor in enumerate(before.makes if before else ())}
        return [_role(tensor, places) for tensor in self.reads]

    def follows(self, run: Sequence[_Unit]) -> bool:
        """Whether this unit repeats the units of a run once more."""
        last = run[-1]
        if list(map(_series, self.paths)) != list(map(_series, last.paths)) or self.structure != last.structure:
            return False
        roles = self.roles(last)
        if self.paths == last.paths and not any(kind == "before" for kind, _ in roles):
            return False  # parallel calls, whose results may be used differently
        if len(run) > 1:
            return roles == last.roles(run[-2])
        pairs = zip(roles, last.roles(None), strict=True)
        return all(role == was or (role[0] == "before" and was[0] != "weight") for role, was in pairs)


def _longest_run(units: Sequence[_Unit]) -> list[_Unit]:
    """Return the longest run of repetitions that starts with the first unit, alone or with some that follow."""
    best = [units[0]]
    for period in range(1, _PERIOD + 1):
        run = [_Unit.joined(units[:period])] if len(units) >= 2 * period else []
        for start in range(period, len(units) - period + 1, period):
            again = units[start : start + period]
            is_alike = all(one.structure == other.structure for one, other in zip(units, again, strict=False))
            if not is_alike or not (group := _Unit.joined(again)).follows(run):
                break
            run.append(group)
        if len(run) > 1 and len(run) * period > len(best) * len(best[0].paths):
            best = run
        if len(best) > _PERIOD:
            break
    return best


def _role(tensor: TensorMeta, places: Mapping[TensorMeta, int]) -> tuple[str, Hashable]:
    if tensor in places:
        return "before", places[tensor]
    if tensor.producer is None:
        return ("given" if tensor.param is None else "weight"), None
    return "outside", tensor


class _Folder:
    """Folds the nodes of one graph and records which tensors represent others."""

    def __init__(self, ir: IR, marks: Mapping[str, object]) -> None:
        self.representatives: dict[TensorMeta, TensorMeta] = {}
        self._ir = ir
        self._marks = marks
        called = {node.origin.module for node in ir.nodes if node.origin.call}
        self._again = called | {text.rpartition("@")[0] for node in ir.nodes for text in node.origin.outer}

    def items(self, nodes: Sequence[OpNode], depth: int) -> Iterator[OpNode | Fold]:
        """Yield nodes with repetitions folded, for modules deeper than `depth` names."""
        calls = itertools.groupby(nodes, lambda node: self._call(node, depth))
        units = [(call, self._unit(call[0] if call else "", list(group))) for call, group in calls]
        for is_call, pairs in itertools.groupby(units, lambda pair: pair[0] is not None):
            series = [unit for _, unit in pairs]
            if is_call:
                yield from self._series(series)
            else:
                yield from (node for unit in series for node in unit.nodes)

    def _series(self, units: Sequence[_Unit]) -> Iterator[OpNode | Fold]:
        """Yield consecutive units with runs folded; folds of several units contain folds."""
        while units:
            run = _longest_run(units)
            parts, path = units[: len(run[0].paths)], units[0].paths[0]
            units = units[len(run) * len(parts) :]
            inner = self.items(parts[0].nodes, path.count(".") + 1) if len(parts) == 1 else self._series(parts)
            if len(run) == 1:
                yield from inner
                continue
            for unit in run[1:]:
                self._represent(run[0], unit)
            yield Fold(_title(run), path if len(parts) == 1 else path.rpartition(".")[0], tuple(inner))

    def opened(self, items: Iterable[OpNode | Fold]) -> Iterator[OpNode | Fold]:
        """Yield the items with calls replaced by the nodes inside, and their repetitions folded."""
        for item in items:
            if isinstance(item, Fold):
                yield Fold(item.title, item.module, tuple(self.opened(item.items)))
            elif self._can_be_opened(item):
                inside = without_ready(self._ir, inline(self._ir, item))
                made = {tensor.name: tensor for node in inside for tensor in node.outputs}
                self.representatives.update(
                    (tensor, made[tensor.name]) for tensor in item.outputs if tensor.name in made
                )
                # a list: opening one changes what others read
                yield from self.opened(list(self.items(inside, len(modules_around(item.origin.module)) - 1)))
            else:
                yield item

    def _can_be_opened(self, node: OpNode) -> bool:
        is_fused = node.op_type.startswith(FUSED)
        body = self._ir.functions.get(node.attrs["function"]) if node.is_call and not is_fused else None
        return body is not None and not body.symbols and not body.params

    def _unit(self, path: str, nodes: list[OpNode]) -> _Unit:
        return _Unit([path], nodes, [(n.origin.module[len(path) :], repr(self._marks.get(n.name))) for n in nodes])

    def _call(self, node: OpNode, depth: int) -> tuple[str, int] | None:
        """Return the call of the outermost module below a depth that has a number or is called several times."""
        for path in modules_around(node.origin.module)[depth + 1 :]:
            if path.rpartition(".")[2].isdecimal() or path in self._again:
                return path, call_around(node.origin, path).call
        return None

    def _represent(self, first: _Unit, unit: _Unit) -> None:
        self.representatives.update(zip(unit.makes, first.makes, strict=True))
        own = set(unit.nodes)
        for mine, drawn in zip(unit.reads, first.reads, strict=True):
            if mine is not drawn and mine.producer is None and own.issuperset(mine._uses):
                self.representatives[mine] = drawn  # an input of the graph per layer, such as its part of a cache


def _series(path: str) -> str:
    """Return what modules that may repeat each other have in common: their list, or the module itself."""
    parent, _, name = path.rpartition(".")
    return f"{parent}." if name.isdecimal() else path


def _title(run: Sequence[_Unit]) -> str:
    first, last, period = run[0].paths[0], run[-1].paths[-1], len(run[0].paths)
    return f"{span(first, last)}  {times(len(run))}" + (f" ({period} each)" if period > 1 else "")
