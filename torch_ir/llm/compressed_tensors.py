"""Weights of compressed-tensors: the schemes of its configuration and the tensors that each format stores."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_ir.errors import ExportError
from torch_ir.llm import dequantize
from torch_ir.llm.quantization_options import BLOCK, GROUP, TARGETS, Values
from torch_ir.llm.quantized import Store, StoredWeight, empty

_ALLOWED: Mapping[str, Collection[Any] | Values] = {
    "num_bits": (2, 4, 8), "type": ("int", "float"), "dynamic": (False, None),
    "strategy": ("tensor", "channel", "group", "tensor_group", "block"),
    "actorder": (None, False, "weight", "static"), "zp_dtype": (None, "torch.int8"),
    "symmetric": (True, False), "scale_dtype": (None, "torch.float8_e4m3fn", "torch.uint8"),
    "group_size": Values(f"{GROUP.text}, or None", lambda value: value is None or value in GROUP),
    "block_structure": BLOCK,
}  # fmt: skip
_FREE = ("observer", "observer_kwargs")
_SIZES = {"group": "group_size", "tensor_group": "group_size", "block": "block_structure"}  # by strategy


def stores(settings: Mapping[str, Any]) -> list[tuple[list[str], Store]]:
    """Return the groups of a configuration: the modules that each targets, and how it stores a weight."""
    groups = []
    for name, group in (settings.get("config_groups") or {}).items():
        group = group.model_dump() if hasattr(group, "model_dump") else group
        weights = group.get("weights") if isinstance(group, dict) else False
        if weights is None:
            continue
        if not isinstance(weights, dict) or not group.get("targets") or group["targets"] not in TARGETS:
            raise ExportError(f"{name!r:.80} of compressed-tensors needs weights, a dict, and targets, {TARGETS.text}")
        scheme = {key: getattr(value, "value", value) for key, value in weights.items()}
        _check(name, scheme)
        form = group.get("format") or settings.get("format")
        groups.append((list(group["targets"]), _store_of(str(getattr(form, "value", form)), scheme, name)))
    return groups


def _check(name: str, scheme: Mapping[str, Any]) -> None:
    for option, value in scheme.items():
        if option in _FREE:
            continue
        values = _ALLOWED.get(option)
        shown = str(value) if isinstance(value, torch.dtype) else value
        if values is None or shown not in values:
            raise ExportError(
                f"the weights of {name!r:.80} in compressed-tensors have {option}={shown!r:.80}, which is not supported"
            )
    size = _SIZES.get(str(scheme.get("strategy")))
    if size is not None and scheme.get(size) in (None, -1):
        raise ExportError(f"the weights of {name!r:.80} in compressed-tensors have no {size}")


def _store_of(form: str, scheme: Mapping[str, Any], name: str) -> Store:
    bits, is_float = scheme.get("num_bits", 8), scheme.get("type") == "float"
    if form == "pack-quantized" and not is_float:
        return partial(_packed, scheme=scheme)
    if form in ("int-quantized", "naive-quantized") and not is_float and bits == 8:
        return partial(_plain, scheme=scheme, dtype=torch.int8)
    if form in ("float-quantized", "naive-quantized") and is_float and bits == 8:
        return partial(_plain, scheme=scheme, dtype=torch.float8_e4m3fn)
    if form == "nvfp4-pack-quantized" and is_float and bits == 4 and scheme.get("symmetric", True):
        return _nvfp4
    raise ExportError(
        f"{name!r} of compressed-tensors has the format {form!r} with {bits} bits, which is not supported"
    )


def _scales(weight: Tensor, scheme: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Return the shape of the scales of a weight, and the block that each is for; None if they broadcast."""
    rows, columns = weight.shape
    strategy = scheme.get("strategy") or ("group" if (scheme.get("group_size") or -1) > 0 else "tensor")
    if strategy == "tensor":
        return (1,), None
    if strategy == "channel":
        return (rows, 1), None
    block = tuple(scheme["block_structure"]) if strategy == "block" else (1, scheme["group_size"])
    return (math.ceil(rows / block[0]), math.ceil(columns / block[1])), block


def _plain(key: str, weight: Tensor, *, scheme: Mapping[str, Any], dtype: torch.dtype) -> StoredWeight:
    shape, block = _scales(weight, scheme)
    tensors = {key: weight.to(dtype), f"{key}_scale": empty(*shape, dtype=weight.dtype)}
    if not scheme.get("symmetric", True):
        tensors[f"{key}_zero_point"] = empty(*shape, dtype=torch.int8)
    return StoredWeight("affine", tensors, partial(dequantize.affine, dtype=weight.dtype, block=block))


def _packed(key: str, weight: Tensor, *, scheme: Mapping[str, Any]) -> StoredWeight:
    (rows, columns), bits = weight.shape, scheme.get("num_bits", 8)
    shape, block = _scales(weight, scheme)
    if len(shape) != 2 or (block is not None and block[0] != 1):
        raise ExportError(f"{key!r} is packed with strategy {scheme.get('strategy')!r}, which is not supported")
    tensors = {
        f"{key}_packed": empty(rows, _words(columns, bits), dtype=torch.int32),
        f"{key}_scale": empty(*shape, dtype=weight.dtype),
    }
    if not scheme.get("symmetric", True):
        tensors[f"{key}_zero_point"] = empty(_words(rows, bits), shape[1], dtype=torch.int32)
    group = columns if block is None else block[1]
    options = partial(dequantize.packed_affine, dtype=weight.dtype, bits=bits, shape=(rows, columns), group=group)
    return StoredWeight("packed", tensors, options, takes_stacks=len(tensors) == 2)  # zero points are transposed


def _words(size: int, bits: int) -> int:
    return math.ceil(size * bits / 32)


def _nvfp4(key: str, weight: Tensor) -> StoredWeight:
    rows, columns = weight.shape
    tensors = {
        f"{key}_packed": empty(rows, columns // 2, dtype=torch.uint8),
        f"{key}_scale": empty(rows, columns // 16, dtype=torch.float8_e4m3fn),
        f"{key}_global_scale": empty(1, dtype=torch.float32),
    }
    return StoredWeight("nvfp4", tensors, partial(dequantize.nvfp4, dtype=weight.dtype, divide=True))
