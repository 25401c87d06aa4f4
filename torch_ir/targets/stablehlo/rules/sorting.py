"""Sorting: values and their places together, NaN last."""

from __future__ import annotations

from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.targets.stablehlo.operations import Builder, Kind, Value
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made
from torch_ir.targets.stablehlo.rules.reductions import comes_first
from torch_ir.targets.stablehlo.rules.rule_table import axis, lowers


def ordered(hlo: Builder, value: Value, dim: int, descending: bool) -> list[Value]:
    """Return the sorted values and the place of each; equal elements keep their order."""
    if not value.shape:
        return [value, hlo.full(0, (), "int64")]

    def precedes(left: Value, right: Value, left_at: Value, right_at: Value) -> list[Value]:
        return [comes_first(hlo, left, right, "GT" if descending else "LT")]

    kinds = [Kind((), value.dtype)] * 2 + [Kind((), "int64")] * 2
    operands = [value, hlo.iota(value.shape, dim)]
    results = [Kind(value.shape, value.dtype), Kind(value.shape, "int64")]
    attrs = f"dimension = {dim} : i64, is_stable = true"
    return hlo.emit_all("sort", operands, results, attrs, [(kinds, precedes)])


@lowers("aten.sort.default", "aten.sort.stable")
def sort(
    hlo: Builder, made: Made, self: Value, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> list[Value]:
    return ordered(hlo, self, axis(dim, len(self.shape)), descending)


@lowers("aten.argsort.default", "aten.argsort.stable")
def argsort(
    hlo: Builder, made: Made, self: Value, dim: int = -1, descending: bool = False, stable: bool | None = None
) -> Value:
    return sort(hlo, made, self, dim, descending)[1]


@lowers("aten.topk.default")
def topk(
    hlo: Builder, made: Made, self: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Value]:
    dim = axis(dim, len(self.shape))
    if isinstance(k, str):
        raise ConversionError("the number of elements is dynamic")
    found = ordered(hlo, self, dim, largest)
    return [hlo.slice_dim(value, dim, 0, k, k) for value in found] if self.shape else found
