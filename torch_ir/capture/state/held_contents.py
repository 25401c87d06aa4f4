"""The content of containers, closures' variables and arrays: copied, compared and restored."""

from __future__ import annotations

import itertools
import operator
import random
import sys
from array import array
from collections import OrderedDict, deque
from types import BuiltinFunctionType, CellType, ModuleType
from typing import Any

import torch

from torch_ir.ops.references import CONTAINERS, TABLES, content_of

PLAIN = frozenset(
    (
        *(int, float, complex, bool, str, bytes, type(None), type(Ellipsis), slice, range, frozenset),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, ModuleType, BuiltinFunctionType),
    )
)
_MOST_BYTES = 1 << 20  # of an array that is copied
# containers, and subclasses of them, which are copied and restored without calling methods of the subclass
BUILT_IN: tuple[Any, ...] = (OrderedDict, dict, list, set, deque, bytearray, array)


def copy_of(held: Any) -> Any:
    """Return a copy of the content."""
    if type(held) in CONTAINERS:
        return held.copy()
    if isinstance(held, CellType):
        return content_of(held)
    if isinstance(held, random.Random):
        return held.getstate()
    if is_numbers(held):
        return held.tobytes()
    if isinstance(held, itertools.count):
        return repr(held)
    base = next(base for base in BUILT_IN if isinstance(held, base))
    items = base.items(held) if issubclass(base, dict) else base.__iter__(held)
    return dict(items) if issubclass(base, dict) else set(items) if base is set else list(items)


def is_numbers(value: Any) -> bool:
    """Whether a value is a generator of random numbers or a small array of numpy, whose state can be copied.

    The bytes of a masked array do not have its mask.
    """
    numpy = sys.modules.get("numpy")
    is_array = numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc"
    is_plain = is_array and not hasattr(value, "mask")
    return isinstance(value, random.Random) or (is_plain and value.nbytes <= _MOST_BYTES)


def fill(held: Any, content: Any) -> None:
    """Restore the content."""
    if isinstance(held, CellType):
        held.cell_contents = content
    elif isinstance(held, random.Random):
        held.setstate(content)
    elif is_numbers(held):
        held[...] = sys.modules["numpy"].frombuffer(content, held.dtype).reshape(held.shape)
    elif isinstance(held, array):
        held[:] = array(held.typecode, content)
    elif isinstance(held, bytearray):
        held[:] = bytearray(content)
    elif not isinstance(held, itertools.count):  # a counter cannot be reset
        base = next(base for base in BUILT_IN if isinstance(held, base))
        base.clear(held)
        (base.extend if base in (list, deque) else base.update)(held, content)


def has_content(held: Any, content: Any) -> bool:
    """Whether a list, set or cell has this content."""
    if type(held) is list and len(held) == len(content) and all(map(operator.is_, held, content)):
        return True
    return is_equal(content, copy_of(held))


def is_same(one: Any, other: Any) -> bool:
    """Whether two tables have the same keys in the same order, and identical values."""
    return [*one] == [*other] and all(map(operator.is_, one.values(), other.values()))


def is_equal(one: Any, other: Any) -> bool:
    """Whether two values are identical, equal plain values, or containers of such, which torch copies."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in (list, tuple, deque):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if type(one) in TABLES:
        return [*one] == [*other] and all(map(is_equal, one.values(), other.values()))
    if type(one) is set:
        return {*map(id, one)} == {*map(id, other)}
    return type(one) in PLAIN and bool(one == other)
