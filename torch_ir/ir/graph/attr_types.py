"""Types of attribute values: five kinds of typed names that occur in torch schemas, beside plain Python values.

Each typed name is a `str`, so it prints, compares and sorts as its text: `node["dtype"] == "bfloat16"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# name -> bytes per element
DTYPES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "complex128": 16, "complex64": 8, "complex32": 4,
    "qint8": 1, "quint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1,
    **{f"bits{n}": size for n, size in [("8", 1), ("16", 2), ("1x8", 1), ("2x4", 1), ("4x2", 1)]},
    **{f"{sign}int{n}": 1 for sign in ("", "u") for n in range(1, 8)},
}  # fmt: skip
DEVICE_KINDS = frozenset((
    "cpu", "cuda", "meta", "mps", "xpu", "hpu", "xla", "mtia", "ipu", "ve", "lazy", "vulkan", "privateuseone", "fpga",
    "maia", "hip", "opengl", "opencl", "ideep", "mkldnn",
))  # fmt: skip
LAYOUTS = frozenset(
    ["strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn", "jagged"]
)
MEMORY_FORMATS = frozenset(["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"])


class _TypedName(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class Dtype(_TypedName):
    """An element type, such as `bfloat16`."""

    __slots__ = ()


class Device(_TypedName):
    """A device, such as `cpu` or `cuda:1`."""

    __slots__ = ()


class Layout(_TypedName):
    """A tensor layout, such as `strided`."""

    __slots__ = ()


class MemoryFormat(_TypedName):
    """A memory format, such as `channels_last`."""

    __slots__ = ()


class FunctionRef(_TypedName):
    """The name of a function of the graph, such as a branch of a `cond`."""

    __slots__ = ()


def values_in(value: Any) -> Iterator[Any]:
    """Yield the plain values and typed names in an attribute: in nested lists, tuples and dicts, or the value alone."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from values_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from values_in(item)
    else:
        yield value


def is_device(text: str) -> bool:
    """Whether `text` names a device of a known kind, with or without an index."""
    kind, colon, index = text.partition(":")
    return kind in DEVICE_KINDS and (not colon or (index.isascii() and index.isdecimal() and len(index) < 10))
