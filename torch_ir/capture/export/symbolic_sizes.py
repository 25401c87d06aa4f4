"""Convert torch's symbolic sizes to expressions over named symbols: `s77*2` becomes `"2*batch"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from torch_ir.capture.export.canonical_conditions import canonical
from torch_ir.errors import ConversionError
from torch_ir.ir import Expr, Symbol, TensorMeta
from torch_ir.ir.sizes.symbols import ordered_constraints
from torch_ir.ops.torch_internals import ValueRanges

# torch's sympy functions and relations, by class name -> operator or function of the IR's expressions
_INFIX = {
    "FloorDiv": "//", "CleanDiv": "//", "PythonMod": "%", "Mod": "%", "FloatTrueDiv": "/", "IntTrueDiv": "/",
    "Equality": "==", "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=", "StrictGreaterThan": ">",
    "GreaterThan": ">=", "And": "and", "Or": "or", "Add": "+", "Mul": "*", "Pow": "**", "PowByNatural": "**",
    "FloatPow": "**",
}  # fmt: skip
_CALLS = {
    "Max": "max", "Min": "min", "Abs": "abs", "ToFloat": "float", "TruncToInt": "trunc", "TruncToFloat": "trunc",
    "CeilToInt": "ceil", "ceiling": "ceil", "FloorToInt": "floor", "floor": "floor", "RoundToInt": "round",
    "RoundDecimal": "round", "Where": "where", "OpaqueUnaryFn_sqrt": "sqrt", "OpaqueUnaryFn_exp": "exp",
    "OpaqueUnaryFn_log": "log", "OpaqueUnaryFn_log2": "log2", "OpaqueUnaryFn_sin": "sin", "OpaqueUnaryFn_cos": "cos",
    "OpaqueUnaryFn_tan": "tan", "OpaqueUnaryFn_tanh": "tanh",
}  # fmt: skip

_ANY_ORDER = ("Max", "Min", "And", "Or")  # sympy orders their operands by torch's names


class SymbolNames:
    """The names of symbols: the user's if there is one, else short ones in order of appearance."""

    def __init__(self, environment: Any = None) -> None:
        self.names: dict[str, str] = _user_names(environment)
        self._fresh = 0

    def name(self, symbol: sympy.Symbol) -> str:
        text = str(symbol)
        if text not in self.names:
            prefix = text.rstrip("0123456789") or "s"
            taken = set(self.names.values())
            while f"{prefix}{self._fresh}" in taken:
                self._fresh += 1
            self.names[text] = f"{prefix}{self._fresh}"
        return self.names[text]

    def by_name(self, expression: Any) -> Any:
        """Return an expression over symbols with the names of the IR, which may be 0, unlike torch's."""
        named = {
            symbol: sympy.Symbol(self.name(symbol), integer=symbol.is_integer) for symbol in expression.free_symbols
        }
        return expression.xreplace(named)

    def write(self, expression: Any) -> str:
        """Return a sympy expression as text; operands other than plain names and numbers are in brackets."""
        if isinstance(expression, sympy.Symbol):
            return self.name(expression)
        if expression in (sympy.true, sympy.false):
            return str(bool(expression))
        if isinstance(expression, sympy.Integer):
            return str(int(expression))
        if isinstance(expression, (sympy.Float, float)):
            return repr(float(expression))
        if isinstance(expression, sympy.Rational):
            return f"{expression.p}/{expression.q}"
        kind = type(expression).__name__
        if kind == "Not":
            return f"not {self._operand(expression.args[0])}"
        if kind == "Piecewise":
            (value, condition), *rest = expression.args
            if not rest:
                return self.write(value)
            return f"where({self.write(condition)}, {self.write(value)}, {self.write(sympy.Piecewise(*rest))})"
        if kind == "ModularIndexing":
            base, divisor, modulus = map(self._operand, expression.args)
            return f"({base} // {divisor}) % {modulus}"
        if kind in _CALLS:
            return f"{_CALLS[kind]}({', '.join(map(self.write, self._ordered(expression)))})"
        if isinstance(expression, sympy.Add):
            return self._sum(expression)
        if kind in _INFIX:
            return f" {_INFIX[kind]} ".join(map(self._operand, self._ordered(expression)))
        raise ConversionError(f"the size {expression} uses {kind}, which has no spelling in the IR")

    def _sum(self, expression: Any) -> str:
        """Return a sum as text: terms with symbols first, negative ones subtracted."""
        first, *rest = sorted(
            expression.args, key=lambda term: (term.is_number, term.could_extract_minus_sign(), self.write(term))
        )
        text = self._operand(first)
        for term in rest:
            negative = term.could_extract_minus_sign()
            text += f" - {self._operand(-term)}" if negative else f" + {self._operand(term)}"
        return text

    def _operand(self, expression: Any) -> str:
        text = self.write(expression)
        is_whole = isinstance(expression, sympy.Symbol) or type(expression).__name__ in _CALLS
        return text if is_whole or text.replace(".", "", 1).isdigit() else f"({text})"

    def _ordered(self, expression: Any) -> list[Any]:
        """Return operands in an order that does not depend on torch's names: numbers first in a product."""
        if isinstance(expression, sympy.Mul):
            return sorted(expression.args, key=lambda factor: (not factor.is_number, self.write(factor)))
        if type(expression).__name__ in _ANY_ORDER:
            return sorted(expression.args, key=lambda operand: (operand.is_number is True, self.write(operand)))
        return list(expression.args)

    def dim(self, size: Any) -> int | str:
        """Return a size as an int, or as the text of its expression."""
        return size if isinstance(size, int) else self.written_dim(size.node.expr)

    def written_dim(self, expression: Any) -> int | str:
        """Do the same for the expression of a size."""
        return int(expression) if isinstance(expression, (int, sympy.Integer)) else self.write(expression)

    def stride(self, shape: Sequence[Any], stride: Sequence[Any]) -> list[int | str] | None:
        """Return strides, given as expressions, in the form of the IR: None for row-major order."""
        expected: Any = 1
        for size, step in zip(reversed(shape), reversed(stride), strict=True):
            if self.written_dim(step) != self.written_dim(expected) and self.written_dim(size) != 1:
                return [self.written_dim(step) for step in stride]
            expected = expected * size
        return None

    def scalar(self, value: Any) -> Any:
        """Return a symbolic number as a Python number if it is known, else as an `Expr`."""
        return self.written_scalar(value.node.expr)

    def written_scalar(self, expression: Any) -> Any:
        """Do the same for the expression of a number."""
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if isinstance(expression, sympy.Float):
            return float(expression)
        if expression in (sympy.true, sympy.false, True, False):
            return bool(expression)
        if isinstance(expression, (int, float)):
            return expression
        return Expr(self.write(expression))


class Bindings:
    """The tensor and dimension from which each symbol of a graph is read."""

    def __init__(self, names: SymbolNames) -> None:
        self.names = names
        self.places: dict[str, tuple[TensorMeta, int | None]] = {}
        self.are_inputs_read = False

    def bind(self, expression: Any, made: TensorMeta, dim: int | None) -> None:
        """Bind a symbol to the first input dimension that is the symbol or depends on it alone, else to a node."""
        if len(expression.free_symbols) != 1:
            return
        name = self.names.name(next(iter(expression.free_symbols)))
        alone_later = expression.is_Symbol and not self.are_inputs_read
        if name not in self.places or (alone_later and not self._is_alone(name)):
            self.places[name] = (made, dim)

    def _is_alone(self, name: str) -> bool:
        tensor, dim = self.places[name]
        return dim is None or tensor.shape[dim] == name

    def symbols(self, ranges: Mapping[Any, Any], requested: Mapping[str, int]) -> list[Symbol]:
        """Return the symbols with their ranges."""
        by_name = {self.names.name(symbol): interval for symbol, interval in ranges.items() if symbol.is_Symbol}
        return [
            Symbol(name, *bounds(by_name.get(name), requested.get(name), tensor.producer is None), tensor, dim)
            for name, (tensor, dim) in self.places.items()
        ]

    def constraints(self, environment: Any, inputs: Sequence[TensorMeta], decisions: Sequence[Any]) -> list[str]:
        """Return the constraints on input sizes besides their ranges: torch's guards, and the model's decisions."""
        known = {name for name, (tensor, _) in self.places.items() if tensor in inputs}
        written = SymbolNames()
        written.names = {name: name for name in known}
        found: set[str] = set()
        for condition in [*(guard.expr for guard in getattr(environment, "guards", [])), *decisions]:
            known_by_now = {symbol: environment.replace(symbol) for symbol in condition.free_symbols}
            expression = canonical(self.names.by_name(condition.xreplace(known_by_now)))
            symbols = {str(symbol) for symbol in expression.free_symbols}
            if symbols and symbols <= known:
                found.add(written.write(expression))
        if any(not decision.free_symbols for decision in decisions):  # on emptiness, which torch excludes
            found.update(f"{name} >= 1" for name in known if self.places[name][1] is not None)
        return ordered_constraints(found)


def _user_names(environment: Any) -> dict[str, str]:
    """Map torch's symbols to the names of the user's `Dim`s; a symbol that replaces others has its own name."""
    given: Mapping[str, str] = getattr(environment, "source_name_to_debug_name", {})
    replaced: Mapping[Any, Any] = getattr(environment, "replacements", {})
    found: dict[str, str] = {}
    for symbol, sources in getattr(environment, "var_to_sources", {}).items():
        kept = str(environment.replace(symbol) if symbol in replaced else symbol)
        for source in sources:
            name = given.get(source.name, source.name)
            is_promised = source.name in given  # sizes with one name are equal, whether or not the model compares them
            if name.isidentifier() and (is_promised or name not in found.values()):
                found.setdefault(kept, name)
    return found


def shape_environment(values: Any) -> Any:
    """Return the shape environment of the first fake tensor that has one; None if all sizes are fixed."""
    for value in values:
        mode = getattr(value, "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            return mode.shape_env
    return None


def bounds(
    interval: ValueRanges[Any] | None, requested_min: int | None, is_input: bool
) -> tuple[int | None, int | None]:
    """Return the range of a symbol; torch's minimum of 2 for inputs is dropped unless it was requested."""
    if interval is None:
        return None, None
    low, high = (_bound(end) for end in (interval.lower, interval.upper))
    if is_input and low is not None and 0 <= low <= 2 and (requested_min is None or requested_min < low):
        low = requested_min or 0
    return low, high


def _bound(end: Any) -> int | None:
    # torch's values for "unbounded" are infinities and numbers near the largest int64
    if not isinstance(end, (int, sympy.Integer)) or abs(int(end)) >= (1 << 63) - 2:
        return None
    return int(end)


def is_symbolic(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
