"""Calls of shape rules, our own and torch's, on tensors without memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_ir.analysis.shapes.onednn_shapes import RULES
from torch_ir.errors import first_line
from torch_ir.ir import Device
from torch_ir.ir.sizes.specialize import is_row_major
from torch_ir.ops.calling import empty, keywords, results
from torch_ir.ops.dim_range_checks import check_dims
from torch_ir.ops.grouped_products import grouped_rule
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.own_shape_rules import RULES as OWN_RULES
from torch_ir.ops.own_shape_rules import call_on_meta
from torch_ir.ops.quiet_loggers import silence
from torch_ir.ops.schema import Argument, arguments
from torch_ir.ops.torch_internals import (
    FAKE_TENSOR_LOGGER,
    FakeTensor,
    FakeTensorMode,
    ForceDispatchKeyGuard,
    OpOverload,
    enable_python_dispatcher,
    excluded_dispatch_keys,
    included_dispatch_keys,
)
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name, to_torch

# One output in numbers: shape, dtype, and strides, None for row-major order.
Made = tuple[tuple[int, ...], str, "tuple[int, ...] | None"]
_CPU = torch.device("cpu")
_silence = silence(FAKE_TENSOR_LOGGER)  # it logs a traceback for every call that torch refuses
_WITHOUT_RULE = ("no fake impl registered", "its data is not allocated yet")  # the latter: the kernel read values


def own_rule(operator: OpOverload, tensors: Mapping[str, Made], attrs: Mapping[str, Any]) -> list[Made] | None:
    """Return the outputs by our own shape rule, which needs no fake tensors; None if there is none for this call."""
    if operator not in OWN_RULES:
        return None
    try:
        given = {name: empty(shape, TORCH_DTYPES[dtype], stride) for name, (shape, dtype, stride) in tensors.items()}
        values = keywords(given, attrs, _on_cpu)
        check_dims(str(operator), values)
        places = [_taken(values, argument) for argument in arguments(operator) if not argument.keyword_only]
        with NeutralState():
            made = call_on_meta(operator, (tensor.dtype for tensor in given.values()), places, values)
    except Exception:  # torch's rule will raise it again, if it is an error in the call
        return None
    several = made if isinstance(made, (list, tuple)) else [] if made is None else [made]
    return [_described(tensor) for tensor in several]


def _taken(values: dict[str, Any], argument: Argument) -> Any:
    """Return a positional argument, or its default."""
    if argument.name in values or not argument.has_default:
        return values.pop(argument.name)
    return to_torch(argument.default)


def call_rule(operator: OpOverload, tensors: Mapping[str, Made], attrs: Mapping[str, Any]) -> list[Made] | str:
    """Return the outputs, the reason why the call is refused, or an empty string if torch has no shape rule.

    A rule that raises can leave dispatch keys excluded; the exception restores them late and wrong when it is freed,
    after which fake tensors are taken for real ones. So the dispatch state of this thread is restored here.
    """
    include, exclude = included_dispatch_keys(), excluded_dispatch_keys()
    with ForceDispatchKeyGuard(include, exclude):
        return _answer(operator, tensors, attrs)


def _answer(operator: OpOverload, tensors: Mapping[str, Made], attrs: Mapping[str, Any]) -> list[Made] | str:
    # without a shape rule, torch would run the kernel itself on zeros of the declared sizes
    mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
    mode.cache_enabled = False  # torch's own cache of calls is unbounded
    try:
        given = {
            name: FakeTensor(mode, empty(shape, TORCH_DTYPES[dtype], stride), _CPU)
            for name, (shape, dtype, stride) in tensors.items()
        }
        values = keywords(given, attrs, _on_cpu)
        check_dims(str(operator), values)
        with _silence, NeutralState(), enable_python_dispatcher(), mode:
            first = next(iter(given.values())).dtype if given else None
            made = results(grouped_rule(str(operator), first) or RULES.get(str(operator), operator), values)
    except ArithmeticError:  # an error in the shape rule, not in the call
        return ""
    except Exception as error:
        is_unknown = type(error).__module__.startswith("torch") or any(text in str(error) for text in _WITHOUT_RULE)
        return "" if is_unknown else first_line(error)[:200]
    return [_described(tensor) for tensor in made] if all(map(_is_plain, made)) else ""


def _is_plain(made: Any) -> bool:
    """Whether an output is a strided tensor of known sizes; rules that check too little return others."""
    if not isinstance(made, torch.Tensor) or made.layout is not torch.strided:
        return False
    shape, stride = tuple(made.shape), made.stride()
    return len(shape) == len(stride) and all(type(size) is int and size >= 0 for size in (*shape, *stride))


def _described(tensor: torch.Tensor) -> Made:
    shape = tuple(tensor.shape)
    return shape, dtype_name(tensor.dtype), None if is_row_major(shape, tensor.stride()) else tensor.stride()


def _on_cpu(value: Any) -> Any:
    return _CPU if isinstance(value, Device) else to_torch(value)
