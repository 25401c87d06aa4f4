"""The data of a page: graphs as tables, with interned texts.

A graph has columns for its tensors and nodes, and a list of groups, the graph itself last. An item of a group is the
number of a node, or `-1 - n` for group `n`. Texts are indices into the table of texts; amounts are numbers, or texts if
a graph has open sizes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch_ir.analysis.cost_model.node_costs import Cost, Work, added, cost, sized
from torch_ir.analysis.dependencies.over_weights import over_weights
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.draw.assertions import checks_in
from torch_ir.draw.families import Families
from torch_ir.draw.node_texts import DECISION, OPAQUE
from torch_ir.explorer.hierarchy import Group, Item, hierarchy, name_of
from torch_ir.ir import IR, FunctionRef, OpNode, Param, TensorMeta
from torch_ir.ir.graph.attr_order import ordered
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import STAGE, called_by
from torch_ir.ir.text.printer import print_value

_DECODE = "decode"  # the function of a language model whose main graph is its prefill


@dataclass(frozen=True)
class Marked:
    """Marks of the nodes of a graph."""

    placeholders: Collection[str] = ()
    changes: Mapping[str, str] = field(default_factory=dict)  # status of nodes in a comparison, by name
    functions: Mapping[str, Marked] = field(default_factory=dict)

    def kind_of(self, node: OpNode) -> str:
        if node.op_type.startswith(DECISION):
            return "decision"
        return "placeholder" if node.name in self.placeholders or node.op_type.startswith(OPAQUE) else "op"

    def inside(self, function: str) -> Marked:
        return self.functions.get(function, Marked())

    def of(self, node: OpNode) -> Hashable:
        """Return what must be equal for nodes to be shown as one; a different name does not count."""
        change = self.changes.get(node.name)
        return self.kind_of(node), None if change == "renamed" else change


class Values(Protocol):
    """Values of a runtime, compared with a golden pack: `torch_ir.Comparison` is one."""

    @property
    def errors(self) -> Mapping[str, float]:
        """The largest error of each tensor that was compared, by name."""

    @property
    def differing(self) -> Sequence[str]:
        """The names of the tensors that are wrong."""


@dataclass(frozen=True)
class Beside:
    """What a page shows beside the nodes: values of runtimes, generated Python, and lines of the model's source."""

    values: Mapping[str, Values] = field(default_factory=dict)
    python: Mapping[str, str] = field(default_factory=dict)  # by the name of a tensor
    lines: Mapping[str, str] = field(default_factory=dict)  # by source, such as `model.py:7`


class Texts:
    """Interned texts; a text is represented by its index."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def table(self) -> list[str]:
        return list(self._numbers)


class Side:
    """The graphs of one IR, including its functions, as records."""

    def __init__(
        self, ir: IR, texts: Texts, title: str, sizes: Mapping[str, int], marked: Marked, beside: Beside | None = None
    ) -> None:
        self.families = Families()
        self._texts = texts
        self._beside = beside or Beside()
        self._weights: dict[str, float] = {}
        self._graphs: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}  # the nodes of all graphs are numbered on; by tensor, such as `block/linear`
        self._numbered = 0
        self._ir = sized(ir, sizes)
        self._title = title
        self._entries = self._entry_points(marked)

    def record(self) -> dict[str, Any]:
        return {
            "title": self._texts(self._title or self._ir.model_name or "graph"),
            "torch": self._texts(self._ir.pytorch_version),
            "sizes": [self._texts(symbol.range) for symbol in self._ir.symbols.values()],
            "mesh": [self._texts(f"{axis} = {size}") for axis, size in self._ir.mesh.items()],
            "entries": [[self._texts(name), number] for name, number in self._entries],
            "weights": self._weights,
            "graphs": self._graphs,
            "runtimes": [self._runtime(name, values) for name, values in self._beside.values.items()],
            "python": [self._code(self._beside.python.get(node.outputs[0].name)) for node in self._named()],
            "lines": [self._code(self._beside.lines.get(node.origin.source)) for node in self._named()],
        }

    def _named(self) -> list[OpNode]:
        """Return the nodes that code may stand beside: none if there is no code."""
        return [node for node in self._ir.nodes if node.outputs] if self._beside.python or self._beside.lines else []

    def _code(self, text: str | None) -> int:
        return -1 if text is None else self._texts(text)

    def _runtime(self, name: str, values: Values) -> list[Any]:
        """Return the error of each node that a runtime computed, -1 if it is not finite, and the wrong ones.

        The error of a node inside a function is the largest of all calls, `block/linear@0` and so on.
        """
        errors: dict[int, float] = {}
        for tensor, error in values.errors.items():
            place = self._place(tensor)
            if place is not None:
                one, other = errors.get(place, 0.0), error if math.isfinite(error) else -1.0
                errors[place] = -1.0 if min(one, other) < 0 else max(one, other)
        wrong = dict.fromkeys(place for tensor in values.differing if (place := self._place(tensor)) is not None)
        return [self._texts(name), list(errors), list(errors.values()), list(wrong)]

    def _place(self, tensor: str) -> int | None:
        """Return the number of the node that makes a value, by its name in a golden pack."""
        return self._places.get(tensor, self._places.get(tensor.rpartition("@")[0]))

    def _entry_points(self, marked: Marked) -> list[tuple[str, int]]:
        """Return the graph itself, and the functions that no node calls, such as `decode`."""
        ir = self._ir
        called = set(called_by(ir.nodes))
        own = self._graph(ir, cost(ir), marked, set())
        free = [(name, number) for name, number in self._graphs[own]["functions"].items() if name not in called]
        return [(_name_beside({name for name, _ in free}), own), *free] if ir.nodes or not free else free

    def _graph(self, ir: IR, costs: Cost, marked: Marked, weights: Collection[str], path: str = "") -> int:
        """Record a graph after its functions, and return its number; inputs named in `weights` are shown as such."""
        given = {tensor for tensor in ir.graph_inputs if tensor.name in weights}
        callers = _callers(ir)
        functions = {
            name: self._graph(
                body,
                costs.functions[name],
                marked.inside(name),
                _weights_of(body, callers.get(name, ()), given),
                f"{path}{name}/",
            )
            for name, body in ir.functions.items()
        }
        for place, node in enumerate(ir.nodes, self._numbered):
            self._places.update((path + tensor.name, place) for tensor in node.outputs)
        self._numbered += len(ir.nodes)
        self._graphs.append({**_Graph(self, ir, costs, marked, given).record(), "functions": functions})
        return len(self._graphs) - 1

    def text(self, text: str) -> int:
        return self._texts(text)

    def placement(self, tensor: TensorMeta) -> str:
        """Return the placement of a tensor: `shard(0)`, or with several axes `tp: shard(0), dp: replicate`."""
        laid = tensor.placement or ()
        has_axes = len(laid) > 1 and len(laid) == len(self._ir.mesh)
        named = zip(self._ir.mesh, laid, strict=True) if has_axes else ()
        return ", ".join(f"{axis}: {how}" for axis, how in named) or ", ".join(laid)

    def amounts(self, work: Work) -> list[Dim]:
        """Return amounts of work for the page; expressions also get a number, for comparison."""
        found = list(work.amounts())
        for amount in found:
            if isinstance(amount, str) and amount not in self._weights:
                self._weights[amount] = min(weight_of(amount), sys.float_info.max)
        return found


class _Graph:
    """Builds the tables of one graph."""

    def __init__(self, side: Side, ir: IR, costs: Cost, marked: Marked, weights: Collection[TensorMeta]) -> None:
        self._side = side
        self._weights = weights
        self._ir = ir
        self._marked = marked
        self._work: dict[OpNode, Work] = dict(zip(ir.nodes, costs.nodes, strict=True))
        self._total = costs
        self._once = set(over_weights(ir))
        self._nodes = {node: number for number, node in enumerate(ir.nodes)}
        self._tensors = {tensor: number for number, tensor in enumerate(ir.tensors())}
        self._checks = checks_in(ir)
        self._groups: list[dict[str, Any]] = []

    def record(self) -> dict[str, Any]:
        self._group(hierarchy(self._ir, self._marked.of), "")
        return {
            "name": self._side.text(self._ir.model_name),
            "inputs": [self._tensors[tensor] for tensor in self._ir.graph_inputs if tensor not in self._weights],
            "outputs": [self._tensors[tensor] for tensor in self._ir.graph_outputs],
            "changes": [[self._tensors[target], self._tensors[value]] for target, value in self._ir.mutations],
            "tensors": _columns(map(self._tensor, self._tensors)),
            "nodes": _columns(map(self._node, self._ir.nodes)),
            "once": [self._nodes[node] for node in self._ir.nodes if node in self._once],
            "groups": self._groups,
        }

    def _tensor(self, tensor: TensorMeta) -> dict[str, Any]:
        text = self._side.text
        param = Param((tensor.name,), "argument") if tensor in self._weights else tensor.param
        return {
            "name": text(tensor.name),
            "shape": text(_shape(tensor)),
            "dtype": text(tensor.dtype),
            "maker": -1 if tensor.producer is None else self._nodes[tensor.producer],
            "keys": text(" = ".join(param.keys)) if param else -1,
            "kind": text(param.kind) if param else -1,
            "placement": text(self._side.placement(tensor)) if tensor.placement else -1,
            "stride": -1 if tensor.stride is None else text(", ".join(map(str, tensor.stride))),
        }

    def _node(self, node: OpNode) -> dict[str, Any]:
        text, origin = self._side.text, node.origin
        change = self._marked.changes.get(node.name)
        return {
            "name": text(node.name),
            "op": text(node.op_type),
            "label": text(_label(node)),
            "family": text(self._side.families.of(node, self._ir.functions)),
            "kind": text(self._kind(node)),
            "args": [text(name) for name in node.args],
            "inputs": [self._tensors[tensor] for tensor in node.inputs],
            "outputs": [self._tensors[tensor] for tensor in node.outputs],
            "attrs": [
                [text(name), text(print_value(value))] for name, value in ordered(node.op_type, node.attrs).items()
            ],
            "calls": [
                [text(name), text(value)] for name, value in node.attrs.items() if isinstance(value, FunctionRef)
            ],
            "module": text(origin.module),
            "call": origin.call,
            "class": text(origin.module_class),
            "source": text(origin.source),
            "function": text(origin.function),
            "origins": [] if node.origins == (node.name,) else [text(name) for name in node.origins],
            "work": self._side.amounts(self._work[node]),
            "change": -1 if change is None else text(change),
        }

    def _kind(self, node: OpNode) -> str:
        kind = self._marked.kind_of(node)
        return "check" if kind == "op" and node in self._checks else kind

    def _group(self, group: Group, outer: str) -> int:
        """Record a group after those inside, and return its number."""
        around = outer if group.kind in ("run", "turn") else group.path
        items = [self._item(item, around) for item in group.items]
        self._groups.append(
            {
                "kind": group.kind,
                "name": self._side.text(name_of(group, outer) if group.kind != "graph" else self._ir.model_name),
                "path": self._side.text(group.path),
                "class": self._side.text(group.module_class),
                "call": group.call,
                "items": items,
                "form": group.form,
                "chain": group.is_chain,
                "work": self._side.amounts(self._work_of(group)),
            }
        )
        return len(self._groups) - 1

    def _work_of(self, group: Group) -> Work:
        """Return the work of one run; of a group that is computed once, that of this one time."""
        if group.kind == "graph" and not self._once:
            return self._total
        each_run = [node for node in group.nodes if node not in self._once]
        return added(self._work[node] for node in each_run or group.nodes)

    def _item(self, item: Item, outer: str) -> int:
        return self._nodes[item] if isinstance(item, OpNode) else -1 - self._group(item, outer)


def _name_beside(functions: Collection[str]) -> str:
    """Return the name of the main graph beside further entry points."""
    names = ("prefill", "forward", "graph") if _DECODE in functions else ("forward", "graph")
    return next((name for name in names if name not in functions), "the graph itself")


def _callers(ir: IR) -> dict[str, list[OpNode]]:
    """Return the nodes that call or run each function."""
    found: dict[str, list[OpNode]] = {}
    for node in ir.nodes:
        for name in called_by([node]):
            found.setdefault(name, []).append(node)
    return found


def _weights_of(body: IR, callers: Iterable[OpNode], given: Collection[TensorMeta]) -> set[str]:
    """Return the inputs of a function that are weights in all of its calls."""
    found: dict[str, bool] = {}
    inputs = [tensor.name for tensor in body.graph_inputs]
    for node in callers:
        names = node.args if node.is_call else _operands(node, inputs)
        for name, tensor in zip(names, node.inputs, strict=True):
            found[name] = found.get(name, True) and (tensor.param is not None or tensor in given)
    return {name for name, is_weight in found.items() if is_weight}


def _operands(node: OpNode, inputs: list[str]) -> list[str]:
    """Return the inputs of a function for those of a node that runs it, such as `cond`: its operands, in order."""
    names = iter(inputs)
    return [next(names, "") if name.startswith("operands.") else "" for name in node.args]


def _columns(rows: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    """Convert rows of equal keys to columns, which are shorter."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    return columns


def _label(node: OpNode) -> str:
    """Return `add` for `aten.add.Tensor`, `Conv2d` for `torch.nn.Conv2d`, and the name of a pipeline stage."""
    if node.op_type == STAGE:
        return node.name
    if node.op_type.startswith(DECISION):
        return f"assumed {node.attrs.get('assumed')}"
    if node.is_call or node.is_layer or node.op_type.startswith(OPAQUE):
        return node.op_type.rpartition(".")[2]
    return node.op_type.split(".")[1] if "." in node.op_type else node.op_type


def _shape(tensor: TensorMeta) -> str:
    """Return the sizes separated by a multiplication sign; `scalar` if there are none."""
    dims = [str(dim) if isinstance(dim, int) or dim.isidentifier() else f"({dim})" for dim in tensor.shape]
    return "\N{MULTIPLICATION SIGN}".join(dims) or "scalar"
