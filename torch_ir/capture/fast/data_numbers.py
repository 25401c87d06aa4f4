"""Symbolic numbers that the model reads from values, such as `scale.item()`: Python computes with them as with sizes.

Torch's `ShapeEnv` does the arithmetic, as in torch.export. Where Python needs the number, `decide` gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torch_ir.capture.export.symbolic_sizes import Bindings, SymbolNames
from torch_ir.capture.fast.call_rule import Rule
from torch_ir.capture.fast.rule_answers import FixedFakes, Question
from torch_ir.capture.fast.shape_tensors import Ghost
from torch_ir.capture.fast.symbolic_size import SYMBOLIC, WRAPPED, Size, live_size
from torch_ir.ir import Symbol, TensorMeta, evaluate
from torch_ir.ops.torch_internals import OpOverload, schema_of

_MAKERS = {
    torch.float64: "create_unbacked_symfloat",
    torch.int64: "create_unbacked_symint",
    torch.bool: "create_unbacked_symbool",
}
_ASSERT = torch.ops.aten._assert_scalar.default
_SCALARS = ("Tensor", "number")  # types of arguments
_FACTORIES = ("arange", "range", "linspace", "logspace")  # numbers decide the size of their results


class DataNumbers:
    """The numbers of one run.

    `decide` returns the value of one and records what Python learned of it; `assume` records that a condition holds.
    """

    def __init__(self, decide: Callable[[Any, type], Any], assume: Callable[[torch.SymBool], None]) -> None:
        self._decide, self._assume = decide, assume
        made: Any = ShapeEnv
        self._environment = made()
        self._environment.numbers = self
        self._environment.evaluate_expr = self._evaluate
        self._environment.guard_or_defer_runtime_assert = self.check
        self._sizes: dict[Any, Size] = {}
        self._values: dict[Any, int] = {}  # symbol -> the value on the tape, of `item`
        self._names, self._names_of_values = SymbolNames(), SymbolNames()
        self._bindings = Bindings(self._names)
        self._fakes = _AnyNumber()

    def close(self) -> None:
        """End the run: its numbers become invalid."""
        del self._environment.numbers

    def new(self, item: Ghost) -> Any:
        """Return the number that a call of `item` makes."""
        number = getattr(self._environment, _MAKERS[item.dtype])()
        self._values.update(dict.fromkeys(number.node.expr.free_symbols, item.value))
        return number

    def size(self, node: Any) -> Size:
        """Return a number in the form in which keys and attributes have it; equal numbers are one object."""
        key = node.expr, node.pytype
        if key not in self._sizes:
            self._sizes[key] = Size(node.expr, node.pytype, None, None, False)
        return self._sizes[key]

    def _evaluate(self, expr: Any, *_: Any, fallback_value: Any = None, **__: Any) -> Any:
        """Return the value of an expression, which Python needs."""
        if not getattr(expr, "free_symbols", ()):
            return expr
        kind = bool if expr.is_Boolean or expr.is_Relational else int if expr.is_integer else float
        return self._decide(expr, kind) if fallback_value is None else fallback_value

    def check(self, expr: Any, message: str, fx_node: Any = None) -> bool:
        """Record that a condition must hold, as torch._check and `assert` ask for; return False if it cannot."""
        if getattr(expr, "free_symbols", ()):
            self._assume(self.wrapped(expr, bool))  # before torch learns it, and replaces what is known by then
        return bool(ShapeEnv.guard_or_defer_runtime_assert(self._environment, expr, message, fx_node))

    def wrapped(self, expr: Any, kind: type) -> Any:
        """Return an expression as a number that torch takes."""
        return WRAPPED[kind](SymNode(expr, self._environment, kind, None))

    # -- calls --------------------------------------------------------------------------------------------------------

    def decide_form(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether numbers of a call may decide the form of its result: they are no plain scalars."""
        if func.overloadpacket.__name__ in _FACTORIES:
            return True
        arguments = schema_of(func).arguments
        given = [*zip(arguments, args, strict=False)]
        given += [(each, kwargs[each.name]) for each in arguments if each.name in kwargs]
        for argument, value in given:
            if _has_number(value) and str(argument.type).removeprefix("Optional[").rstrip("]") not in _SCALARS:
                return True
        return False

    def rule(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Rule:
        """Return the rule of a call with numbers that do not decide its form."""
        rule = Question(func, args, kwargs, size=live_size).asked(self._fakes)
        return replace(rule, name="_assert_scalar_default") if func is _ASSERT else rule  # as torch.export names it

    def values_of(self, sizes: Sequence[Size]) -> list[int]:
        """Return the values on the tape from which numbers are computed."""
        return list(dict.fromkeys(self._values[symbol] for size in sizes for symbol in size.symbols))

    def evaluated(self, size: Size, values: Mapping[int, Any]) -> Any:
        """Return a number, given the values of `item` by their place on the tape."""
        names = self._names_of_values  # those of the graph are given in the order in which it has them
        named = {names.name(symbol): values[self._values[symbol]] for symbol in size.symbols}
        return size.kind(evaluate(names.written_scalar(size.expr), named))

    def text(self, size: Size, contents: Callable[[int], Any]) -> str:
        """Return a number as text, with the contents of memory in place of symbols."""
        shown = {symbol: str(contents(self._values[symbol])) for symbol in size.symbols}
        return f"{size.expr} {sorted((str(symbol), content) for symbol, content in shown.items())}"

    # -- the graph ----------------------------------------------------------------------------------------------------

    def bind(self, value: int, made: TensorMeta) -> None:
        """Record that a call of `item` determines its symbol."""
        symbol = next((symbol for symbol, known in self._values.items() if known == value), None)
        if symbol is not None:
            self._bindings.bind(symbol, made, None)

    def scalar(self, value: Any) -> Any:
        """Return an attribute with numbers as expressions."""
        if isinstance(value, list):
            return [self.scalar(item) for item in value]
        return self._names.written_scalar(value.expr) if type(value) is Size else value

    def symbols(self, _: Mapping[str, int]) -> list[Symbol]:
        return self._bindings.symbols(self._environment.var_to_range, {})


def _has_number(value: Any) -> bool:
    return any(map(_has_number, value)) if isinstance(value, (list, tuple)) else isinstance(value, SYMBOLIC)


class _AnyNumber(FixedFakes):
    """Fake tensors for calls with numbers that decide no form: any number will do."""

    def number(self, value: Any) -> Any:
        return value.kind(1) if type(value) is Size else value
