"""Prepare a graph for a format that has functions: each called function is complete without its caller.

A body reads sizes of the graph around it; alone, it must get each of them from a dimension of one of its inputs. Calls
of other bodies are inlined, and so are calls in branches and loops.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from torch_ir.analysis.dependencies.slices import sizes_of
from torch_ir.errors import ConversionError
from torch_ir.ir import IR, OpNode, Symbol
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ir.regroup.functions import FUSED, called_by, calls_by_function, inline_all, with_calls_open
from torch_ir.ir.regroup.shared_functions import structure
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ops.prepare_run import has_body_alone, with_calls_inline, with_operators

FUNCTIONS = ("none", "blocks", "all")
Made = TypeVar("Made")


def with_functions(ir: IR, kept: str) -> IR:
    """Return a copy in which each function that is still called declares the sizes that it reads.

    `kept` selects the functions: `none`, `blocks` (all but those of fused operators), or `all`.
    """
    if kept not in FUNCTIONS:
        raise ConversionError(f"unknown functions={kept!r:.40}; expected {', '.join(FUNCTIONS)}")
    if kept == "none":
        return with_calls_inline(ir)
    given = with_operators(ir)
    copy = (given if kept == "all" else with_calls_open(given, _is_fused)).clone()
    is_given = all(symbol.tensor in copy.graph_inputs for symbol in copy.symbols.values())  # none is decided by data
    _prepare(copy, copy.symbols if is_given else {}, copy.constraints)
    return copy


def calls_of(ir: IR) -> list[OpNode]:
    """Return the calls of functions; a call that an operator or executor computes is an ordinary node."""
    return [node for node in ir.nodes if has_body_alone(node)]


class ConvertedFunctions(Generic[Made]):
    """The functions of one module or file: each body is converted once, and equal bodies are one function."""

    def __init__(self, convert: Callable[[IR, str, str, Mapping[str, Made]], Made], taken: set[str]) -> None:
        """Set what converts a body, given a free name, the op_type of its calls, and the functions that it calls."""
        self._convert = convert
        self._names = taken
        self._made: dict[Hashable, Made] = {}

    def __iter__(self) -> Iterator[Made]:
        """Iterate over the functions, each after those that it calls."""
        return iter(self._made.values())

    def called_by(self, ir: IR) -> dict[str, Made]:
        """Convert the functions that a graph calls; return them by their names in it."""
        op_types = {str(call.attrs["function"]): call.op_type for call in calls_of(ir)}
        return {name: self._of(ir.functions[name], name, op_type) for name, op_type in op_types.items()}

    def _of(self, body: IR, name: str, op_type: str) -> Made:
        kind = (op_type, structure(body))
        if kind not in self._made:
            called = self.called_by(body)
            self._made[kind] = self._convert(body, fresh(name, self._names), op_type, called)
        return self._made[kind]


def _is_fused(node: OpNode) -> bool:
    return has_body_alone(node) and node.op_type.startswith(FUSED)


def _prepare(ir: IR, symbols: Mapping[str, Symbol], constraints: Sequence[str]) -> None:
    called, whole = calls_by_function(ir), dict[str, dict[str, Symbol]]()
    for name in called_by(ir.nodes):
        body = ir.functions[name]
        sizes = _sizes(body, symbols) if name in called else None
        if sizes is None:
            for graph in body.all_graphs():  # in branches and loops too
                inline_all(graph, has_body_alone)
        else:
            _prepare(body, symbols, constraints)
            whole[name] = sizes
    inline_all(ir, lambda call: has_body_alone(call) and call.attrs["function"] not in whole)
    for kept, sizes in whole.items():
        body = ir.functions[kept]
        body.symbols.update(sizes)
        body.constraints = [text for text in constraints if names_in(text) <= sizes.keys()]
        body.model_name, body.device = kept, ir.device


def _sizes(body: IR, symbols: Mapping[str, Symbol]) -> dict[str, Symbol] | None:
    """Return the sizes that a body reads, bound to its inputs; None if an input does not have one as a dimension."""
    found: dict[str, Symbol] = {}
    for tensor in body.graph_inputs:
        for at, dim in enumerate(tensor.shape):
            if dim in symbols and dim not in found:
                found[str(dim)] = replace(symbols[str(dim)], tensor=tensor, dim=at)
    return found if sizes_of(body.nodes, body.tensors(), body.functions.values()) <= found.keys() else None
