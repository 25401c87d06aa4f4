"""Make prefill return the keys and values of its tokens, without the buffers of a cache of fixed length."""

from __future__ import annotations

import torch

from torch_ir.errors import GraphError
from torch_ir.ir import IR, Branch, Slot, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.llm.cache_layout import CACHE, cache_outputs, keyword_inputs
from torch_ir.llm.forms.fixed_parts import fixed_tensors, new_budget, values_at
from torch_ir.llm.joined_entries import keep_inputs, remove_idle

_WRITE = "aten.index_copy.default"
_TOKENS = 2  # the dimension of keys and values with one entry for each token
_SAMPLE = 7  # tokens of a prompt with which the places of entries are computed


def growing(ir: IR, batch: str, seq: str) -> IR:
    """Return prefill whose cache has the entries of the prompt; a copy if that of `ir` has a fixed length.

    before   return index_copy(zeros[b, h, 64, d], 2, arange(seq), key)
    after    return key
    """
    states = cache_outputs(ir)
    is_fixed = any(len(tensor.shape) == 4 and isinstance(tensor.shape[_TOKENS], int) for tensor in states.values())
    if not is_fixed or not all(place.endswith((".key", ".value")) for place in states):  # others are refused by layer
        return ir
    graph = ir.clone()
    made, given = cache_outputs(graph), list(keyword_inputs(graph, CACHE).values())
    fixed = fixed_tensors(graph)
    budget = new_budget()
    entries = {place: _entries(graph, place, tensor, fixed, batch, seq, budget) for place, tensor in made.items()}
    tree = graph.output_tree
    assert isinstance(tree, Branch)  # extract_llm returns a dict
    others = {key: item for key, item in zip(tree.keys, tree.items, strict=True) if key != CACHE}
    graph.mutations = [(target, value) for target, value in graph.mutations if target not in given]
    graph.graph_outputs = [
        *(graph.graph_outputs[item] for item in others.values() if isinstance(item, Slot)),
        *entries.values(),
    ]
    slots = tuple(map(Slot, range(len(others), len(others) + len(entries))))
    first = tuple(map(Slot, range(len(others))))
    graph.output_tree = Branch("dict", (*first, Branch("dict", slots, tuple(entries))), (*others, CACHE))
    keep_inputs(graph, [tensor for tensor in graph.graph_inputs if tensor not in given])  # a cache in place
    remove_idle(graph)
    return graph


def _entries(
    graph: IR, place: str, tensor: TensorMeta, fixed: set[TensorMeta], batch: str, seq: str, budget: Budget
) -> TensorMeta:
    """Return the keys or values that are written to the start of a buffer; attention must read them, not the buffer."""
    node = tensor.producer
    if node is None or node.op_type != _WRITE or node["dim"] not in (_TOKENS, _TOKENS - 4):
        raise GraphError(f"{place!r:.80} is not written by one index_copy; extract without cache_length")
    entries: TensorMeta = node["source"]
    index = node["index"]
    is_read = any(reader.outputs and reader is not graph.returns for reader in tensor._uses)
    if index not in fixed or entries.shape[_TOKENS] != seq or is_read:
        raise GraphError(f"prefill reads the buffer of {place!r:.80}; extract again, or without cache_length")
    (places,) = values_at(graph, [index], {batch: 2, seq: _SAMPLE}, {}, budget)
    if not torch.equal(places.cpu(), torch.arange(_SAMPLE)):
        raise GraphError(f"{place!r:.80} is not written at the positions of the prompt; extract without cache_length")
    return entries
