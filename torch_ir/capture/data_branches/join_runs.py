"""Join the graphs of several runs of one model: common nodes stay, differences become branches of `cond`.

    if x.sum() > 0: y = x + 1          gt = aten.gt.Scalar(...)
    else:           y = x - 1    ->    y = higher_order.cond(pred=gt, true_fn=@if_true, false_fn=@if_false, ...)

Runs with the same outcomes up to a decision have the same nodes up to there, with the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torch_ir.errors import ConversionError
from torch_ir.ir import IR, FunctionRef, MemoryFormat, OpNode, Symbol, TensorMeta
from torch_ir.ops.guards import DECISION

Outcomes = tuple[bool, ...]
_ROW_MAJOR = "aten.contiguous.default"


class WaysDifferError(ConversionError):
    """Runs with the same outcomes have different nodes."""


@dataclass(frozen=True)
class Way:
    """The outcomes of a run, and its graph, which guards each with a decision node."""

    taken: Outcomes
    ir: IR


def join(ways: Sequence[Way]) -> IR:
    """Return one graph for all these paths; a decision with only one known outcome stays guarded."""
    if len(ways) == 1:
        return ways[0].ir
    first = ways[0].ir
    _check_results(ways)
    params = _joined_params(ways)
    written = list(dict.fromkeys(target.name for way in ways for target, _ in way.ir.mutations))
    joiner = _Joiner(written)
    region = _Region()
    region.tensors.update((tensor.name, tensor.copy()) for tensor in (*first.graph_inputs, *params))
    results = joiner.fill(region, ways, 0, 0)
    count = len(first.graph_outputs)
    bound = {symbol.name: symbol for way in ways for symbol in way.ir.symbols.values()}
    return IR(
        region.nodes,
        [region.tensors[tensor.name] for tensor in first.graph_inputs],
        results[:count],
        params=[region.tensors[tensor.name] for tensor in params],
        mutations=[(region.tensors[name], value) for name, value in zip(written, results[count:], strict=True)],
        functions=region.functions,
        symbols=region.symbols(bound.values()),
        constraints=dict.fromkeys(text for way in ways for text in way.ir.constraints),
        input_tree=first.input_tree,
        output_tree=first.output_tree,
        model_name=first.model_name,
        pytorch_version=first.pytorch_version,
        device=first.device,
        fixed_layout=next((way.ir.fixed_layout for way in ways if way.ir.fixed_layout), ""),
        modules={path: kind for way in ways for path, kind in way.ir.modules.items()},
    ).check()


@dataclass
class _Region:
    """A graph or branch under construction: its nodes, and the tensors that they may read, by name."""

    outer: _Region | None = None
    nodes: list[OpNode] = field(default_factory=list)
    tensors: dict[str, TensorMeta] = field(default_factory=dict)
    inputs: dict[str, TensorMeta] = field(default_factory=dict)  # of a branch: tensors of the enclosing graph
    functions: dict[str, IR] = field(default_factory=dict)

    def tensor(self, name: str) -> TensorMeta:
        if name not in self.tensors:
            if self.outer is None:
                raise WaysDifferError(
                    f"two paths through the model differ in {name!r} before their first different outcome"
                )
            self.tensors[name] = self.inputs[name] = _bare(self.outer.tensor(name))
        return self.tensors[name]

    def add(self, node: OpNode, functions: dict[str, IR]) -> None:
        """Add a copy of a node, with the functions that it refers to."""

        def copied(tensor: TensorMeta) -> TensorMeta:
            if tensor.producer is node:
                self.tensors[tensor.name] = tensor.copy()
                return self.tensors[tensor.name]
            return self.tensor(tensor.name)

        self.nodes.append(node.copy(copied))
        named = [value for value in node.attrs.values() if isinstance(value, FunctionRef)]
        self.functions.update((name, functions[name].clone()) for name in named)

    def symbols(self, known: Iterable[Symbol]) -> list[Symbol]:
        """Return the symbols that are bound in this region."""
        made = {tensor.name: tensor for tensor in self.tensors.values() if tensor.name not in self.inputs}
        return [
            replace(symbol, tensor=made[symbol.tensor.name])
            for symbol in known
            if symbol.tensor is not None and symbol.tensor.name in made
        ]


class _Joiner:
    """Joins paths region by region; every branch returns all results of the model and new values of buffers."""

    def __init__(self, written: Sequence[str]) -> None:
        self.written = written
        self.count = 0

    def fill(self, region: _Region, ways: Sequence[Way], start: int, depth: int) -> list[TensorMeta]:
        """Add the nodes of these paths from `start` on to a region; return the results."""
        ir = ways[0].ir
        end = _decision(ways[0], depth)
        _check_alike(ways, start, end)
        for node in ir.nodes[start:end]:
            region.add(node, ir.functions)
        if end == len(ir.nodes):
            return [region.tensor(name) for name in self._results(ir)]
        kept = [[way for way in ways if way.taken[depth] is outcome] for outcome in (True, False)]
        if not all(kept):
            region.add(ir.nodes[end], ir.functions)
            return self.fill(region, ways, end + 1, depth + 1)
        return self._part(region, ir.nodes[end], kept, end + 1, depth + 1)

    def _part(
        self, region: _Region, decision: OpNode, kept: Sequence[Sequence[Way]], start: int, depth: int
    ) -> list[TensorMeta]:
        """Add a call of `cond` with a function for each outcome."""
        number, self.count = self.count, self.count + 1
        branches = [_Region(region) for _ in kept]
        given = [self.fill(branch, ways, start, depth) for branch, ways in zip(branches, kept, strict=True)]
        _agree(branches, given)
        operands = dict.fromkeys(name for branch in branches for name in branch.inputs)
        names = [f"if_true_{number}", f"if_false_{number}"]
        for name, branch, results, ways in zip(names, branches, given, kept, strict=True):
            inputs = [branch.tensor(operand) for operand in operands]
            bound = {symbol.name: symbol for way in ways for symbol in way.ir.symbols.values()}
            region.functions[name] = IR(
                branch.nodes, inputs, results, functions=branch.functions, symbols=branch.symbols(bound.values())
            )
        outputs = [_bare(tensor, f"branch_{number}_{index}") for index, tensor in enumerate(given[0])]
        region.tensors.update((tensor.name, tensor) for tensor in outputs)
        region.nodes.append(
            OpNode(
                f"branch_{number}",
                "higher_order.cond",
                [region.tensor(decision["value"].name), *map(region.tensor, operands)],
                outputs,
                {"true_fn": FunctionRef(names[0]), "false_fn": FunctionRef(names[1])},
                args=["pred", *(f"operands.{index}" for index in range(len(operands)))],
                origin=decision.origin,
            )
        )
        return outputs

    def _results(self, ir: IR) -> list[str]:
        new = {target.name: value.name for target, value in ir.mutations}
        return [*(tensor.name for tensor in ir.graph_outputs), *(new.get(name, name) for name in self.written)]


def _decision(way: Way, depth: int) -> int:
    """Return the position of decision number `depth` of a path; past its last node if there is none."""
    if depth == len(way.taken):
        return len(way.ir.nodes)
    places = [index for index, node in enumerate(way.ir.nodes) if _is_explored(node)]
    if len(places) != len(way.taken):
        raise ConversionError("a decision on data is missing in the graph")
    return places[depth]


def _is_explored(node: OpNode) -> bool:
    return node.op_type == DECISION and isinstance(node["assumed"], bool)


def _check_alike(ways: Sequence[Way], start: int, end: int) -> None:
    """Check that runs with the same outcomes have the same nodes."""
    expected = [_signature(node) for node in ways[0].ir.nodes[start:end]]
    for way in ways[1:]:
        if [_signature(node) for node in way.ir.nodes[start:end]] != expected:
            raise WaysDifferError("two runs of the model differ before their first different outcome; is it random?")


def _signature(node: OpNode) -> object:
    tensors = [(tensor.name, tensor.shape, tensor.dtype) for tensor in (*node.inputs, *node.outputs)]
    return node.name, node.op_type, tensors, node.attrs


def _check_results(ways: Sequence[Way]) -> None:
    """Check that all paths return the same structure, shapes and dtypes."""
    forms = [(way.ir.output_tree, [_form(tensor) for tensor in way.ir.graph_outputs]) for way in ways]
    for form in forms[1:]:
        if form != forms[0]:
            shown = [", ".join(f"{dtype}{list(shape)}" for shape, dtype in tensors) for _, tensors in (forms[0], form)]
            raise ConversionError(
                f"the model returns different shapes or dtypes for different outcomes: {' and '.join(shown)}"
            )


def _form(tensor: TensorMeta) -> tuple[tuple[int | str, ...], str]:
    return tensor.shape, tensor.dtype


def _agree(branches: Sequence[_Region], given: Sequence[list[TensorMeta]]) -> None:
    """Make both branches return each result with the same strides: row-major, if they differ."""
    for index, pair in enumerate(zip(*given, strict=True)):
        if len({tensor.stride for tensor in pair}) > 1:
            for branch, results in zip(branches, given, strict=True):
                results[index] = _row_major(branch, results[index])


def _row_major(branch: _Region, tensor: TensorMeta) -> TensorMeta:
    name = f"{tensor.name}_contiguous"
    made = TensorMeta(name, tensor.shape, tensor.dtype)
    attrs = {"memory_format": MemoryFormat("contiguous_format")}
    branch.nodes.append(OpNode(name, _ROW_MAJOR, [tensor], [made], attrs, args=["self"]))
    branch.tensors[name] = made
    return made


def _joined_params(ways: Sequence[Way]) -> list[TensorMeta]:
    """Return the weights of all paths; constants with the same name but other values are renamed."""
    joined: dict[str, TensorMeta] = {}
    for way in ways:
        for tensor in way.ir.params:
            name, number = tensor.name, 1
            while tensor.name in joined and joined[tensor.name].param != tensor.param:
                tensor.name, number = f"{name}_{number}", number + 1
                assert tensor.param is not None
                tensor.param = replace(tensor.param, keys=(tensor.name,))
            joined.setdefault(tensor.name, tensor)
    return list(joined.values())


def _bare(tensor: TensorMeta, name: str | None = None) -> TensorMeta:
    """Return the same description, without the role of a weight."""
    copy = tensor.copy(name)
    copy.param = None
    return copy
