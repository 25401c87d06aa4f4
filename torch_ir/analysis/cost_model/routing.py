"""Work that the data decides: the experts that get tokens, and sizes such as those of `nonzero`.

A router chooses `choices` of `experts` for each token. The expectation takes every choice as equally likely:

    rows of an expert             tokens * choices / experts
    experts that get any token    experts * (1 - (1 - choices / experts) ** tokens)

The lower bound sends all tokens to the same experts, the upper bound to as many as possible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch_ir.analysis.shapes.size_polynomials import product
from torch_ir.ir import IR, Dim, OpNode, TensorMeta

LOWER, EXPECTED, UPPER = CASES = ("lower", "expected", "upper")
_ROUTER, _SORTING, _SENDING = "aten.topk", ("aten.sort", "aten.argsort"), "_c10d_functional.all_to_all_single"
_NEAR = 64  # nodes between a router and what it decides
_COUNTING = ("nonzero", "nonzero_numpy", "masked_select", "unique", "_unique", "_unique2", "unique_consecutive",
             "unique_dim", "index", "argwhere")  # fmt: skip


@dataclass(frozen=True)
class Routing:
    """A router of tokens to experts."""

    tokens: int
    choices: int
    experts: int

    def rows(self, experts: int, case: str) -> float:
        """Return how many rows these experts get together, of `tokens * choices`."""
        most = self.tokens * min(self.choices, experts)
        least = self.tokens * max(0, self.choices - (self.experts - experts))
        return {LOWER: least, EXPECTED: self.tokens * self.choices * experts / self.experts, UPPER: most}[case]

    def used(self, experts: int, case: str) -> float:
        """Return how many of these experts get any token."""
        least = max(0, self.choices - (self.experts - experts)) if self.tokens else 0
        most = min(experts, self.tokens * min(self.choices, experts))
        missed = (1 - self.choices / self.experts) ** self.tokens
        return {LOWER: least, EXPECTED: experts * (1 - missed), UPPER: most}[case]


class DataSize(NamedTuple):
    """Bounds and expectation of a size that the data decides."""

    lower: int
    expected: int
    upper: int


def routing_behind(tensor: TensorMeta) -> Routing | None:
    """Return the nearest router that a tensor depends on; None if there is none, or its sizes are open or invalid.

    A rank may route all tokens and sort its own: the tokens are those whose choices are sorted, of all ranks that send
    them.
    """
    nodes = [tensor.producer] if tensor.producer else []
    seen = set(nodes)
    rows: Dim | None = None
    ranks = 1
    for node in nodes:  # breadth first: `nodes` grows
        if node.op_type.startswith(_ROUTER):
            found = _routing_of(node)
            if found is None or not isinstance(rows, int) or rows % found.choices:
                return found
            return replace(found, tokens=rows // found.choices * ranks)
        if node.op_type.startswith(_SORTING) and node.inputs and len(node.inputs[0].shape) == 1:
            rows = rows or node.inputs[0].shape[0]
        if node.op_type.startswith(_SENDING):
            sizes = node.attrs.get("input_split_sizes")
            ranks = len(sizes) if sizes and isinstance(sizes, list) else 1
        for each in node.inputs:
            if each.producer and each.producer not in seen and len(seen) < _NEAR:
                seen.add(each.producer)
                nodes.append(each.producer)
    return None


def _routing_of(node: OpNode) -> Routing | None:
    scores = node.inputs[0].shape if node.inputs else ()
    dim, chosen = node.get("dim", -1), node.get("k")
    if not isinstance(dim, int) or not -len(scores) <= dim < len(scores):
        return None
    if not all(isinstance(size, int) and size > 0 for size in (*scores, chosen)):
        return None
    experts = int(scores[dim])
    return Routing(math.prod(map(int, scores)) // experts, min(chosen, experts), experts)


def data_sizes(ir: IR, given: Mapping[str, int]) -> dict[str, DataSize]:
    """Return the sizes that nodes of a graph decide, other than `given`, where their bounds are numbers.

    Without a router the expectation is the middle: nothing is known of the data.
    """
    found = {}
    for name, symbol in ir.symbols.items():
        node = symbol.tensor.producer if symbol.tensor is not None and name not in given else None
        if node is None or symbol.tensor is None:
            continue
        most = _most(node) if symbol.dim is not None else None
        uppers = [bound for bound in (symbol.max, most) if isinstance(bound, int)]
        if not uppers:
            continue
        lower, upper = max(symbol.min or 0, 0), min(uppers)
        routing = routing_behind(symbol.tensor)
        if routing is None:
            found[name] = DataSize(lower, (lower + upper) // 2, upper)
        else:
            upper = min(upper, math.floor(routing.rows(1, UPPER)))
            found[name] = DataSize(lower, min(max(round(routing.rows(1, EXPECTED)), lower), upper), upper)
    return found


def _most(node: OpNode) -> int | None:
    """Return how many elements a node that counts or selects can return."""
    if node.op_type.split(".")[1:2] and node.op_type.split(".")[1] in _COUNTING and node.inputs:
        sizes = [product(*tensor.shape) for tensor in node.inputs]
        numbers = [size for size in sizes if isinstance(size, int)]
        return max(numbers) if len(numbers) == len(sizes) else None
    return None
