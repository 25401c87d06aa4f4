"""The module hierarchy of a graph, with consecutive equal modules as one run.

    layers.0 - 31  x32      a run, whose parts are drawn once until unfolded
      self_attn             a module, as its call was captured
        linear              a node

Two groups of the same `form` have the same operators, connected in the same way, and share one layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Union

from torch_ir.analysis.dependencies.over_weights import hoisted, over_weights
from torch_ir.draw.depth import LEAST_LINE
from torch_ir.draw.node_texts import span
from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.origins import call_around, is_within, module_at
from torch_ir.ir.regroup.functions import read_by

_LISTS = ("ModuleList", "ModuleDict")  # containers of modules that are never called
_PERIOD = 6  # alternating layers, such as five of local attention and one of global, repeat together
_MOST = 300  # items of a level; if there are more, consecutive ones are grouped
_CHUNK = 100
_DEEPEST = 40  # levels of modules; deeper ones are shown at the last level
Item = Union[OpNode, "Group"]


@dataclass(eq=False)
class Group:
    """A node of the hierarchy that can be opened.

    It is the graph, a module call, a run of equal items, one turn of a run of alternating items, the nodes that depend
    on weights alone, the nodes from one source line of a module, or a chunk of a long level. `is_chain` means that each
    part of a run reads the output of the one before it.
    """

    kind: Literal["graph", "module", "run", "turn", "once", "line", "chunk"]
    path: str
    items: Sequence[Item]
    call: int = 0
    module_class: str = ""
    is_chain: bool = False
    form: int = -1
    nodes: list[OpNode] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.nodes = list(_nodes_in(self.items))


def hierarchy(ir: IR, mark_of: Callable[[OpNode], Hashable]) -> Group:
    """Return the hierarchy of a graph; modules whose nodes are marked differently are not equal."""
    return _Grouping(ir, mark_of).graph()


def name_of(item: Item, outer: str) -> str:
    """Return the name of an item inside the module `outer`: `self_attn`, or the first and last of a run."""
    if isinstance(item, OpNode) or item.kind == "module":
        return _seen_from(outer, _path(item))
    if item.kind == "once":
        return "computed once"
    if item.kind == "line":
        return item.nodes[0].origin.source.replace("\\", "/").rpartition("/")[2]
    if item.kind == "chunk":
        return f"{item.nodes[0].name} … {item.nodes[-1].name}"
    first, last = _path(item.items[0]), _end(item.items[-1])
    name, end, around = _seen_from(outer, first), _seen_from(outer, last), last.rpartition(".")[0]
    if first == last:
        return name
    return span(name, end) if around == first.rpartition(".")[0] else f"{name} … {_seen_from(outer, last)}"


class _Grouping:
    """Builds the groups of one graph."""

    def __init__(self, ir: IR, mark_of: Callable[[OpNode], Hashable]) -> None:
        self._ir = ir
        self._facts = {node: (_facts(node), mark_of(node)) for node in ir.nodes}
        self._places = {node: place for place, node in enumerate(ir.nodes)}
        self._forms: dict[Hashable, int] = {}
        self._prologue = hoisted(ir)
        self._once: set[Item] = set() if self._prologue else set(over_weights(ir))

    def graph(self) -> Group:
        """Return the whole graph; a prologue at its front is one group, whatever modules its nodes come from."""
        rest = self._ir.nodes[len(self._prologue) :]
        if not self._prologue or not rest:
            return Group("graph", "", self._items(self._ir.nodes, "", 0))
        once = Group("once", "", self._items(self._prologue, "", 0))
        once.form = self._form(once.nodes, "")
        return Group("graph", "", [once, *self._items(rest, "", 0)])

    def _items(self, nodes: Sequence[OpNode], path: str, depth: int) -> list[Item]:
        """Return the items of a module: its own nodes, and groups for nested modules, equal ones as runs."""
        items = self._with_runs(self._with_once(self._plain_items(nodes, depth), path))
        return self._in_chunks(self._with_lines(items, path), path)

    def _plain_items(self, nodes: Sequence[OpNode], depth: int) -> list[Item]:
        own: list[Item] = []
        calls: dict[tuple[str, int], list[OpNode]] = {}
        for node in nodes:
            inner = module_at(node.origin.module, depth + 1)
            if inner is None or depth == _DEEPEST:
                own.append(node)
            else:
                calls.setdefault((inner, call_around(node.origin, inner).call), []).append(node)
        modules = [item for call, inside in calls.items() for item in self._module(*call, inside, nodes, depth)]
        return sorted([*own, *modules], key=lambda item: self._places[next(_nodes_in([item]))])

    def _module(
        self, path: str, call: int, nodes: Sequence[OpNode], around: Sequence[OpNode], depth: int
    ) -> Sequence[Item]:
        """Return a module as a group; a single node represents it, and the content of a list may represent the list."""
        if len(nodes) == 1:
            return nodes
        module_class = self._class_of(path, nodes)
        is_list = module_class.endswith(_LISTS) or (not module_class and all(n.origin.module != path for n in nodes))
        if is_list and self._is_mixed(nodes, around):
            return self._plain_items(nodes, depth + 1)
        items = self._items(nodes, path, depth + 1)
        if is_list and len(items) == 1:
            return items
        return [Group("module", path, items, call, module_class, form=self._form(nodes, path))]

    def _class_of(self, path: str, nodes: Sequence[OpNode]) -> str:
        own = (node.origin.module_class for node in nodes if node.origin.module == path)
        return next(own, "") or self._ir.modules.get(path, "").rpartition(".")[2]

    def _is_mixed(self, nodes: Sequence[OpNode], around: Sequence[OpNode]) -> bool:
        """Whether other nodes run between these: `convs.0`, `norms.0`, `convs.1`, `norms.1`."""
        first, last = self._places[nodes[0]], self._places[nodes[-1]]
        return sum(first <= self._places[node] <= last for node in around) > len(nodes)

    def _with_once(self, items: Sequence[Item], path: str) -> list[Item]:
        """Group the nodes that depend on weights alone."""
        once = [item for item in items if item in self._once]
        if len(once) < 2 or len(once) == len(items):
            return list(items)
        return [self._group("once", path, once), *(item for item in items if item not in self._once)]

    def _with_lines(self, items: Sequence[Item], path: str) -> list[Item]:
        """Group consecutive nodes from one source line of the model."""
        if len(items) < 2 * LEAST_LINE:
            return list(items)
        found: list[Item] = []
        for source, row in itertools.groupby(items, _source):
            same = list(row)
            found += [self._group("line", path, same)] if source and LEAST_LINE <= len(same) < len(items) else same
        return found

    def _in_chunks(self, items: list[Item], path: str) -> list[Item]:
        while len(items) > _MOST:
            rows = (items[at : at + _CHUNK] for at in range(0, len(items), _CHUNK))
            items = [self._group("chunk", path, row) for row in rows]
        return items

    def _group(self, kind: Literal["once", "line", "chunk"], path: str, items: Sequence[Item]) -> Group:
        group = Group(kind, path, items)
        group.form = self._form(group.nodes, path)
        return group

    def _with_runs(self, items: Sequence[Item]) -> list[Item]:
        found: list[Item] = []
        forms = [self._form_of(item) for item in items]
        at = 0
        while at < len(items):
            period, count = _longest_run(forms[at:])
            if count > 1:
                found.append(self._run(items[at : at + period * count], period))
            else:
                found.append(items[at])
            at += period * count
        return found

    def _form_of(self, item: Item) -> Hashable:
        """Return what must be equal for items to repeat each other; None for what cannot be opened or folded."""
        path = _path(item)
        parent, _, name = path.rpartition(".")
        series = parent if name.isdecimal() else path
        if isinstance(item, OpNode):
            return (series, self._facts[item]) if item.is_call else None
        return (series, item.form) if item.kind == "module" else None

    def _run(self, items: Sequence[Item], period: int) -> Group:
        parts = items if period == 1 else [self._turn(items[at : at + period]) for at in range(0, len(items), period)]
        made = [{tensor for node in _nodes_in([part]) for tensor in node.outputs} for part in parts]
        reads = [read_by(list(_nodes_in([part]))) for part in parts]
        is_chain = all(not one.isdisjoint(after) for one, after in zip(made, reads[1:], strict=False))
        run = Group("run", _path(items[0]), parts, module_class=_class(parts[0]), is_chain=is_chain)
        run.form = self._form(run.nodes, run.path)
        return run

    def _turn(self, items: Sequence[Item]) -> Group:
        turn = Group("turn", _path(items[0]), items)
        turn.form = self._form(turn.nodes, turn.path.rpartition(".")[0])
        return turn

    def _form(self, nodes: Sequence[OpNode], path: str) -> int:
        """Return a number that is equal if and only if the drawings of these nodes are equal."""
        own, reads = set(nodes), read_by(nodes)
        made = [tensor for node in nodes for tensor in node.outputs]
        numbers = {tensor: number for number, tensor in enumerate((*reads, *made))}
        form = (
            tuple(
                (self._facts[node], _seen_from(path, node.origin.module), *(numbers[tensor] for tensor in node.inputs))
                for node in nodes
            ),
            tuple(tensor.param is not None for tensor in reads),
            tuple(not own.issuperset(tensor._uses) for tensor in made),
        )
        return self._forms.setdefault(form, len(self._forms))


def _nodes_in(items: Iterable[Item]) -> Iterator[OpNode]:
    for item in items:
        yield from item.nodes if isinstance(item, Group) else (item,)


def _facts(node: OpNode) -> Hashable:
    made = tuple((tensor.shape, tensor.dtype) for tensor in node.outputs)
    return node.computation, made, tuple(tensor.shape for tensor in node.inputs)


def _longest_run(forms: Sequence[Hashable]) -> tuple[int, int]:
    """Return the length of the first repetition, and the number of repetitions."""
    best = (1, 1)
    for period in range(1, _PERIOD + 1):
        turn = forms[:period]
        if len(turn) < period or None in turn:
            break
        count = 1
        while forms[count * period : (count + 1) * period] == turn:
            count += 1
        if count > 1 and period * count > best[0] * best[1]:
            best = (period, count)
    return best


def _source(item: Item) -> str:
    """Return the source line of a node; empty for groups and nodes that can be opened."""
    return "" if isinstance(item, Group) or item.is_call else item.origin.source


def _path(item: Item) -> str:
    return item.origin.module if isinstance(item, OpNode) else item.path


def _end(item: Item) -> str:
    """Return the path of the last module of an item."""
    return _end(item.items[-1]) if isinstance(item, Group) and item.kind in ("run", "turn") else _path(item)


def _class(item: Item) -> str:
    return item.origin.module_class if isinstance(item, OpNode) else item.module_class


def _seen_from(outer: str, path: str) -> str:
    return path[len(outer) :].removeprefix(".") if is_within(path, outer) else path
