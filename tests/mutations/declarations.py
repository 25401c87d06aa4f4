"""Corruptions of declared shapes, dtypes, sizes and structure."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.mutations.kinds import Mutant, graphs, kind, shuffled
from tests.mutations.subjects import Subject
from torch_ir import IR, TensorMeta
from torch_ir.ir import Branch, Slot
from torch_ir.ir.graph.io_tree import Tree

_OTHER_DTYPES = {"float32": "float64", "int64": "int32", "bool": "uint8", "int32": "int64"}


def _redeclared(
    subject: Subject, rng: random.Random, fits: Callable[[TensorMeta], bool], change: Callable[[TensorMeta], None]
) -> Iterator[Mutant]:
    """Every tensor that fits, described otherwise, one at a time."""
    places = [
        (g, t) for g, graph in enumerate(graphs(subject.ir)) for t, tensor in enumerate(graph.tensors()) if fits(tensor)
    ]
    for g, t in shuffled(places, rng):
        copy = subject.ir.clone()
        tensor = list(graphs(copy)[g].tensors())[t]
        before = repr(tensor)
        change(tensor)
        yield Mutant(f"{before} declared {tensor!r}", copy)


@kind("declared size changed")
def size(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    def change(tensor: TensorMeta) -> None:
        place = rng.randrange(len(tensor.shape))
        dim = tensor.shape[place]
        other = f"({dim}) + 1" if isinstance(dim, str) else dim + 1
        tensor.shape = (*tensor.shape[:place], other, *tensor.shape[place + 1 :])

    return _redeclared(subject, rng, lambda tensor: bool(tensor.shape), change)


@kind("declared dimension left out")
def rank(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    def change(tensor: TensorMeta) -> None:
        tensor.shape, tensor.stride = tensor.shape[1:], None

    return _redeclared(subject, rng, lambda tensor: bool(tensor.shape), change)


@kind("declared dtype changed")
def dtype(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    def change(tensor: TensorMeta) -> None:
        tensor.dtype = _OTHER_DTYPES.get(tensor.dtype, "float32")

    return _redeclared(subject, rng, lambda tensor: True, change)


@kind("range of a size excludes the given one")
def excluding_range(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for name in shuffled(subject.ir.symbols, rng):
        copy = subject.ir.clone()
        copy.symbols[name].min, copy.symbols[name].max = 40, 60
        yield Mutant(f"{name} must be from 40 to 60", copy)


@kind("range of a size narrowed")
def narrow_range(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    """The given size is still within the range."""
    for name in shuffled(subject.ir.symbols, rng):
        copy = subject.ir.clone()
        copy.symbols[name].max = 5
        yield Mutant(f"{name} must be at most 5", copy)


@kind("false constraint added")
def constraint(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for name in shuffled(subject.ir.symbols, rng):
        copy = subject.ir.clone()
        copy.constraints.append(f"{name} > 20")
        yield Mutant(f"{name} > 20", copy)


@kind("size read off another place")
def binding(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for name in shuffled(subject.ir.symbols, rng):
        for tensor in range(len(subject.ir.graph_inputs)):
            for dim in range(len(subject.ir.graph_inputs[tensor].shape)):
                copy = subject.ir.clone()
                symbol = copy.symbols[name]
                if (symbol.tensor, symbol.dim) != (copy.graph_inputs[tensor], dim):
                    symbol.tensor, symbol.dim = copy.graph_inputs[tensor], dim
                    yield Mutant(f"{name} is dimension {dim} of {symbol.tensor.name}", copy)


@kind("key of an output renamed")
def output_key(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    yield from _regrown(subject, _renamed(subject.ir.output_tree), "an output has another key")


@kind("container of outputs changed")
def output_container(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    yield from _regrown(subject, _recast(subject.ir.output_tree), "a tuple is a list, or the other way round")


@kind("output nested deeper")
def output_deeper(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    yield from _regrown(subject, Branch("tuple", (subject.ir.output_tree,)), "the output is in a tuple of its own")


@kind("output that is no tensor changed")
def output_leaf(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    yield from _regrown(subject, _other_leaf(subject.ir.output_tree), "a number or None is another one")


@kind("key of an input renamed")
def input_key(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    tree = _renamed(subject.ir.input_tree)
    if tree != subject.ir.input_tree:
        copy = subject.ir.clone()
        copy.input_tree = tree
        yield Mutant("an input has another key", copy)


def _regrown(subject: Subject, tree: Tree, about: str) -> Iterator[Mutant]:
    if tree != subject.ir.output_tree:
        copy: IR = subject.ir.clone()
        copy.output_tree = tree
        yield Mutant(about, copy)


def _renamed(tree: Tree) -> Tree:
    """The tree with the first key changed that there is."""
    if not isinstance(tree, Branch):
        return tree
    if tree.keys:
        return replace(tree, keys=(f"{tree.keys[0]}_", *tree.keys[1:]))
    return _first_changed(tree, _renamed)


def _recast(tree: Tree) -> Tree:
    if not isinstance(tree, Branch):
        return tree
    if tree.kind in ("tuple", "list") and not tree.keys:
        return replace(tree, kind="list" if tree.kind == "tuple" else "tuple")
    return _first_changed(tree, _recast)


def _other_leaf(tree: Tree) -> Tree:
    if isinstance(tree, Branch):
        return _first_changed(tree, _other_leaf)
    return tree if isinstance(tree, Slot) else 7


def _first_changed(tree: Branch, change: Callable[[Tree], Tree]) -> Branch:
    items = list(tree.items)
    for index, item in enumerate(items):
        if (changed := change(item)) != item:
            items[index] = changed
            return replace(tree, items=tuple(items))
    return tree
