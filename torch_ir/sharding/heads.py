"""Attention heads found in a graph, and plans for models with fewer heads than ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from re import Pattern

from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.graph.origins import joined

_VIEWS = ("aten.view", "aten.reshape", "aten._unsafe_view", "aten.unflatten", "aten.flatten")


def with_shared_heads(
    rows: Mapping[str, str], patterns: Mapping[str, Pattern[str]], ir: IR, ranks: int
) -> dict[str, str]:
    """Return a plan that replicates modules with too few heads to divide, if the modules beside them have more.

    Heads of keys and values are shared by heads of queries: every rank computes all of them and uses those it needs.
    """
    heads = _heads_by_row(rows, patterns, ir)
    most: dict[str, int] = {}
    for path, counts in heads.items():
        owner = path.rpartition(".")[0]
        most[owner] = max(most.get(owner, 0), *counts)
    found = dict(rows)
    for path, counts in heads.items():
        if any(count < most[path.rpartition(".")[0]] and count % ranks for count in counts):
            found[path] = "replicate"
    return found


def _heads_by_row(rows: Mapping[str, str], patterns: Mapping[str, Pattern[str]], ir: IR) -> dict[str, set[int]]:
    """Return the numbers of heads in the outputs of modules, by the row of the plan that shards them."""
    found: dict[str, set[int]] = {}
    for module, count in _heads(ir):
        path = next((path for path in rows if patterns[path].fullmatch(module)), None)
        if path is not None and rows[path] == "colwise":
            found.setdefault(path, set()).add(count)
    return found


def _heads(ir: IR, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield modules whose output is viewed as heads, with their number."""
    for node in ir.nodes:
        module = joined(path, node.origin.module)
        if node.is_call and node.attrs["function"] in ir.functions:
            yield from _heads(ir.functions[node.attrs["function"]], module)
        elif node.op_type == "aten.linear.default" and (count := heads_of(node.output)):
            yield module, count


def heads_of(tensor: TensorMeta) -> int:
    """Return the number of heads a tensor is viewed as, possibly after unary operators; 0 if it is not."""
    left = [tensor]
    while left:
        tensor = left.pop()
        for reader in tensor.consumers:
            if len(reader.inputs) != 1 or len(reader.outputs) != 1:
                continue
            if _is_view(reader) and (count := _split(tensor, reader.output)):
                return count
            if reader.output.shape[-1:] == tensor.shape[-1:]:
                left.append(reader.output)
    return 0


def heads_behind(tensor: TensorMeta) -> int:
    """Return the number of heads a tensor is a view of, possibly before unary operators; 0 if it is not."""
    while tensor.producer is not None and len(tensor.producer.inputs) == 1:
        source = tensor.producer.inputs[0]
        if _is_view(tensor.producer) and (count := _split(tensor, source)):
            return count
        if source.shape[-1:] != tensor.shape[-1:]:
            return 0
        tensor = source
    return 0


def _is_view(node: OpNode) -> bool:
    return base_name(node.op_type) in _VIEWS


def _split(tensor: TensorMeta, view: TensorMeta) -> int:
    """Return the number of heads that a view splits the last dimension into; 0 for any other view."""
    last = view.shape[-2:]
    is_split = len(view.shape) == len(tensor.shape) + 1 and all(isinstance(size, int) for size in last)
    return int(last[0]) if is_split and math.prod(map(int, last)) == tensor.shape[-1] else 0
