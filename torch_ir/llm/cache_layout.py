"""Map the cache inputs of decode to the outputs of prefill and decode: names, shapes and bytes, by layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch_ir.errors import GraphError
from torch_ir.ir import IR, Branch, Slot, TensorMeta
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import further_entries

DECODE = "decode"  # the function with the decode graph
CACHE = "cache"  # the argument and the output with the cache
_PLACE = re.compile(r"layers\.(\d{1,9})\..+", re.ASCII)


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of the cache: an output of prefill, and an input and output of decode.

    `decode_output` is None if decode does not change it, as for cross attention. `bytes` is a number, or an expression
    for symbolic sizes.
    """

    name: str
    layer: int
    prefill_output: str
    decode_input: str
    decode_output: str | None
    shape: tuple[Dim, ...]
    dtype: str
    bytes: Dim


def cache_map(ir: IR) -> list[CacheTensor]:
    """Return the cache tensors of a graph from `extract_llm`, in layer order."""
    decode = decode_graph(ir)
    made, kept = cache_outputs(ir), cache_outputs(decode)
    found = []
    for name, tensor in keyword_inputs(decode, CACHE).items():
        place = _PLACE.fullmatch(name)
        if place is None or name not in made:
            problem = "is not named as `layers.0.key`" if place is None else "is not an output of prefill"
            raise GraphError(f"the cache tensor {name!r:.80} of decode {problem}")
        layer, output = int(place[1]), kept[name].name if name in kept else None
        taken = tensor.name, output, tensor.shape, tensor.dtype, _bytes(tensor)
        found.append(CacheTensor(name, layer, made[name].name, *taken))
    return found


def decode_graph(ir: IR) -> IR:
    """Return the graph of one decode step; the prefill graph is `ir` itself."""
    entries = further_entries(ir)
    if DECODE not in entries:
        raise GraphError(f"{ir!r} has no function {DECODE!r}; make such a graph with torch_ir.llm.extract_llm")
    return entries[DECODE]


def cache_outputs(ir: IR) -> dict[str, TensorMeta]:
    """Return the outputs of a graph under `cache`, by name; for a cache in place, the new values of its inputs."""
    new = dict(ir.mutations)
    changed = {name: new[tensor] for name, tensor in keyword_inputs(ir, CACHE).items() if tensor in new}
    return changed | _under(CACHE, ir.output_tree, ir.graph_outputs)


def keyword_inputs(ir: IR, argument: str) -> dict[str, TensorMeta]:
    """Return the inputs of a graph in one keyword argument, a dict, by name."""
    return _under(argument, ir.input_tree, ir.graph_inputs)


def _under(key: str, tree: Tree, tensors: list[TensorMeta]) -> dict[str, TensorMeta]:
    found = next((item for name, item in _items(tree) if name == key), None)
    return {name: tensors[slot] for name, slot in _items(found) if isinstance(slot, Slot) and isinstance(name, str)}


def _items(tree: Tree) -> Iterator[tuple[str, Tree]]:
    """Yield the entries of the first dict of a tree; for inputs, that of the keywords."""
    if isinstance(tree, Branch) and tree.kind == "dict":
        yield from zip(tree.keys, tree.items, strict=True)
    elif isinstance(tree, Branch):
        for item in tree.items:
            yield from _items(item)


def _bytes(tensor: TensorMeta) -> Dim:
    number, names = DTYPES[tensor.dtype], []
    for dim in tensor.shape:
        if isinstance(dim, int):
            number *= dim
        else:
            names.append(dim if dim.isidentifier() else f"({dim})")
    return " * ".join([str(number), *names]) if names else number
