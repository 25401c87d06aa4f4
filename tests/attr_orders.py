"""Write torch_ir/ir/graph/attr_orders.txt from the schemas of the installed torch: python -m tests.attr_orders

Run it for a new version of torch: names that files already hold must keep their order, which tests compare.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import fill

import torch_ir.ir.graph.attr_order as attr_order
from torch_ir.ops.schema import find_operator, operator_names

FILE = Path(attr_order.__file__).with_name("attr_orders.txt")
_INDUCTOR = ("prims.inductor_", "prims._low_memory_")  # registered by some imports, and in no captured graph
NAMESPACES = ("_c10d_functional", "aten", "prims", "quantized_decomposed")


def schema_orders() -> dict[str, tuple[str, ...]]:
    """The arguments, in order, of every operator that may be in a graph, but for those that are always tensors."""
    found = {}
    for namespace in NAMESPACES:
        find_operator(f"{namespace}.any.default")  # imports the modules that register them
        for name in operator_names(namespace):
            operator = find_operator(name)
            arguments = operator._schema.arguments if operator is not None else []
            names = tuple(argument.name for argument in arguments if str(argument.type) != "Tensor")
            is_written = not name.startswith(_INDUCTOR) and not any(argument.is_out for argument in arguments)
            if len(names) > 1 and is_written:
                found[name] = names
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
