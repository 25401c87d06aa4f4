"""Python numbers that an optimiser reads from tensors, kept as tensors so that a graph can compute them.

The update rules of `torch.optim` read the step counter with `.item()` and compute bias corrections in Python floats.
While they are recorded, `.item()` returns a `Number`: a float64 scalar tensor that supports the same arithmetic. Python
floats are float64 too, so the results are those of Python, and an operator rounds them as it rounds a Python float.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torch_ir.capture.instrument import intercepted
from torch_ir.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Iterator

_REDUCED = (torch.bfloat16, torch.float16)


class Number:
    """A Python float whose value the graph computes, in arithmetic and as a scalar argument of an operator."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __add__(self, other: Any) -> Number:
        return Number(torch.add(self.tensor, _operand(other)))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Number:
        return Number(torch.sub(self.tensor, _operand(other)))

    def __rsub__(self, other: Any) -> Number:
        return Number(torch.rsub(self.tensor, _operand(other)))

    def __mul__(self, other: Any) -> Any:
        return torch.mul(other, self.tensor) if isinstance(other, Tensor) else Number(self.tensor * _operand(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Number:
        return Number(torch.div(self.tensor, _operand(other)))

    def __rtruediv__(self, other: Any) -> Number:
        return Number(torch.div(_scalar(other, self.tensor), self.tensor))

    def __pow__(self, other: Any) -> Number:
        return Number(torch.pow(self.tensor, _operand(other)))

    def __rpow__(self, other: Any) -> Number:
        return Number(torch.pow(other, self.tensor))

    def __neg__(self) -> Number:
        return Number(torch.neg(self.tensor))

    def _asked(self, *_: Any) -> Any:
        raise ConversionError(
            "the optimiser branches on a number that depends on the step or on values, such as the step counter; "
            "its update cannot be one graph"
        )

    __bool__ = __float__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _asked

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operator with a number among its arguments."""
        form = _FORMS.get(getattr(func, "__name__", ""))
        if form is None:
            raise ConversionError(
                f"the optimiser passes a number that depends on the step to {func}, which is not covered"
            )
        return form(func, *args, **(kwargs or {}))


def _operand(value: Any) -> Any:
    return value.tensor if isinstance(value, Number) else value


def _scalar(value: Any, like: Tensor) -> Tensor:
    """Return a Python number as a tensor, so that the division happens in float64."""
    return _operand(value) if isinstance(value, Number) else torch.full_like(like, value)


def _plain(func: Callable[..., Any], tensor: Tensor, other: Any) -> Any:
    """`x * n`: a float64 scalar does not change the dtype of x, as a Python float does not."""
    return func(tensor, _operand(other))


def _with_value(func: Callable[..., Any], tensor: Tensor, one: Tensor, two: Tensor, *, value: Any) -> Any:
    """`addcdiv_(x, a, b, value=n)` computes x + (n * a) / b, in float32 if x is bfloat16 or float16."""
    if tensor.dtype not in _REDUCED:
        return func(tensor, torch.mul(one, _operand(value)), two)
    wide, first, second = (each.to(torch.float32) for each in (tensor, one, two))
    result = func(wide, torch.mul(first, _operand(value)), second)
    return tensor.copy_(result) if func.__name__.endswith("_") else result.to(tensor.dtype)


def _with_alpha(func: Callable[..., Any], tensor: Tensor, other: Tensor, *, alpha: Any) -> Any:
    """`add(x, y, alpha=n)`; the kernel rounds once where this rounds twice."""
    return func(tensor, torch.mul(other, _operand(alpha)))


def _lerp(func: Callable[..., Any], tensor: Tensor, end: Tensor, weight: Any) -> Any:
    return func(tensor, end, _operand(weight).to(tensor.dtype))


_FORMS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("mul", "mul_", "div", "div_", "__mul__", "__rmul__", "__truediv__", "true_divide"), _plain),
    **dict.fromkeys(("addcdiv", "addcdiv_", "addcmul", "addcmul_"), _with_value),
    **dict.fromkeys(("add", "add_", "sub", "sub_"), _with_alpha),
    **dict.fromkeys(("lerp", "lerp_"), _lerp),
}


class _Items(TorchFunctionMode):
    """Makes `.item()` of a floating-point tensor return a `Number`."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.item and args[0].is_floating_point():
            return Number(args[0].to(torch.float64))
        return func(*args, **(kwargs or {}))


def _extreme(choose: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """Return a handler of the builtin `min` or `max`, for numbers that the graph computes."""

    def handle(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = next((argument for argument in args if isinstance(argument, Number)), None)
        if found is None or len(args) != 2 or kwargs:
            return original(*args, **kwargs)
        return Number(choose(*(_scalar(argument, found.tensor) for argument in args)))

    return handle


@contextmanager
def numbers_recorded() -> Iterator[None]:
    """Keep numbers that Python reads from tensors as tensors, also through `min` and `max`."""
    with ExitStack() as stack:
        stack.enter_context(_Items())
        stack.enter_context(intercepted(builtins, "min", _extreme(torch.minimum)))
        stack.enter_context(intercepted(builtins, "max", _extreme(torch.maximum)))
        yield
