"""Corruptions of attributes."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.mutations.kinds import Mutant, each_node, graphs, kind, shuffled
from tests.mutations.subjects import Subject
from torch_ir.ir import Dtype, Expr, evaluate
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.run.executor import flatten_call, read_sizes

_OTHER_DTYPES = {"float32": "float64", "int64": "int32", "bool": "uint8"}
_OTHER_TEXTS = {
    "none": "tanh",
    "tanh": "none",
    "ortho": "forward",
    "floor": "trunc",
    "trunc": "floor",
    "ij": "xy",
    "mean": "sum",
    "sum": "amax",
    "bilinear": "bicubic",
    "constant": "reflect",
    "reflect": "replicate",
}


def _changed(
    subject: Subject, rng: random.Random, fits: Callable[[Any], bool], change: Callable[[Any], Any]
) -> Iterator[Mutant]:
    """Every attribute that fits, changed, one at a time."""
    places = [
        (g, n, name)
        for g, graph in enumerate(graphs(subject.ir))
        for n, node in enumerate(graph.nodes)
        for name, value in node.attrs.items()
        if fits(value)
    ]
    for g, n, name in shuffled(places, rng):
        copy = subject.ir.clone()
        node = graphs(copy)[g].nodes[n]
        before, node.attrs[name] = node.attrs[name], change(node.attrs[name])
        yield Mutant(f"{node.name}: {name} {before!r} -> {node.attrs[name]!r}", copy)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


@kind("integer attribute + 1")
def integer_up(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    return _changed(subject, rng, lambda value: type(value) is int, lambda value: value + 1)


@kind("integer attribute - 1")
def integer_down(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    return _changed(subject, rng, lambda value: type(value) is int, lambda value: value - 1)


@kind("float attribute doubled")
def number_doubled(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    return _changed(
        subject, rng, lambda value: type(value) is float and math.isfinite(value), lambda value: 2 * value or 1.0
    )


@kind("float attribute off by 1/10")
def number_off(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    return _changed(subject, rng, lambda value: type(value) is float, lambda value: value * 1.1 or 0.1)


@kind("bool attribute flipped")
def flag(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    return _changed(subject, rng, lambda value: type(value) is bool, lambda value: not value)


@kind("element of a list attribute + 1")
def element(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    def one_up(values: list[int]) -> list[int]:
        place = rng.randrange(len(values))
        return [value + (index == place) for index, value in enumerate(values)]

    return _changed(subject, rng, _is_list, one_up)


@kind("element of a list attribute dropped")
def shorter(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    return _changed(subject, rng, _is_list, lambda values: values[:-1])


@kind("list attribute reversed")
def reversed_list(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    return _changed(subject, rng, lambda value: _is_list(value) and value != value[::-1], lambda values: values[::-1])


@kind("attribute set to None")
def absent(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    return _changed(subject, rng, lambda value: value is not None, lambda value: None)


@kind("attribute left out")
def missing(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    for copy, _, node in each_node(subject.ir, rng, lambda node: bool(node.attrs)):
        name = rng.choice(list(node.attrs))
        yield Mutant(f"{node.name}: without {name} = {node.attrs.pop(name)!r}", copy)


@kind("dtype attribute changed")
def dtype(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    return _changed(
        subject,
        rng,
        lambda value: isinstance(value, Dtype),
        lambda value: Dtype(_OTHER_DTYPES.get(value, "float32")),
    )


@kind("text attribute changed")
def text(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    return _changed(subject, rng, lambda value: type(value) is str, lambda value: _OTHER_TEXTS.get(value, f"{value}_"))


@kind("symbolic attribute + 1")
def symbolic(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    def is_symbolic(value: Any) -> bool:
        return any(isinstance(item, Expr) for item in (value if isinstance(value, list) else [value]))

    def one_up(value: Any) -> Any:
        if isinstance(value, list):
            place = next(index for index, item in enumerate(value) if isinstance(item, Expr))
            return [one_up(item) if index == place else item for index, item in enumerate(value)]
        return Expr(f"({value}) + 1")

    return _changed(subject, rng, is_symbolic, one_up)


@kind("symbolic attribute made a number")
def specialised(subject: Subject, rng: random.Random) -> Iterator[Mutant]:
    """Return its number for the given inputs."""
    sizes = read_sizes(subject.ir, flatten_call(subject.ir, subject.args, subject.kwargs))

    def fits(value: Any) -> bool:
        return isinstance(value, Expr) and all(name in sizes for name in names_in(value))

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return [number(item) for item in value]
        return evaluate(value, sizes) if fits(value) else value

    return _changed(subject, rng, lambda value: number(value) != value, number)
