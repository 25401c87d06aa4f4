"""Write attr_orders.txt and attr_defaults.json from the schemas of the installed torch: python -m tests.attr_orders

Run it for a new version of torch: names that files already hold must keep their order, which tests compare.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

import torch_ir.ir.graph.attr_order as attr_order
from torch_ir.ir.json.json_values import encode
from torch_ir.ops.schema import arguments, find_operator, operator_names
from torch_ir.ops.torch_internals import OpOverload
from torch_ir.ops.torch_types import to_name

FILE = Path(attr_order.__file__).with_name("attr_orders.txt")
DEFAULTS = FILE.with_name("attr_defaults.json")
_INDUCTOR = ("prims.inductor_", "prims._low_memory_")  # registered by some imports, and in no captured graph
NAMESPACES = ("_c10d_functional", "aten", "prims", "quantized_decomposed")


# their arguments are not the same in torch 2.11 to 2.15
_UNSETTLED = ("_scaled_dot_product_attention_math_for_mps", "_flash_attention_forward", "_cudnn_attention_forward")


def operators() -> Iterator[tuple[str, OpOverload]]:
    """Every operator that may be in a graph, by name."""
    for namespace in NAMESPACES:
        find_operator(f"{namespace}.any.default")  # imports the modules that register them
        for name in operator_names(namespace):
            operator = find_operator(name)
            is_written = not name.startswith(_INDUCTOR) and isinstance(operator, OpOverload)
            if is_written and not any(argument.is_out for argument in operator._schema.arguments):
                yield name, operator


def schema_orders() -> dict[str, tuple[str, ...]]:
    """The arguments of every operator, in order, but for those that are always tensors."""
    found = {}
    for name, operator in operators():
        names = tuple(argument.name for argument in operator._schema.arguments if str(argument.type) != "Tensor")
        if len(names) > 1:
            found[name] = names
    return found


def schema_defaults() -> dict[str, dict[str, Any]]:
    """The defaults of every operator by argument, as in a JSON file."""
    found = {}
    for name, operator in operators():
        given = [argument for argument in arguments(operator) if argument.has_default]
        if given and name.split(".")[1] not in _UNSETTLED:
            found[name] = {argument.name: encode(to_name(argument.default)) for argument in given}
    return found


def common_order(orders: dict[str, tuple[str, ...]]) -> list[str]:
    """One order of all names that agrees with as many operators as a greedy search finds."""
    before: Counter[tuple[str, str]] = Counter()
    for names in orders.values():
        before.update((one, other) for at, one in enumerate(names) for other in names[at + 1 :])
    left, order = sorted({name for names in orders.values() for name in names}), []
    while left:
        first = min(left, key=lambda name: sum(max(0, before[one, name] - before[name, one]) for one in left))
        order.append(first)
        left.remove(first)
    return order


def text(orders: dict[str, tuple[str, ...]], order: list[str]) -> str:
    """The common order in the first paragraph, then a line for each operator that has another one."""
    place = {name: number for number, name in enumerate(order)}
    other = {op: names for op, names in orders.items() if sorted(names, key=place.__getitem__) != list(names)}
    rows = [f"{op}: {' '.join(names)}" for op, names in sorted(other.items())]
    return "\n".join([fill(" ".join(order), 119, break_long_words=False, break_on_hyphens=False), "", *rows, ""])


if __name__ == "__main__":
    found = schema_orders()
    FILE.write_text(text(found, common_order(found)), encoding="utf-8")
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(schema_defaults().items()))
    DEFAULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
