"""Which cache input of decode is which output of prefill and of decode itself: names, shapes and bytes, by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_ir.errors import GraphError
from torch_ir.ir import IR, Branch, Slot, TensorMeta
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ir.json.json_fields import Dim

DECODE = "decode"  # the function that holds the second graph


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of the cache on its way round: prefill gives it, decode reads it and gives its successor.

    `decode_output` is None where decode leaves it as it is, as with the encoder's part of an encoder-decoder. `bytes`
    is a number, or an expression where sizes vary.
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
    """The cache tensors of a graph that `extract_llm` made, in the order of the layers."""
    decode = decode_graph(ir)
    made, kept = cache_outputs(ir), cache_outputs(decode)
    return [
        CacheTensor(
            name,
            int(name.split(".")[1]),
            made[name].name,
            tensor.name,
            kept[name].name if name in kept else None,
            tensor.shape,
            tensor.dtype,
            _bytes(tensor),
        )
        for name, tensor in _under("cache", decode.input_tree, decode.graph_inputs).items()
    ]


def decode_graph(ir: IR) -> IR:
    """The graph of one step; the prefill graph is `ir` itself."""
    if DECODE not in ir.functions:
        raise GraphError(f"{ir!r} has no function {DECODE!r}; make such a graph with torch_ir.llm.extract_llm")
    return ir.functions[DECODE]


def cache_outputs(ir: IR) -> dict[str, TensorMeta]:
    """The tensors that a graph returns under `cache`, by name."""
    return _under("cache", ir.output_tree, ir.graph_outputs)


def _under(key: str, tree: Tree, tensors: list[TensorMeta]) -> dict[str, TensorMeta]:
    found = next((item for name, item in _items(tree) if name == key), None)
    return {name: tensors[slot] for name, slot in _items(found) if isinstance(slot, Slot)}


def _items(tree: Tree) -> Iterator[tuple[str, Tree]]:
    """The entries of the first dict of a tree, which for inputs is that of the keywords."""
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
