"""Convert the sizes of a recording to expressions over named symbols, with all that torch knows at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_ir.capture.export.symbolic_sizes import Bindings, SymbolNames
from torch_ir.capture.fast.shape_tensors import Form
from torch_ir.capture.fast.size_environment import Finished
from torch_ir.capture.fast.symbolic_size import Size
from torch_ir.ir import Symbol, TensorMeta


class WrittenSizes:
    """The names, texts and ranges of the sizes of one graph."""

    def __init__(self, finished: Finished) -> None:
        self._environment = finished.environment
        self._ranges = finished.ranges
        self._names = SymbolNames(finished.environment)
        self._bindings = Bindings(self._names)
        self._expressions: dict[Size, Any] = {}
        self._scalars: dict[Size, Any] = {}
        self._forms: dict[Form, tuple[tuple[Any, ...], list[Any] | None]] = {}

    def described(self, name: str, form: Form) -> TensorMeta:
        """Return a tensor for a form with symbolic sizes."""
        written = self._forms.get(form)
        if written is None:
            shape, stride = self._all_expressions(form.shape), self._all_expressions(form.stride)
            steps = self._names.stride(shape, stride)  # names are given in the order in which they are written
            written = self._forms[form] = (tuple(map(self._names.written_dim, shape)), steps)
        return TensorMeta(name, written[0], form.dtype_name, stride=written[1])

    def bind(self, tensor: TensorMeta, form: Form) -> None:
        """Record which symbols an input determines."""
        for dim, size in enumerate(self._all_expressions(form.shape)):
            if not isinstance(size, int):
                self._bindings.bind(size, tensor, dim)

    def scalar(self, value: Any) -> Any:
        """Convert an attribute that may contain symbolic sizes."""
        if isinstance(value, list):
            return [self.scalar(item) for item in value]
        if type(value) is not Size:
            return value
        if value not in self._scalars:
            self._scalars[value] = self._names.written_scalar(self._expression(value))
        return self._scalars[value]

    def symbols(self, requested: Mapping[str, int]) -> list[Symbol]:
        return self._bindings.symbols(self._ranges, requested)

    def constraints(self, inputs: Sequence[TensorMeta], decisions: Sequence[Any]) -> list[str]:
        return self._bindings.constraints(self._environment, inputs, decisions)

    def _all_expressions(self, sizes: Sequence[Any]) -> list[Any]:
        return [self._expression(size) if type(size) is Size else size for size in sizes]

    def _expression(self, size: Size) -> Any:
        found = self._expressions.get(size)
        if found is None:
            found = self._expressions[size] = self._environment.replace(size.expr)
        return found
