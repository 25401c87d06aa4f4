"""Arithmetic on sizes in StableHLO: scalars of type i64."""

from __future__ import annotations

import math
import operator

from torch_ir.targets.mlir.numbers import Dialect, Operators

INT, FLOAT, BOOL = "tensor<i64>", "tensor<f64>", "tensor<i1>"
TYPES = {"int64": INT, "float64": FLOAT, "bool": BOOL}
_FLOOR = "floor_divide"  # written as several operators
_OPERATORS: Operators = {
    (operator.add, INT): ("add", INT),
    (operator.sub, INT): ("subtract", INT),
    (operator.mul, INT): ("multiply", INT),
    (operator.floordiv, INT): (_FLOOR, INT),
    (operator.neg, INT): ("negate", INT),
    (operator.truediv, INT): ("divide", FLOAT),
    (operator.add, FLOAT): ("add", FLOAT),
    (operator.sub, FLOAT): ("subtract", FLOAT),
    (operator.mul, FLOAT): ("multiply", FLOAT),
    (operator.truediv, FLOAT): ("divide", FLOAT),
    (operator.neg, FLOAT): ("negate", FLOAT),
    (max, INT): ("maximum", INT),
    (min, INT): ("minimum", INT),
    (float, INT): ("convert", FLOAT),
    (math.sqrt, INT): ("sqrt", FLOAT),
}
STABLEHLO = Dialect("StableHLO", INT, FLOAT, _OPERATORS)
