"""KV cache of a language model among the inputs and outputs of a graph.

A cache tensor has at least three dimensions, and is recognised in one of three ways:
- an input or output whose path or name contains `cache`, `past`, `present` or `kv`;
- an input or buffer that the graph mutates;
- an output that one node computes from such an input, as `cat` does when the cache grows.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import total
from torch_ir.ir import IR, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Tree, leaves
from torch_ir.ir.json.json_fields import Dim

_WORDS = re.compile(r"(?:^|[^a-z])(?:\w*cache|past|present|kv)(?:[^a-z]|$)", re.IGNORECASE)
_LEAST_RANK = 3  # batch, position, width: positions and lengths have fewer


@dataclass(frozen=True)
class KvCache:
    """The cache tensors that a run takes, and those that it returns."""

    given: tuple[TensorMeta, ...]
    left: tuple[TensorMeta, ...]

    @property
    def bytes_given(self) -> Dim:
        return total(map(bytes_of, self.given))

    @property
    def bytes_left(self) -> Dim:
        return total(map(bytes_of, self.left))


def kv_cache(ir: IR) -> KvCache:
    """Return the cache of a graph; empty if it has none."""
    changed = [(target, value) for target, value in ir.mutations if len(target.shape) >= _LEAST_RANK]
    given = dict.fromkeys([*_named(ir.input_tree, ir.graph_inputs), *(target for target, _ in changed)])
    grown = [tensor for tensor in ir.graph_outputs if _is_grown(tensor, given)]
    left = [*_named(ir.output_tree, ir.graph_outputs), *grown, *(value for _, value in changed)]
    return KvCache(tuple(given), tuple(dict.fromkeys(left)))


def _named(tree: Tree, tensors: Sequence[TensorMeta]) -> Iterator[TensorMeta]:
    slots = [(path, tensors[leaf]) for path, leaf in leaves(tree) if isinstance(leaf, Slot)]
    for path, tensor in slots:
        if len(tensor.shape) >= _LEAST_RANK and (_WORDS.search(path) or _WORDS.search(tensor.name)):
            yield tensor


def _is_grown(tensor: TensorMeta, given: Container[TensorMeta]) -> bool:
    kind = (len(tensor.shape), tensor.dtype)
    sources = tensor.producer.inputs if tensor.producer else ()
    return any(source in given and (len(source.shape), source.dtype) == kind for source in sources)
