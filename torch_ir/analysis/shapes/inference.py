"""Shape inference: shapes, dtypes and strides of an operator's outputs, from torch's rules without values or weights.

    shapes = Shapes(ir)
    shapes.results("aten.mm.default", {"self": x, "mat2": w}, {})     # [TensorMeta("", (2, 8), "float32")]
    wrong_shapes(ir)                                                  # nodes that contradict the graph

Results are cached for the whole process. If sizes are open, torch's rule is called at several sizes that the graph
allows, and each size of the result is an expression that matches all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, ClassVar

from torch_ir.analysis.dependencies.slices import names_of
from torch_ir.analysis.shapes.open_sizes import (
    Points,
    decided_by_data,
    edges_of,
    enclosing,
    expressed,
    points_of,
    products,
)
from torch_ir.analysis.shapes.shape_rules import Made, call_rule, own_rule
from torch_ir.analysis.shapes.shape_worker import WORKER
from torch_ir.errors import ExpressionError, ShapeError
from torch_ir.ir import IR, Dim, Expr, OpNode, TensorMeta, evaluate
from torch_ir.ir.checks.work import spend_tensors, spending
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ops.calling import mapped
from torch_ir.ops.effects import gives_new_values, is_forbidden
from torch_ir.ops.registry import executor_of
from torch_ir.ops.safe_shape_calls import is_safe_in_process, may_call_rule
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload

Sizes = Mapping[str, Any]
_MOST_KNOWN = 1 << 16  # results; cleared when full
_NUMBERS: Points = ({},)  # without open sizes, one call suffices


class Shapes:
    """Shape inference for the tensors of one graph; a function also reads the sizes of the graphs `around` it.

    `chosen` keeps the sizes at which rules are called, for all functions of a graph that does not change meanwhile.
    """

    known: ClassVar[dict[Any, list[Made] | str]] = {}

    def __init__(self, ir: IR, around: Sequence[IR] | None = None, chosen: dict[IR, Points] | None = None) -> None:
        self._ir = ir
        self._chosen = chosen
        self._around = enclosing() if around is None else around
        self._points: Points | None = None

    def results(
        self, op_type: str, inputs: Mapping[str, TensorMeta], attrs: Mapping[str, Any], hints: Sequence[Dim] = ()
    ) -> list[TensorMeta] | None:
        """Return the outputs of a call, as tensors without names; None if torch has no shape rule.

        Incompatible arguments raise ShapeError. `hints` are expressions to try for the sizes of the result.
        """
        found = self.at_points(op_type, inputs, attrs)
        if found is None:
            return None
        points, at_points = found
        if points is _NUMBERS:
            return [TensorMeta("", shape, dtype, stride=stride) for shape, dtype, stride in at_points[0]]
        known: list[Any] = [dim for tensor in inputs.values() for dim in (*tensor.shape, *(tensor.stride or ()))]
        known += [str(value) for value in values_in(attrs) if isinstance(value, Expr)]
        try:
            return self._expressed(op_type, at_points, [*hints, *known])
        except ShapeError:
            if not self.is_decided(inputs, attrs):
                raise
            return None  # as in `at_points`

    def at_points(
        self, op_type: str, inputs: Mapping[str, TensorMeta], attrs: Mapping[str, Any]
    ) -> tuple[Points, list[list[Made]]] | None:
        """Return the outputs of a call in numbers, at one or several choices of the open sizes; None without a rule."""
        operator = find_operator(op_type)
        if not isinstance(operator, OpOverload) or is_forbidden(op_type):
            return None
        points = self.points if _is_open(inputs.values(), attrs) else _NUMBERS
        at_points = []
        try:
            for point in points:
                rows = self._at(point, operator, inputs, attrs)
                if rows is None:
                    return None
                at_points.append(rows)
        except ShapeError:
            if not self.is_decided(inputs, attrs):
                raise
            return None  # data-dependent sizes may be compatible for reasons that the graph does not state
        return (points, at_points) if at_points else None

    @property
    def points(self) -> Points:
        """Sizes that the graph allows, at which rules are called."""
        if self._points is None:
            self._points = points_of(self._ir, self._around, self._chosen)
        return self._points

    @cached_property
    def decided(self) -> frozenset[str]:
        """The open sizes that depend on data."""
        return decided_by_data(self._ir, self._around)

    def is_decided(self, inputs: Mapping[str, TensorMeta], attrs: Mapping[str, Any]) -> bool:
        """Whether a call reads a data-dependent size."""
        return not self.decided.isdisjoint(_names(inputs.values(), attrs))

    def of(self, node: OpNode) -> list[TensorMeta] | None:
        """Return the outputs of a node; None if torch has no shape rule."""
        if executor_of(node) is not None or gives_new_values(node):
            return None
        declared = [dim for tensor in node.outputs for dim in (*tensor.shape, *(tensor.stride or ()))]
        return self.results(node.op_type, dict(zip(node.args, node.inputs, strict=True)), node.attrs, declared)

    def confirms(self, node: OpNode) -> bool:
        """Whether torch's shape rule gives exactly the declared outputs of a node; no kernel runs on others."""
        try:
            made = self.of(node)
        except ShapeError:
            return False
        return made is not None and len(made) == len(node.outputs) and all(map(self.agree, node.outputs, made))

    def agree(self, one: TensorMeta, other: TensorMeta) -> bool:
        """Whether two tensors have equal shape and dtype, however their sizes are written."""
        if one.dtype != other.dtype or len(one.shape) != len(other.shape):
            return False
        return one.shape == other.shape or all(map(self.is_same_size, one.shape, other.shape))

    def is_same_size(self, one: Any, other: Any) -> bool:
        """Whether two sizes are equal at all sizes that the graph allows."""
        if one == other or (isinstance(one, int) and isinstance(other, int)):
            return bool(one == other)
        if not self.points or any(evaluate(one, point) != evaluate(other, point) for point in self.points):
            return False
        with suppress(ExpressionError, ZeroDivisionError, OverflowError):  # which has no value there
            return all(evaluate(one, point) == evaluate(other, point) for point in self._edges)
        return True

    @cached_property
    def _edges(self) -> Points:
        """The smallest and largest sizes that the graph allows, at which no rule is called."""
        return edges_of(self._ir, self._around, least=1)

    def _at(
        self, sizes: Sizes, operator: OpOverload, inputs: Mapping[str, TensorMeta], attrs: Mapping[str, Any]
    ) -> list[Made] | None:
        """Return the outputs of a call at some sizes, cached."""

        def known(value: Any) -> Any:
            return evaluate(value, sizes) if isinstance(value, Expr) else value

        try:
            tensors = {name: _numbers(tensor, sizes) for name, tensor in inputs.items()}
            values = {name: mapped(value, known) for name, value in attrs.items()} if sizes else attrs
        except (ExpressionError, OverflowError, ValueError) as error:  # the latter two for a size of inf or nan
            raise ShapeError(f"{operator} would get an invalid size: {error}") from None
        if sizes and any(size < 0 for shape, _, _ in tensors.values() for size in shape):
            raise ShapeError(f"{operator} would get a negative size")
        key = (operator, tuple(tensors.items()), repr(values))
        found = self.known.get(key)
        if found is None:
            with spending():
                found = _rule_result(operator, tensors, values)
            spend_tensors(len(found) if isinstance(found, list) else 1)
            if _is_final(operator, found):
                if len(self.known) >= _MOST_KNOWN:
                    self.known.clear()
                self.known[key] = found
        if isinstance(found, str):
            if found:
                raise ShapeError(f"{operator} refuses its arguments: {found}")
            return None
        return found

    def _expressed(self, op_type: str, made: list[list[Made]], known: Sequence[Dim]) -> list[TensorMeta]:
        tensors = []
        if len({tuple(len(shape) for shape, _, _ in rows) for rows in made}) > 1:
            raise ShapeError(f"{op_type} has a number of outputs or dimensions that depends on the sizes")
        for rows in zip(*made, strict=True):
            shapes, dtypes, strides = zip(*rows, strict=True)
            shape = self._sizes(op_type, shapes, known)
            laid: Any = None
            if None not in strides:
                laid = self._sizes(op_type, strides, [*known, *products(shape)])
            elif any(stride is not None for stride in strides):
                raise ShapeError(f"{op_type} has output strides without an expression")
            tensors.append(TensorMeta("", shape, dtypes[0], stride=laid))
        return tensors

    def _sizes(self, op_type: str, columns: Sequence[tuple[int, ...]], known: Sequence[Any]) -> list[Any]:
        found = []
        for values in zip(*columns, strict=True):
            size = expressed(values, known, self.points)
            if size is None:
                raise ShapeError(f"{op_type} has output sizes without an expression: {', '.join(map(str, values))}")
            found.append(size)
        return found


def wrong_shapes(
    ir: IR, around: Sequence[IR] = (), chosen: dict[IR, Points] | None = None
) -> Iterator[tuple[OpNode, str]]:
    """Yield nodes whose outputs differ from the inferred ones, in the graph and its functions, with a description."""
    chosen = {} if chosen is None else chosen
    shapes = Shapes(ir, around, chosen)
    for node in ir.nodes:
        try:
            made = shapes.of(node)
        except ShapeError as error:
            yield node, str(error)
            continue
        if made is None:
            continue
        if len(made) != len(node.outputs) or not all(map(shapes.agree, node.outputs, made)):
            yield node, f"makes {_listed(made)}, but the graph says {_listed(node.outputs)}"
    for body in ir.functions.values():
        yield from wrong_shapes(body, (*around, ir), chosen)


def _rule_result(operator: OpOverload, tensors: Mapping[str, Made], attrs: Mapping[str, Any]) -> list[Made] | str:
    """Return the result of a shape rule, called in this process only if it is known to check its operands."""
    shapes = [shape for shape, _, _ in tensors.values()]
    if not may_call_rule(operator, shapes, {dtype for _, dtype, _ in tensors.values()}, attrs):
        return ""
    made = own_rule(operator, tensors, attrs)  # it calls none of torch's rules but those of views
    if made is not None:
        return made
    if is_safe_in_process(operator, shapes, attrs):
        return call_rule(operator, tensors, attrs)
    return WORKER.call_rule(operator, tensors, attrs)


def _is_final(operator: OpOverload, found: list[Made] | str) -> bool:
    """Whether a call has this result as long as the process runs; the rule of a custom operator may be replaced."""
    if operator.namespace == "_c10d_functional":  # the first import of torch's collectives registers rules
        return not isinstance(found, str)
    return operator.namespace in ("aten", "mkldnn")


def _numbers(tensor: TensorMeta, sizes: Sizes) -> Made:
    if not sizes:
        return tensor.shape, tensor.dtype, tensor.stride  # type: ignore[return-value]  # none of them is open
    shape = tuple(int(evaluate(dim, sizes)) for dim in tensor.shape)
    stride = None if tensor.stride is None else tuple(int(evaluate(step, sizes)) for step in tensor.stride)
    return shape, tensor.dtype, stride


def _is_open(tensors: Any, attrs: Mapping[str, Any]) -> bool:
    for tensor in tensors:
        for dim in (*tensor.shape, *(tensor.stride or ())):
            if type(dim) is not int:
                return True
    return any(isinstance(value, Expr) for value in values_in(attrs))


def _names(tensors: Iterable[TensorMeta], attrs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the symbols that a call reads."""
    for tensor in tensors:
        for dim in (*tensor.shape, *(tensor.stride or ())):
            yield from names_in(dim)
    yield from names_of(attrs)


def _listed(tensors: Sequence[TensorMeta]) -> str:
    return ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors) or "nothing"
