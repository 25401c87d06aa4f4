"""Call an operator with arguments under the names of the graph: `tensors.0`, `tensors.1`, `dim`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_ir.ops.torch_types import to_torch


def keywords(
    tensors: Mapping[str, Any], attrs: Mapping[str, Any], change: Callable[[Any], Any] = to_torch
) -> dict[str, Any]:
    """Return the keyword arguments of a call for torch; lists of tensors are assembled from their elements."""
    flat = {**tensors, **{name: mapped(value, change) for name, value in attrs.items()}}
    return {name: _given(name, flat) for name in dict.fromkeys(full.partition(".")[0] for full in flat)}


def _given(name: str, flat: Mapping[str, Any]) -> Any:
    if name in flat:
        return flat[name]
    start = len(name) + 1
    count = len({full[start:].partition(".")[0] for full in flat if full.startswith(f"{name}.")})
    return [_given(f"{name}.{index}", flat) for index in range(count)]


def split_arguments(
    bound: Mapping[str, Any], is_tensor: Callable[[Any], bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return tensors and other arguments by name; of a list with tensors, the elements: `tensors.0`, `tensors.1`."""
    tensors: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in bound.items():
        is_list = isinstance(value, (list, tuple)) and any(map(is_tensor, value))
        for full, each in ((f"{name}.{at}", item) for at, item in enumerate(value)) if is_list else [(name, value)]:
            (tensors if is_tensor(each) else others)[full] = each
    return tensors, others


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to a value, or to the items of a nested list."""
    return [mapped(item, change) for item in value] if isinstance(value, (list, tuple)) else change(value)


def results(operator: Callable[..., Any], arguments: Mapping[str, Any]) -> list[Any]:
    """Return the results of a call as a list, without absent ones."""
    made = masked(operator(**arguments), arguments.get("output_mask"))
    several = list(made) if isinstance(made, (list, tuple)) else [made]
    return [result for result in several if result is not None]


def masked(result: Any, mask: Any) -> Any:
    """Return results with None for those that `mask` excludes, as kernels do and some of torch's shape rules do not."""
    if not isinstance(mask, (list, tuple)) or not isinstance(result, tuple) or len(mask) != len(result):
        return result
    return tuple(each if is_wanted else None for each, is_wanted in zip(result, mask, strict=True))


def empty(shape: Any, dtype: torch.dtype, stride: Any = None) -> torch.Tensor:
    """Return a meta tensor; row-major unless strides are given."""
    if stride is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
