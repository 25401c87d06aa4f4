"""The cache of a language model among what goes into a graph and comes out of it.

A cache has at least three dimensions, and is known in one of three ways:
- it is an input or output whose path or name says so: `cache`, `past`, `present`, `kv`;
- it is an input or buffer that the graph changes;
- it is an output that one node makes of such an input, as `cat` does when the cache grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import total
from torch_ir.ir import IR, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Tree, leaves
from torch_ir.ir.json.json_fields import Dim

_WORDS = re.compile(r"(?:^|[^a-z])(?:\w*cache|past|present|kv)(?:[^a-z]|$)", re.IGNORECASE)
_LEAST_RANK = 3  # batch, place, width: positions and lengths have fewer


@dataclass(frozen=True)
class KvCache:
    """The tensors of the cache that a run is given, and those that it leaves."""

    given: tuple[TensorMeta, ...]
    left: tuple[TensorMeta, ...]

    @property
    def bytes_given(self) -> Dim:
        return total(map(bytes_of, self.given))

    @property
    def bytes_left(self) -> Dim:
        return total(map(bytes_of, self.left))


def kv_cache(ir: IR) -> KvCache:
    """The cache of a graph; of a graph without one, nothing."""
    changed = [(target, value) for target, value in ir.mutations if len(target.shape) >= _LEAST_RANK]
    given = [*_named(ir.input_tree, ir.graph_inputs), *(target for target, _ in changed)]
    grown = [tensor for tensor in ir.graph_outputs if _is_grown(tensor, given)]
    left = [*_named(ir.output_tree, ir.graph_outputs), *grown, *(value for _, value in changed)]
    return KvCache(tuple(dict.fromkeys(given)), tuple(dict.fromkeys(left)))


def _named(tree: Tree, tensors: Sequence[TensorMeta]) -> Iterator[TensorMeta]:
    slots = [(path, tensors[leaf]) for path, leaf in leaves(tree) if isinstance(leaf, Slot)]
    for path, tensor in slots:
        if len(tensor.shape) >= _LEAST_RANK and (_WORDS.search(path) or _WORDS.search(tensor.name)):
            yield tensor


def _is_grown(tensor: TensorMeta, given: Sequence[TensorMeta]) -> bool:
    kind = (len(tensor.shape), tensor.dtype)
    sources = tensor.producer.inputs if tensor.producer else ()
    return any(source in given and (len(source.shape), source.dtype) == kind for source in sources)
