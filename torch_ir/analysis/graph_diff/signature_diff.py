"""Differences between graphs besides their nodes: inputs, weights, outputs, sizes and header fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_ir.analysis.graph_diff.node_diff import described, tables
from torch_ir.analysis.graph_diff.node_keys import facts
from torch_ir.analysis.graph_diff.tensor_pairs import Counterparts, keys_of
from torch_ir.ir import IR


def signatures(one: IR, other: IR, *, with_modules: bool) -> Iterator[str]:
    """Yield differences in everything besides weights, nodes and functions."""
    if len(one.graph_inputs) != len(other.graph_inputs):
        yield f"{len(one.graph_inputs)} / {len(other.graph_inputs)} inputs"
    for at, (mine, its) in enumerate(zip(one.graph_inputs, other.graph_inputs, strict=False)):
        if facts(mine) != facts(its):
            yield f"input {at}: {described(mine)} / {described(its)}"
    for name in ("input_tree", "output_tree", "constraints", "device", "mesh", "fixed_layout", "extensions"):
        mine, its = _compared(one, name), _compared(other, name)
        if repr(mine) != repr(its):
            yield f"{name}: {mine!r} / {its!r}"
    ranges = [{name: symbol.range for name, symbol in ir.symbols.items()} for ir in (one, other)]
    yield from (f"size {text}" for text in tables(*ranges))
    if with_modules:
        yield from (f"module {text}" for text in tables(one.modules, other.modules))


def _compared(ir: IR, name: str) -> Any:
    """Return an attribute of a graph, without the way by which it was captured."""
    value = getattr(ir, name)
    return {key: each for key, each in value.items() if key != "captured_by"} if name == "extensions" else value


def weights(one: IR, other: IR, *, with_order: bool) -> Iterator[str]:
    sides = [{keys_of(tensor): tensor for tensor in ir.params} for ir in (one, other)]
    for keys in {**sides[0], **sides[1]}:
        mine, its = sides[0].get(keys), sides[1].get(keys)
        title = f"weight {' = '.join(map(repr, keys))}"
        if mine is None or its is None:
            yield f"{title} only in the {'second' if mine is None else 'first'}"
        elif facts(mine) != facts(its):
            yield f"{title}: {described(mine)} / {described(its)}"
        elif mine.param and its.param:
            if mine.param.kind != its.param.kind:
                yield f"{title}: a {mine.param.kind} / a {its.param.kind}"
            if mine.param.data != its.param.data:
                yield f"{title}: its values differ"
    if with_order and sides[0].keys() == sides[1].keys() and [*sides[0]] != [*sides[1]]:
        yield "weights come in another order"


def returns(one: IR, other: IR, counterparts: Counterparts) -> Iterator[str]:
    """Yield differences in outputs and mutations."""
    if len(one.graph_outputs) != len(other.graph_outputs):
        yield f"{len(one.graph_outputs)} / {len(other.graph_outputs)} outputs"
    for at, (mine, its) in enumerate(zip(one.graph_outputs, other.graph_outputs, strict=False)):
        if not counterparts.are(mine, its):
            yield f"output {at}: {mine.name!r} / {its.name!r}"
    if len(one.mutations) != len(other.mutations):
        yield f"{len(one.mutations)} / {len(other.mutations)} tensors are changed"
    for left, right in zip(one.mutations, other.mutations, strict=False):
        if not all(map(counterparts.are, left, right)):
            yield f"changes {left[0].name!r} to {left[1].name!r} / {right[0].name!r} to {right[1].name!r}"


def sizes(one: IR, other: IR, counterparts: Counterparts) -> Iterator[str]:
    """Yield differences in the tensors that symbolic sizes are bound to."""
    for name in (name for name in one.symbols if name in other.symbols):
        mine, its = one.symbols[name], other.symbols[name]
        if not counterparts.are(mine.tensor, its.tensor) or mine.dim != its.dim:
            yield f"size {name} is bound to another tensor or dimension"
