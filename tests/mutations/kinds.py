"""The table of corruptions: a name, and a function that returns corrupted copies of a subject in random order."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from tests.mutations.subjects import Subject
from torch_ir import IR, OpNode


@dataclass(frozen=True)
class Mutant:
    """A subject with one error: another graph, or other weights."""

    about: str
    ir: IR
    weights: dict[str, torch.Tensor] | None = None


Corruption = Callable[[Subject, random.Random], Iterator[Mutant]]
T = TypeVar("T")
KINDS: dict[str, Corruption] = {}


def kind(name: str) -> Callable[[Corruption], Corruption]:
    """A row of the table."""

    def register(function: Corruption) -> Corruption:
        assert name not in KINDS, f"two kinds are called {name!r}"
        KINDS[name] = function
        return function

    return register


def graphs(ir: IR) -> list[IR]:
    """A graph and all its functions."""
    return [ir, *(graph for body in ir.functions.values() for graph in graphs(body))]


def each_node(
    ir: IR, rng: random.Random, is_meant: Callable[[OpNode], object] = lambda node: True
) -> Iterator[tuple[IR, IR, OpNode]]:
    """Every node that is meant in random order, in a fresh copy of the whole: (copy, graph of the node, node)."""
    whole = graphs(ir)
    places = [(g, n) for g, graph in enumerate(whole) for n in range(len(graph.nodes))]
    rng.shuffle(places)
    for g, n in places:
        if not is_meant(whole[g].nodes[n]):
            continue
        copy = ir.clone()
        graph = graphs(copy)[g]
        yield copy, graph, graph.nodes[n]


def shuffled(items: Iterable[T], rng: random.Random) -> list[T]:
    """The items in random order."""
    found = list(items)
    rng.shuffle(found)
    return found
