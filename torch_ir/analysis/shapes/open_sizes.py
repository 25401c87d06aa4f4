"""Open sizes: valid sample values, and the expression that matches values observed at several samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from itertools import combinations_with_replacement, islice

from torch_ir.analysis.shapes.size_polynomials import product, total
from torch_ir.errors import ExpressionError
from torch_ir.ir import IR, evaluate
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import called_by

Points = tuple[Mapping[str, int], ...]
_WANTED = 5
_TRIES = 20_000
_MOST_READ = 1_000_000  # symbols drawn and characters of constraints parsed, over all tries
_MOST_PRODUCTS = 1024
_MOST_PAIRED = 64  # sizes that are combined pairwise
_LARGEST_DIVISOR = 32
_MOST = 4096  # of an unbounded size
_LARGE = 1 << 20  # a size at the upper end of a range


_around: ContextVar[tuple[IR, ...]] = ContextVar("enclosing graphs, outermost first", default=())


@contextmanager
def inside(ir: IR) -> Iterator[None]:
    """While functions of this graph are analysed, allow them to read its sizes and those of enclosing graphs."""
    token = _around.set((*_around.get(), ir))
    try:
        yield
    finally:
        _around.reset(token)


def visit_graphs(ir: IR, visit: Callable[[IR], object]) -> None:
    """Call a function with a graph, then with its functions and theirs, each with the sizes that it may read."""
    visit(ir)
    called = called_by(ir.nodes)
    for name, body in ir.functions.items():
        with inside(ir) if name in called else nullcontext():  # an entry point has its own sizes
            visit_graphs(body, visit)


def is_inside() -> bool:
    """Whether a function of a graph is being analysed."""
    return bool(enclosing())


def enclosing() -> tuple[IR, ...]:
    """Return the graphs that contain the function that is being analysed, outermost first."""
    return _around.get()


def decided_by_data(ir: IR, around: Sequence[IR] | None = None) -> frozenset[str]:
    """Return the data-dependent open sizes, of which it is unknown which values are compatible."""
    graphs = (*(enclosing() if around is None else around), ir)
    symbols = {name: symbol for graph in graphs for name, symbol in graph.symbols.items()}
    given = {id(tensor) for graph in graphs for tensor in graph.graph_inputs}
    return frozenset(name for name, symbol in symbols.items() if id(symbol.tensor) not in given)


def points_of(ir: IR, around: Sequence[IR] | None = None, known: dict[IR, Points] | None = None) -> Points:
    """Return several valid choices of the open sizes, different in every size if possible.

    `known` keeps those of the graphs around for their other functions.
    """
    found: Points = ()
    known = {} if known is None else known
    for graph in (*(each for each in (enclosing() if around is None else around) if each is not ir), ir):
        if graph.symbols:
            if graph not in known:
                known[graph] = _found_points(graph, found or ({},))
            found = known[graph]
            if not found:
                break
    return found


def _found_points(ir: IR, outer: Points) -> Points:
    """Choose the graph's own sizes, in addition to those of enclosing graphs.

    The second choice is one more than the first, so that `n // 2` differs from `(n + 1) // 2` at one of the two. The
    third are the smallest sizes but 0 and 1, so that `min(n, 5)` is not always 5. After the first, a size of at most 2
    may also be one less, so that it differs from a number.
    """
    draw = random.Random(0)
    found: list[dict[str, int]] = []
    decided = decided_by_data(ir, ())
    texts = (*ir.symbols, *ir.constraints, *(dim for tensor in ir.graph_inputs for dim in tensor.shape))
    length = sum(len(str(text)) for text in texts)
    for attempt in range(min(_TRIES, _MOST_READ // (length + 1) + _WANTED)):
        most = _MOST if attempt % 2 else 64  # some are small, so that either of two sizes may be the smaller one
        is_next, is_least = (len(found) == 1 and attempt % 4 == 1), (len(found) == 2 and attempt % 4 == 2)
        sizes = dict(outer[len(found) % len(outer)])
        for name, symbol in ir.symbols.items():
            low = max(symbol.min or 0, 2)
            high = most if symbol.max is None else min(symbol.max, max(most, low))
            if found and high <= low:
                low = max(symbol.min or 0, high - 1, 0 if name in decided else 1)
            if high < low or is_least:
                sizes[name] = min(low, high)
            elif is_next and symbol.admits(found[-1][name] + 1):
                sizes[name] = found[-1][name] + 1
            else:
                sizes[name] = draw.randint(low, high)
        if sizes not in found and admits(ir, sizes):
            found.append(sizes)
            if len(found) == _WANTED:
                break
    return tuple(found)


def edges_of(ir: IR, around: Sequence[IR] | None = None, least: int = 0) -> Points:
    """Return the valid choices of the open sizes in which all are as small or as large as they may be.

    Expressions such as `max(0, 2 - n)` have other values there; operators need not be valid at these sizes.
    """
    graphs = [*(each for each in (enclosing() if around is None else around) if each is not ir), ir]
    symbols = {name: symbol for graph in graphs for name, symbol in graph.symbols.items()}
    low = {name: max(symbol.min or 0, least) for name, symbol in symbols.items()}
    after = {name: low[name] + symbol.admits(low[name] + 1) for name, symbol in symbols.items()}
    high = {name: _LARGE if symbol.max is None else min(symbol.max, _LARGE) for name, symbol in symbols.items()}
    found = [sizes for sizes in (low, after, high) if all(symbols[name].admits(sizes[name]) for name in symbols)]
    return tuple(sizes for sizes in found if all(admits(graph, sizes) for graph in graphs))


def admits(ir: IR, sizes: Mapping[str, int]) -> bool:
    """Whether the constraints of a graph hold at these sizes."""
    try:
        return all(evaluate(text, sizes) for text in ir.constraints) and all(
            evaluate(dim, sizes) >= 0 for tensor in ir.graph_inputs for dim in tensor.shape
        )
    except (ExpressionError, ZeroDivisionError):
        return False


def expressed(values: Sequence[int], known: Sequence[Dim], points: Points, *, is_sure: bool = False) -> Dim | None:
    """Return an expression with these values at these points: a number, a known size, or a combination of them.

    With `is_sure`, return None if several quotients have these values, which differ at other points.
    """
    if len(set(values)) == 1 and len(points) > 1:
        return values[0]
    seen = list(zip(points, values, strict=True))
    for candidate in _candidates(known, points):
        if all(evaluate(candidate, point) == value for point, value in seen):
            return candidate
    sizes = dict.fromkeys(size for size in (*known, *points[0]) if isinstance(size, str)) if points else {}
    for size in islice(sizes, _MOST_PAIRED):
        if quotients := list(islice(_divided(size, seen), 2)):
            return None if is_sure and len(quotients) > 1 else quotients[0]
    return None


def products(shape: Sequence[Dim]) -> list[Dim]:
    """Return the products of subsets of these sizes, as in strides; for a high rank, only of the last dimensions."""
    found: dict[Dim, None] = {1: None}
    for dim in reversed(shape):
        if len(found) > _MOST_PRODUCTS:
            break
        found |= {product(dim, other): None for other in found}
    return list(found)


def _candidates(known: Sequence[Dim], points: Points) -> Iterator[Dim]:
    """Yield the known sizes, then single symbols, then sums, multiples and products of two of these."""
    names = list(points[0]) if points else []
    sizes = list(dict.fromkeys([*known, *names]))
    yield from (size for size in sizes if isinstance(size, str))
    for one, other in combinations_with_replacement(sizes[:_MOST_PAIRED], 2):
        if isinstance(one, str) or isinstance(other, str):
            yield product(one, other)
            yield total([one, other])
            yield total([one, product(-1, other)])
            yield total([other, product(-1, one)])


def _divided(size: str, seen: Sequence[tuple[Mapping[str, int], int]]) -> Iterator[Dim]:
    """Match a size divided by a small number and rounded down, as for windows and steps: `(height - 1) // 2 + 1`."""
    for divisor in range(1, _LARGEST_DIVISOR + 1):
        for shift in range(divisor):
            rest = {value - (evaluate(size, point) - shift) // divisor for point, value in seen}
            if len(rest) == 1:
                shifted = f"({size} - {shift})" if shift else f"({size})"
                yield total([f"{shifted} // {divisor}" if divisor > 1 else shifted, int(rest.pop())])
