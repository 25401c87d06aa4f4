"""The layer of a node: an element of a module list, or a module outside such lists."""

from __future__ import annotations

from collections.abc import Iterable

from torch_ir.ir import OpNode
from torch_ir.ir.graph.origins import modules_around


def layer_of(node: OpNode, depth: int) -> str:
    """Return the layer of a node, by its module path."""
    return layer_of_path(node.origin.module, depth)


def layer_of_path(path: str, depth: int) -> str:
    """Return a module path up to its `depth`-th number: `model.layers.3` of `model.layers.3.mlp.gate`."""
    steps = path.split(".")
    numbers = [at for at, step in enumerate(steps) if step.isdecimal()]
    end = numbers[min(depth, len(numbers)) - 1] + 1 if numbers else len(steps)
    return ".".join(steps[:end])


def by_layer(nodes: Iterable[OpNode], depth: int) -> list[list[OpNode]]:
    """Group nodes by layer; nodes of enclosing modules that follow, such as residual sums, go with the layer."""
    rows: list[list[OpNode]] = []
    current = ""
    for node in nodes:
        layer = layer_of(node, depth)
        if not rows or layer not in modules_around(current):
            rows.append([])
            current = layer
        rows[-1].append(node)
    return rows
