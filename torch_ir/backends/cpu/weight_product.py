"""The product of a few rows with a weight as it is stored, as an operator with its own kernel on a CPU.

It reads the weight once, and needs no copy of it in another layout. Torch's kernels for few rows with integers take
several times as long as a product in float32. The kernel is C++, compiled on first use by the compiler that Inductor
uses.
"""

from __future__ import annotations

import ctypes
import logging
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from torch_ir.backends.inductor_cache import private_inductor
from torch_ir.errors import first_line

OPERATOR = "torch_ir.weight_product.default"
FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8", torch.uint8: "uint8"}
COLUMNS = 32  # a row, and a group with one scale, has a multiple of so many elements
_SOURCE = Path(__file__).with_suffix(".cpp")
_FLAGS = {"x86_64": ("-ffp-contract=fast", "-mprefer-vector-width=512")}
_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (*[_POINTER] * 4, ctypes.c_int, _POINTER, *[_LONG] * 4, ctypes.c_int)
_log = logging.getLogger(__name__)

_library: Any = torch.library.Library("torch_ir", "FRAGMENT")  # type: ignore[no-untyped-call]  # not annotated
_library.define("weight_product(Tensor rows, Tensor matrix, Tensor? scales, Tensor? zero_points, int offset) -> Tensor")


@cache
def kernels() -> dict[torch.dtype, Callable[..., None]]:
    """Compile the kernels, or load them from Inductor's cache; return them by stored dtype, none if that fails."""
    try:
        with private_inductor():
            from torch_ir.ops.torch_internals import CppCodeCache  # imports the compiler, which takes seconds

            flags = _FLAGS.get(platform.machine(), ("-ffp-contract=fast",))
            library = CppCodeCache.load(_SOURCE.read_text(encoding="utf-8"), extra_flags=flags)
        found = {dtype: getattr(library, name) for dtype, name in FORMATS.items()}
    except Exception as error:  # any error of a compiler or loader; the caller then uses torch's operators
        _log.info("no kernels for products with stored weights: %s", first_line(error))
        return {}
    for kernel in found.values():
        kernel.argtypes, kernel.restype = _ARGUMENTS, None
    return found


def _product(rows: Tensor, matrix: Tensor, scales: Tensor | None, zero_points: Tensor | None, offset: int) -> Tensor:
    kernel = kernels().get(matrix.dtype)
    if kernel is None:
        return _reference(rows, matrix, scales, zero_points, offset)
    rows, matrix = rows.contiguous(), matrix.contiguous()
    width, count = rows.shape[-1], matrix.shape[0]
    result = rows.new_empty((*rows.shape[:-1], count))
    group = width if scales is None else width * count // scales.numel()
    scales = None if scales is None else scales.contiguous()
    zero_points = None if zero_points is None else zero_points.float().contiguous()
    kernel(
        rows.data_ptr(), matrix.data_ptr(), _address(scales), _address(zero_points), offset, result.data_ptr(),
        rows.numel() // width, count, width, group, torch.get_num_threads(),
    )  # fmt: skip
    return result


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _reference(rows: Tensor, matrix: Tensor, scales: Tensor | None, zero_points: Tensor | None, offset: int) -> Tensor:
    """Restore the weight: two int4 share a byte of uint8, the first in the low half; an offset was added to each."""
    count = matrix.shape[0]
    if matrix.dtype == torch.uint8:
        matrix = torch.stack([matrix & 15, matrix >> 4], dim=-1).reshape(count, -1)
    values = matrix.float() - offset
    if scales is not None:
        parts = values.reshape(scales.numel(), -1)
        parts = parts if zero_points is None else parts - zero_points.reshape(-1, 1)
        values = (parts * scales.reshape(-1, 1)).reshape(count, -1)
    return linear(rows, values)


def _shape(rows: Tensor, matrix: Tensor, scales: Tensor | None, zero_points: Tensor | None, offset: int) -> Tensor:
    return rows.new_empty(*rows.shape[:-1], matrix.shape[0])


_library.impl("weight_product", _reference, "CompositeExplicitAutograd")
_library.impl("weight_product", _product, "CPU")
_library.impl("weight_product", _shape, "Meta")
