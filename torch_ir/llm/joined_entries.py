"""The entry points of a language model in one file, and how the outputs of one are the inputs of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.entries.entry_feeds import Feed, describe
from torch_ir.ir import IR, Branch, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ir.regroup.functions import further_entries
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.llm.cache_layout import DECODE, cache_outputs, keyword_inputs

MODALITIES = ("image", "video", "audio")
PREFILL = "prefill"  # the graph itself
ENCODE, PROJECT = "encode_", "project_"  # prefixes of functions, followed by a modality
ROWS = ("cross_attention_mask",)  # inputs with a row for each token, of which each new token has the last


@dataclass(frozen=True)
class Edge:
    """An output of one entry point that is an input of another; `place` is its key in both, such as `layers.0.key`."""

    source: str
    target: str
    argument: str  # of the target: a dict of tensors
    place: str
    output: str  # name of the tensor in the graph of the source
    input: str  # name of the tensor in the graph of the target


def entry_graphs(ir: IR) -> dict[str, IR]:
    """Return the entry points of a file by name, in the order in which they run."""
    further = further_entries(ir)
    first = [prefix + modality for modality in MODALITIES for prefix in (ENCODE, PROJECT)]
    return {
        **{name: further[name] for name in first if name in further},
        PREFILL: ir,
        **({DECODE: further[DECODE]} if DECODE in further else {}),
    }


def entry_map(ir: IR) -> list[Edge]:
    """Return which outputs of the entry points are inputs of others, from the encoders to the cache of decode."""
    return [edge for source, target, argument in _routes(ir) for edge in _edges(ir, source, target, argument)]


def describe_entries(ir: IR) -> dict[str, Any]:
    """Return the entry points and their map as JSON, for the extensions of the graph."""
    feeds = (Feed(edge.source, edge.place, edge.target, edge.argument) for edge in entry_map(ir))
    return describe(entry_graphs(ir), feeds)


def join_encoders(ir: IR, encoders: Mapping[str, IR]) -> None:
    """Add the encoders of a model to its prefill graph; both keep only the features that prefill reads."""
    unread = []
    for modality, graph in encoders.items():
        made = dict(zip(keyword_inputs(ir, modality), graph.graph_outputs, strict=True))
        given = keyword_inputs(ir, modality)
        unread += [tensor for tensor in given.values() if not tensor.consumers]
        keep_outputs(graph, {name: made[name] for name, tensor in given.items() if tensor.consumers})
        ir.functions[ENCODE + modality] = graph
    encoded = {tensor.name for graph in encoders.values() for tensor in graph.graph_inputs}
    unread += [tensor for tensor in ir.graph_inputs if tensor.name in encoded and not tensor.consumers]
    keep_inputs(ir, [tensor for tensor in ir.graph_inputs if tensor not in unread])


def keep_inputs(ir: IR, kept: list[TensorMeta]) -> None:
    """Remove the other inputs of a graph, which no node reads."""
    slots = {old: new for new, old in enumerate(i for i, tensor in enumerate(ir.graph_inputs) if tensor in kept)}
    positional, keywords = ir.input_tree.items
    assert isinstance(keywords, Branch)  # the second part of a call
    ir.input_tree = Branch("tuple", (positional, _kept(keywords, slots)))
    ir.graph_inputs[:] = kept
    sizes = {dim: (tensor, at) for tensor in reversed(kept) for at, dim in enumerate(tensor.shape)}
    for name, symbol in list(ir.symbols.items()):
        if symbol.tensor is None or symbol.tensor in kept or symbol.tensor.producer is not None:
            continue
        if name in sizes:
            tensor, at = sizes[name]
            ir.symbols[name] = replace(symbol, tensor=tensor, dim=at)
        else:
            del ir.symbols[name]
    ir.constraints[:] = [text for text in ir.constraints if names_in(text) <= ir.symbols.keys()]


def keep_outputs(ir: IR, kept: dict[str, TensorMeta]) -> None:
    """Return only these outputs, as a dict, and remove what only others need."""
    ir.graph_outputs = list(kept.values())
    ir.output_tree = Branch("dict", tuple(map(Slot, range(len(kept)))), tuple(kept))
    remove_idle(ir)


def remove_idle(ir: IR) -> None:
    """Remove nodes and weights that lead to no output and no change."""
    nodes, know = [], Knowledge.of(ir)
    for node in reversed(ir.nodes):
        if know.is_idle(node):
            node.inputs = ()
        else:
            nodes.append(node)
    ir.nodes[:] = nodes[::-1]
    written = {target for target, _ in ir.mutations}
    ir.params[:] = [param for param in ir.params if param.consumers or param in written]


def _routes(ir: IR) -> Iterator[tuple[str, str, str]]:
    """Yield pairs of entry points and the argument of the second that the first returns."""
    graphs = entry_graphs(ir)
    for modality in MODALITIES:
        encoder, projector = ENCODE + modality, PROJECT + modality
        chain = [name for name in (encoder, projector) if name in graphs]
        yield from ((source, target, modality) for source, target in pairwise([*chain, PREFILL]))
    if DECODE in graphs:
        yield from ((PREFILL, DECODE, "cache"), (DECODE, DECODE, "cache"))


def _edges(ir: IR, source: str, target: str, argument: str) -> Iterator[Edge]:
    graphs = entry_graphs(ir)
    made = cache_outputs(graphs[source]) if argument == "cache" else feature_outputs(graphs[source])
    for place, tensor in keyword_inputs(graphs[target], argument).items():
        if place in made:
            yield Edge(source, target, argument, place, made[place].name, tensor.name)


def feature_outputs(ir: IR) -> dict[str, TensorMeta]:
    """Return the outputs of an encoder by name."""
    tree = ir.output_tree
    if not isinstance(tree, Branch) or tree.kind != "dict":
        return {}
    places = zip(tree.keys, tree.items, strict=True)
    return {str(key): ir.graph_outputs[slot] for key, slot in places if isinstance(slot, Slot)}


def _kept(tree: Branch, slots: dict[int, int]) -> Branch:
    """Return a dict of inputs without those that are not in `slots`, and without empty dicts."""
    entries: list[tuple[str, Tree]] = []
    for key, item in zip(tree.keys, tree.items, strict=True):
        if isinstance(item, Slot):
            entries += [(key, Slot(slots[item]))] if item in slots else []
        elif not isinstance(item, Branch):
            entries.append((key, item))
        elif (inner := _kept(item, slots)).items:
            entries.append((key, inner))
    return Branch("dict", tuple(item for _, item in entries), tuple(key for key, _ in entries))
