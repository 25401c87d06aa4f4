"""Validate a graph against torch's operators: report violated rules, and what cannot be checked."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.shapes.open_sizes import Points
from torch_ir.errors import GraphError, LimitError, SerializationError, VersionWarning
from torch_ir.ir import IR, Limits, OpNode
from torch_ir.ir.checks.work import working
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ops.effects import writes_in_place
from torch_ir.safety.attributes import bind_positions, check_names, check_types
from torch_ir.safety.in_place_writes import wrong_writes
from torch_ir.safety.known_operators import Operators
from torch_ir.safety.results import check_results
from torch_ir.safety.torch_versions import Changes

_FINE, _OPAQUE, _DECLARED = "fine", "opaque", "declared"


@dataclass
class Report:
    """Result of a validation: what was checked, and what could not be."""

    nodes: int = 0
    opaque: Counter[str] = field(default_factory=Counter)  # by op_type: unknown operators
    declared: Counter[str] = field(default_factory=Counter)  # by op_type: shapes are taken from the file
    changes: Changes | None = None  # of operators, if another version of torch wrote the file

    def count(self, node: OpNode, verdict: str) -> None:
        self.nodes += 1
        if verdict is not _FINE:
            (self.opaque if verdict is _OPAQUE else self.declared)[node.op_type] += 1


def validate_ir(ir: IR, limits: Limits = Limits(), *, trusted: bool = False) -> bool:
    """Return True, or raise a SerializationError that names the first violated rule and its place.

    Shapes and dtypes are inferred and compared unless the graph is `trusted`; everything else is always checked.
    """
    require_graph(ir, "validate_ir")
    report = Report()
    with working(ir):
        refuse(examine(ir, report, limits, trusted=trusted), report)
    return True


def validate_file(ir: IR) -> None:
    """Validate a graph if it was read from a file, before something else is made of it; a trusted one is not."""
    if ir.limits is not None:
        validate_ir(ir, ir.limits)


def refuse(errors: Iterator[SerializationError], report: Report) -> None:
    """Raise the first of the errors; without any, warn about operators that another version of torch changed."""
    for error in errors:
        raise error
    if report.changes and report.changes.found:
        warnings.warn(VersionWarning(str(report.changes)), stacklevel=3)


def examine(
    ir: IR, report: Report, limits: Limits = Limits(), *, trusted: bool = False
) -> Iterator[SerializationError]:
    """Yield every violation, in order, and fill the report."""
    try:
        ir.check(limits)
    except GraphError as error:
        yield SerializationError.of(error)
    else:
        yield from examine_operators(ir, report, trusted=trusted)


def examine_operators(ir: IR, report: Report, *, trusted: bool) -> Iterator[SerializationError]:
    """Yield the violations of a graph whose structure was already checked."""
    report.changes = Changes(ir)
    operators = Operators(report.changes)
    is_named = all(node.has_named_args for node in ir.all_nodes())  # otherwise a copy gets names
    chosen: dict[IR, Points] = {}
    for place, graph, around in _graphs(ir if is_named else ir.clone(), "$"):
        judge = _Judge(None if trusted else Shapes(graph, around, chosen), operators, report.changes)
        for index, node in enumerate(graph.nodes):
            try:
                report.count(node, judge.verdict(node))
            except LimitError as error:  # which every other node would exceed, too
                yield error
                return
            except GraphError as error:
                yield SerializationError.of(error, f"{place}.nodes[{index}]")
        if judge.writes and is_named:  # a file of the documented format cannot list mutations
            for index, wrong in wrong_writes(graph):
                yield SerializationError.of(wrong, f"{place}.nodes[{index}]")


def _graphs(ir: IR, place: str, around: Sequence[IR] = ()) -> Iterator[tuple[str, IR, Sequence[IR]]]:
    """Yield a graph and its functions, each with its JSON path and the graphs around it."""
    yield place, ir, around
    for name, body in ir.functions.items():
        yield from _graphs(body, f"{place}.functions.{name}", (*around, ir))


class _Judge:
    """Verdicts on the nodes of one graph, memoised by form."""

    def __init__(self, shapes: Shapes | None, operators: Operators, changes: Changes) -> None:
        self.writes = False  # whether any node writes in place
        self._operators = operators
        self._changes = changes
        self._shapes = shapes  # None for a trusted graph
        self._known: dict[Any, str] = {}

    def verdict(self, node: OpNode) -> str:
        key = self._key(node)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._judged(node)
        return found

    def _key(self, node: OpNode) -> Any:
        """Return all that a verdict depends on."""
        call = (node.computation, node.is_layer)
        if self._shapes is None:
            return call
        read = tuple([(tensor.shape, tensor.dtype, tensor.stride) for tensor in node.inputs])
        return call, read, tuple([(tensor.shape, tensor.dtype) for tensor in node._outputs])

    def _judged(self, node: OpNode) -> str:
        operator = self._operators.of(node)
        if operator is None:
            return _FINE if node.is_call else _OPAQUE
        bind_positions(node)
        self.writes = self.writes or writes_in_place(node)
        try:
            check_names(node, operator)
        except GraphError as error:
            if not self._changes.excuse(node, str(error)):
                raise
            return _DECLARED
        check_types(node, operator)
        self._changes.note_new(node, operator)
        return _FINE if self._shapes is None or check_results(node, self._shapes) else _DECLARED
