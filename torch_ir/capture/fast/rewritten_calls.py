"""Calls that write otherwise than to the elements of their first argument, recorded as other calls.

Such are in-place views, variants with `out=`, `resize_` of an empty tensor, and norms that update statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_ir.capture.fast.shape_tensors import Ghost, NotCoveredError
from torch_ir.ops.effects import gives_its_input, mutated_arguments
from torch_ir.ops.functional_calls import UPDATING
from torch_ir.ops.torch_internals import OpOverload, no_dispatch, schema_of

if TYPE_CHECKING:
    from torch_ir.capture.fast.shape_recorder import Recorder

_aten = torch.ops.aten
_REPLACING = ("resize_", "resize_as_", "set_", "detach_")


def rewritten(recorder: Recorder, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Record a call in another form; return NotImplemented for a call that needs none."""
    form = UPDATING.get(func)
    if form is None and (written := mutated_arguments(func)):
        if func is _aten.resize_.default:
            form = _resized(recorder)
        elif torch.Tag.inplace_view in func.tags and func.overloadpacket.__name__ not in _REPLACING:
            form = _viewed(recorder, func)
        else:
            form = _stored(func, tuple(written))
    if form is None:
        return NotImplemented
    with recorder:
        return form(*args, **kwargs)


def become(recorder: Recorder, tensor: Ghost, other: Ghost) -> Tensor:
    """Make one tensor of the run another one, whose form it takes."""
    if tensor.value in recorder.tape.given_values:
        raise NotCoveredError("forward changes the shape or the memory of a weight or input")
    made = next(step for step in reversed(recorder.tape.steps) if step.first <= tensor.value)
    if gives_its_input(str(made.rule.func), made.rule.attrs):
        raise NotCoveredError(f"forward changes the shape of the result of {made.rule.func}, which is its input")
    tensor.value, tensor.form = other.value, other.form
    with no_dispatch():
        if not tensor.numel():  # there is no memory for more elements
            _aten.resize_.default(tensor, [other.numel()])
        _aten.as_strided_.default(tensor, other.shape, other.stride(), other.storage_offset())
    return tensor


def _viewed(recorder: Recorder, func: OpOverload) -> Callable[..., Tensor] | None:
    """Return `squeeze_` as `squeeze`, whose result the tensor becomes."""
    packet = getattr(_aten, func.overloadpacket.__name__.removesuffix("_"), None)
    overloads = [] if packet is None else [getattr(packet, name) for name in packet.overloads()]
    view = next((each for each in overloads if _arguments(each)[1:] == _arguments(func)[1:]), None)
    if view is None:
        return None
    return lambda tensor, *args, **kwargs: become(recorder, tensor, view(tensor, *args, **kwargs))


def _resized(recorder: Recorder) -> Callable[..., Any]:
    """Return `resize_` of an empty tensor as a new tensor."""

    def resize(tensor: Ghost, size: Sequence[int], **options: Any) -> Any:
        if list(tensor.shape) == list(size):
            return tensor
        if tensor.numel() or any(options.values()):
            raise NotCoveredError("resize_ of a tensor that has elements")
        return become(recorder, tensor, _aten.empty.memory_format(size, dtype=tensor.dtype, device=tensor.device))

    return resize


@cache
def _stored(func: OpOverload, written: tuple[str, ...]) -> Callable[..., Any] | None:
    """Return a variant with `out=` as the call without it, whose results are copied."""
    arguments = schema_of(func).arguments
    outs = [each.name for each in arguments if each.is_out]
    if tuple(outs) != written:
        return None
    given = [(each.name, str(each.type)) for each in arguments if not each.is_out]
    overloads = [getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads()]
    plain = [each for each in overloads if not schema_of(each).is_mutable]
    found = next((each for each in plain if _arguments(each)[: len(given)] == given), None)
    if found is None:
        return None
    has_dtype = ("dtype", "Optional[int]") in _arguments(found)[len(given) :]

    def call(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in outs]
        if has_dtype:
            kwargs["dtype"] = targets[0].dtype
        results = found(*args, **kwargs)
        for target, result in zip(targets, results if len(targets) > 1 else [results], strict=True):
            if target.shape != result.shape:
                raise NotCoveredError(f"{func} changes the shape of its result")
            target.copy_(result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return call


def _arguments(operator: OpOverload) -> list[tuple[str, str]]:
    return [(each.name, str(each.type)) for each in schema_of(operator).arguments]
