"""Run all ranks of a sharded graph in this process, node by node: for debugging, without process groups.

Every rank computes a node before any computes the next, so that a collective has the values of all ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_ir.errors import ExecutionError, first_line
from torch_ir.ir import IR, Expr, FunctionRef, OpNode, TensorMeta, evaluate
from torch_ir.ir.sizes.symbols import Symbol, solve, symbols_by_tensor
from torch_ir.ops.calling import keywords
from torch_ir.ops.effects import is_collective
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.prepare_run import check_operators, present
from torch_ir.ops.schema import Operator, find_operator
from torch_ir.ops.torch_types import to_torch
from torch_ir.run.compiled_plan import Sizes, given_sizes
from torch_ir.run.executor import read_sizes
from torch_ir.run.ranks import Rank
from torch_ir.run.stored import Weight, loaded
from torch_ir.run.weight_files import fit_weights

Values = list[Any]  # of one tensor by rank, or of one rank by tensor
_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def ranks_of(ir: IR) -> list[Rank]:
    """Return all ranks of a graph's mesh; the last axis varies fastest."""
    places = itertools.product(*map(range, ir.mesh.values()))
    return [Rank(dict(zip(ir.mesh, place, strict=True))) for place in places]


def run_in_lockstep(ir: IR, inputs: Sequence[Any], weights: Mapping[str, Weight]) -> list[tuple[Any, ...]]:
    """Return the outputs of every rank, for whole inputs and whole weights."""
    left = left_in_lockstep(ir, inputs, weights)
    return [tuple(values[: len(ir.graph_outputs)]) for values in left]


def left_in_lockstep(ir: IR, inputs: Sequence[Any], weights: Mapping[str, Weight]) -> list[Values]:
    """Return the outputs of every rank, followed by the new values of mutated tensors."""
    check_operators(ir.check())
    ranks = ranks_of(ir)
    given: dict[TensorMeta, Values] = {}
    for tensor, value in zip(ir.graph_inputs, inputs, strict=True):
        given[tensor] = [rank.piece(ir, tensor, value) for rank in ranks]
    fitted = [fit_weights(ir, rank.weights(ir, weights), rank.constants()) for rank in ranks]
    for param, *values in zip(ir.params, *fitted, strict=True):
        given[param] = [loaded(value) for value in values]
    sizes = read_sizes(ir, [given[tensor][0] for tensor in ir.graph_inputs])
    with NeutralState():
        made = _Lockstep(ir.mesh, ranks, [dict(sizes) for _ in ranks]).run(ir, given)
    return [[values[at] for values in made] for at in range(len(ranks))]


class _Lockstep:
    """The values of all ranks, at the sizes of one run: those of the inputs, and on each rank those of its data."""

    def __init__(self, mesh: Mapping[str, int], ranks: Sequence[Rank], sizes: list[Sizes]) -> None:
        self.mesh, self.ranks, self.sizes = mesh, ranks, sizes

    def run(self, ir: IR, given: dict[TensorMeta, Values]) -> list[Values]:
        values = dict(given)
        bound = symbols_by_tensor(ir.symbols.values())
        for node in ir.nodes:
            made = self._node(ir, node, {name: values[t] for name, t in zip(node.args, node.inputs, strict=True)})
            values.update(zip(node.outputs, made, strict=True))
            for tensor in node.outputs:
                for symbol in bound.get(tensor, ()):
                    self._bind(symbol, tensor, values[tensor])
        return [values[tensor] for tensor in ir.returns.inputs]

    def _bind(self, symbol: Symbol, tensor: TensorMeta, values: Values) -> None:
        """Bind a size that depends on the data of each rank."""
        expression = symbol.name if symbol.dim is None else tensor.shape[symbol.dim]
        for sizes, value in zip(self.sizes, values, strict=True):
            found = solve(expression, symbol.name, value if symbol.dim is None else value.shape[symbol.dim], sizes)
            if found is None or not symbol.admits(found):
                raise ExecutionError(f"{tensor.name!r} has a size that {symbol.name} cannot be: {symbol.range}")
            sizes[symbol.name] = found

    def _node(self, ir: IR, node: OpNode, inputs: dict[str, Values]) -> list[Values]:
        operator = find_operator(node.op_type)
        if is_collective(node.op_type):
            return [self._collective(node, next(iter(inputs.values())))]
        if operator is None and node.is_call:
            body = ir.functions[node.attrs["function"]]
            operands = [inputs[tensor.name] for tensor in body.graph_inputs]
            inner = [given_sizes(body, [each[at] for each in operands], known) for at, known in enumerate(self.sizes)]
            return _Lockstep(self.mesh, self.ranks, inner).run(
                body, dict(zip(body.graph_inputs, operands, strict=True))
            )
        if operator is None or any(isinstance(value, FunctionRef) for value in node.attrs.values()):
            raise ExecutionError(f"{node!r} cannot run in lockstep; run the ranks as processes")
        results = [
            self._called(operator, node, {name: values[at] for name, values in inputs.items()}, self.sizes[at])
            for at in range(len(self.ranks))
        ]
        return [list(values) for values in zip(*results, strict=True)]

    def _called(self, operator: Operator, node: OpNode, inputs: dict[str, Any], sizes: Sizes) -> Any:
        def value(attribute: Any) -> Any:
            return evaluate(attribute, sizes) if isinstance(attribute, Expr) else to_torch(attribute)

        try:
            return present(operator(**keywords(inputs, node.attrs, value)))
        except Exception as error:  # anything that an operator raises
            raise ExecutionError(f"{node!r}: {first_line(error)}") from error

    def _collective(self, node: OpNode, values: Values) -> Values:
        kind = node.op_type.split(".")[1]
        if kind == "wait_tensor":
            return values
        found: Values = [None] * len(values)
        for members in self._groups(node["group_name"]):
            pieces = _exchanged(kind, node, [values[at] for at in members])
            for at, piece in zip(members, pieces, strict=True):
                found[at] = piece
        return found

    def _groups(self, axis: str) -> list[list[int]]:
        """Return the groups of ranks that communicate along an axis."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for at, rank in enumerate(self.ranks):
            others = tuple(number for name, number in rank.numbers.items() if name != axis)
            groups.setdefault(others, []).append(at)
        return list(groups.values())


def _exchanged(kind: str, node: OpNode, values: Values) -> Values:
    """Return what each rank has after a collective of these values."""
    if kind == "all_gather_into_tensor":
        return [torch.cat(values) for _ in values]
    if kind == "broadcast":
        return [values[node["src"]].clone() for _ in values]
    if kind == "all_to_all_single":
        sent = [value.split(node["input_split_sizes"]) for value in values]
        return [torch.cat([pieces[at] for pieces in sent]) for at in range(len(values))]
    reduced = values[0]
    for value in values[1:]:
        reduced = _REDUCTIONS[node["reduce_op"]](reduced, value)
    if kind == "reduce_scatter_tensor":
        return list(reduced.chunk(len(values)))
    return [reduced.clone() for _ in values]
