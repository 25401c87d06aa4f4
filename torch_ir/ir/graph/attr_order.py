"""Write attributes in the order of the operator's schema, whatever order the node has them in.

`attr_orders.txt` stores that order, so that equal graphs serialise to equal bytes with or without torch: one
common order of all argument names, and the operators that deviate from it. Attributes of other operators keep the order
of the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

_NAMESPACES = ("aten.", "prims.", "_c10d_functional.", "quantized_decomposed.")


def ordered(op_type: str, attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes in schema order; the same object if they already are."""
    if len(attrs) < 2 or not op_type.startswith(_NAMESPACES):
        return attrs
    names = _ordered_names(op_type, tuple(attrs))
    return attrs if names is None else {name: attrs[name] for name in names}


@lru_cache(maxsize=1 << 14)
def _ordered_names(op_type: str, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return these names in schema order; None if they already are, or if one is not an operator argument."""
    common, own = _tables()
    places = own.get(op_type, common)
    if any(name.partition(".")[0] not in places for name in names):
        return None
    found = tuple(sorted(names, key=lambda name: _place(name, places)))
    return None if found == names else found


def _place(name: str, places: Mapping[str, int]) -> tuple[int, tuple[int, ...], str]:
    """Return the sort key of a name; list elements such as `tensors.10` sort by their index."""
    base, *indices = name.split(".")
    return places[base], tuple(int(index) for index in indices if index.isdecimal()), name


@cache
def _tables() -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Return the position of each name in the common order, and the orders of operators that deviate from it."""
    text = Path(__file__).with_name("attr_orders.txt").read_text(encoding="utf-8")
    common, _, rows = text.partition("\n\n")
    own = dict(row.split(": ") for row in rows.splitlines())
    return _places(common), {op_type: _places(names) for op_type, names in own.items()}


def _places(names: str) -> dict[str, int]:
    return {name: place for place, name in enumerate(names.split())}
