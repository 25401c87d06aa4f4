"""Tensor subclasses that wrap other tensors, such as quantised weights: their plain tensors, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_ir.ops.torch_internals import is_traceable_wrapper_subclass


def is_made_of_others(value: Any) -> bool:
    """Whether a tensor is a wrapper of other tensors."""
    return is_traceable_wrapper_subclass(value)


def plain_tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each wrapper by its plain tensors: `fc.weight.qdata`, `fc.weight.scale`, …"""
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if is_made_of_others(value):
            plain.update(
                plain_tensors({f"{key}.{name}": getattr(value, name) for name in value.__tensor_flatten__()[0]})
            )
        else:
            plain[key] = value
    return plain
