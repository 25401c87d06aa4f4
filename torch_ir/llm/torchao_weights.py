"""Weights of torchao as transformers saves them: laid out and dequantised by torchao's own tensor classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from torch_ir.errors import ExportError, MissingExtraError, first_line
from torch_ir.llm.quantized import StoredWeight


def store_with(settings: Mapping[str, Any]) -> Callable[[str, Tensor], StoredWeight]:
    """Return how the configuration of torchao in these settings stores a weight."""
    try:
        from torchao.core.config import config_from_dict
        from torchao.quantization import quantize_
    except ImportError:
        raise MissingExtraError("a checkpoint quantised by torchao", "torchao", "torchao") from None
    given = settings.get("quant_type")
    given = given.get("default", given) if isinstance(given, dict) else given
    _refuse_code(given)
    try:
        config = config_from_dict(given) if isinstance(given, dict) else given
    except Exception as error:  # torchao raises errors of any type
        raise ExportError(f"quant_type of torchao is not understood: {first_line(error)}") from None
    if isinstance(config, str) or config is None:
        raise ExportError(f"quant_type={config!r} of torchao is not supported; expected the dict of a configuration")

    def store(key: str, weight: Tensor) -> StoredWeight:
        layer: Any = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta", dtype=weight.dtype)
        try:
            quantize_(layer, config)
            names, context = layer.weight.__tensor_flatten__()
        except Exception as error:
            what = f"torchao cannot lay out {key!r} with {type(config).__name__} without values"
            raise ExportError(f"{what}: {first_line(error)}") from None
        kind: Any = type(layer.weight)
        size = layer.weight.size()
        module, _, last = key.rpartition(".")

        def dequantized(*tensors: Tensor) -> Tensor:
            inner = dict(zip(names, tensors, strict=True))
            whole: Any = kind.__tensor_unflatten__(inner, context, size, None)
            result: Tensor = whole.dequantize()
            return result.to(weight.dtype)

        parts = {f"{module}._{last}_{name}": getattr(layer.weight, name).detach() for name in names}
        return StoredWeight("torchao", parts, dequantized)

    return store


def _refuse_code(value: Any) -> None:
    """Raise ExportError unless all types in a configuration are data; torchao would call any of its functions."""
    if isinstance(value, dict) and "_type" in value:
        name, data = value["_type"], value.get("_data")
        if name == "torch.dtype":
            is_data = isinstance(data, str) and isinstance(getattr(torch, data, None), torch.dtype)
        else:
            is_data = isinstance(name, str) and all(map(_is_data, _named(name)))
        if not is_data:
            raise ExportError(f"quant_type of torchao has the type {name!r:.60}, which is not one of a configuration")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _refuse_code(item)


def _named(name: str) -> list[Any]:
    """Return what torchao may mean by the name of a type."""
    from torchao.core.config import ALLOWED_AO_MODULES

    found = []
    for path in ALLOWED_AO_MODULES:
        try:
            found.append(getattr(import_module(path), name))
        except (ImportError, AttributeError):  # as in torchao
            continue
    return found


def _is_data(found: Any) -> bool:
    """Whether this is a class of torchao whose instances are made of values: a dataclass, an enum or a named tuple."""
    is_own = isinstance(found, type) and found.__module__.startswith("torchao.")
    return is_own and (is_dataclass(found) or issubclass(found, (Enum, tuple)))
