"""Arithmetic on sizes, in the torch dialect unless another is given."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch_ir.errors import ConversionError
from torch_ir.ir.sizes.expressions import SIGNS, translate

INT, FLOAT, BOOL = "!torch.int", "!torch.float", "!torch.bool"


class Value(NamedTuple):
    """A value of the text: `%conv1` and its type."""

    name: str
    type: str


# (Python function, operand type) -> (operator of the dialect, result type)
Operators = Mapping[tuple[Callable[..., Any], str], tuple[str, str]]
_SIMPLE = (operator.add, operator.sub, operator.mul, operator.neg)
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_OPERATORS: Operators = {
    **{(one, INT): (f"torch.aten.{one.__name__}.int", INT) for one in (operator.floordiv, *_SIMPLE)},
    **{(one, FLOAT): (f"torch.aten.{one.__name__}.float", FLOAT) for one in _SIMPLE},
    **{(one, INT): (f"torch.aten.{one.__name__}.int", BOOL) for one in _COMPARISONS},
    (operator.truediv, INT): ("torch.aten.div.int", FLOAT),
    (operator.truediv, FLOAT): ("torch.aten.div.float", FLOAT),
    (max, INT): ("torch.prim.max.int", INT),
    (min, INT): ("torch.prim.min.int", INT),
    (float, INT): ("torch.aten.Float.Scalar", FLOAT),
    (math.sqrt, INT): ("torch.aten.sqrt.int", FLOAT),
    (operator.not_, BOOL): ("torch.aten.__not__", BOOL),
    (operator.and_, BOOL): ("torch.aten.__and__.bool", BOOL),
    (operator.or_, BOOL): ("torch.aten.__or__.bool", BOOL),
}
_FOLDED = (max, min)  # take any number of operands
Apply = Callable[[str, list[Value], str], Value]  # operator, operands, type of the result -> the result
Constant = Callable[[Any], Value]


class Dialect(NamedTuple):
    """Arithmetic of sizes in a dialect: its name, its types of whole numbers and fractions, and its operators."""

    name: str
    int: str
    float: str
    operators: Operators


TORCH = Dialect("the torch dialect", INT, FLOAT, _OPERATORS)


class Sizes:
    """The sizes known at a point of the text; `apply` and `constant` write there."""

    def __init__(self, apply: Apply, constant: Constant, dialect: Dialect = TORCH) -> None:
        self.values: dict[str, Any] = {}  # symbols, and expressions computed before
        self._apply = apply
        self._constant = constant
        self._dialect = dialect

    def of(self, text: str) -> Value:
        """Return the value of an expression."""
        if text not in self.values:
            self.values[text] = self._computed(text)
        found = self.values[text]
        return found if isinstance(found, Value) else self._constant(found)

    def bind(self, name: str, expression: int | str, size: Value) -> None:
        """Define a symbol as the value that makes a linear expression of it equal to a size."""
        if expression == name:
            self.values[name] = size
            return
        ends = []
        for value in (0, 1):
            self.values[name] = value
            ends.append(self._computed(str(expression)))
        slope = self._call(operator.sub, [ends[1], ends[0]], name)
        rest = self._call(operator.sub, [size, ends[0]], name)
        self.values[name] = self._call(operator.floordiv, [rest, slope], name)

    def _computed(self, text: str) -> Any:
        return translate(text, self.values, lambda function, operands: self._call(function, operands, text))

    def _call(self, function: Callable[..., Any], operands: list[Any], text: str) -> Any:
        """Return the result of a call: a number if all operands are numbers, else an operator's value."""
        if not any(isinstance(operand, Value) for operand in operands):
            return self._folded(function, operands, text)
        if SIGNS.get(function) == "**" and operands[1] in (2, 3):
            function, operands = operator.mul, [operands[0]] * operands[1]
        if function is operator.mod:  # the compiled remainder of the dialect has the sign of the dividend
            whole = self._call(operator.floordiv, operands, text)
            function, operands = operator.sub, [operands[0], self._call(operator.mul, [whole, operands[1]], text)]
        while len(operands) > 2 and function in (*_FOLDED, operator.mul):
            operands = [self._call(function, operands[:2], text), *operands[2:]]
        values = [operand if isinstance(operand, Value) else self._constant(operand) for operand in operands]
        whole, fraction = self._dialect.int, self._dialect.float
        if len({value.type for value in values}) > 1 and all(value.type in (whole, fraction) for value in values):
            values = [self._call(float, [value], text) if value.type == whole else value for value in values]
        found = self._dialect.operators.get((function, values[0].type))
        if found is None:
            sign = SIGNS.get(function, getattr(function, "__name__", "?"))
            raise ConversionError(
                f"the size {str(text)!r:.80} needs {sign!r}, which {self._dialect.name} does not support"
            )
        return self._apply(found[0], values, found[1])

    def _folded(self, function: Callable[..., Any], operands: list[Any], text: str) -> Any:
        try:
            return function(*operands)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise ConversionError(f"cannot compute the size {str(text)!r:.80}: {error}") from None
