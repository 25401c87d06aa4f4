"""Arithmetic on sizes in StableHLO: scalars of type i64."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from torch_ir.targets.mlir.numbers import Dialect, Operators

INT, FLOAT, BOOL = "tensor<i64>", "tensor<f64>", "tensor<i1>"
TYPES = {"int64": INT, "float64": FLOAT, "bool": BOOL}
_FLOOR = "floor_divide"  # written as several operators
_SIMPLE: dict[Callable[..., Any], str] = {
    operator.add: "add",
    operator.sub: "subtract",
    operator.mul: "multiply",
    operator.neg: "negate",
}
_OPERATORS: Operators = {
    **{(one, kind): (name, kind) for one, name in _SIMPLE.items() for kind in (INT, FLOAT)},
    **{(operator.truediv, kind): ("divide", FLOAT) for kind in (INT, FLOAT)},
    (operator.floordiv, INT): (_FLOOR, INT),
    (max, INT): ("maximum", INT),
    (min, INT): ("minimum", INT),
    (float, INT): ("convert", FLOAT),
    (math.sqrt, INT): ("sqrt", FLOAT),
}
STABLEHLO = Dialect("StableHLO", INT, FLOAT, _OPERATORS)
