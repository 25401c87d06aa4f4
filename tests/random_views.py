"""Pieces of random graphs: views, views that cancel, and copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.random_draft import Draft, RefusedError
from torch_ir.ir import Dtype, MemoryFormat, TensorMeta

END = 9223372036854775807  # of a slice that has none
BOUNDS = ((None, 0, 1, -2), (None, 2, -1, END), (1, 1, 2))


def _viewed(d: Draft, x: TensorMeta) -> Any:
    sizes, numbers = d.sizes(x), d.shape(x)
    rank = len(sizes)
    pick: list[Callable[[], Any]] = [
        lambda: d.op("view", x, [-1]),
        lambda: d.op("reshape", x, [-1]),
        lambda: d.op("view", x, sizes),
        lambda: d.op("reshape", x, [*sizes, 1] if d.chance(0.5) else [1, *sizes]),
        lambda: d.op("flatten.using_ints", x, 0 if d.chance(0.5) else max(rank - 2, 0), -1),
        lambda: d.op("unsqueeze", x, d.draw.randint(-rank - 1, rank)),
        lambda: d.op("squeeze", x),
        lambda: d.op("squeeze.dim", x, d.dim(x)),
        lambda: d.op("transpose.int", x, d.dim(x), d.dim(x)),
        lambda: d.op("permute", x, d.draw.sample(range(rank), rank)),
        lambda: d.op("expand", x, [2, *sizes] if d.chance(0.5) else [2 if size == 1 else size for size in sizes]),
        lambda: d.op("expand", x, [-1] * rank),
        lambda: d.op("slice.Tensor", x, d.dim(x), *(d.draw.choice(some) for some in BOUNDS)),
        lambda: d.op("slice.Tensor", x, d.dim(x), 0, END),
        lambda: d.op("select.int", x, (dim := fixed_dim(d, x)), d.draw.randrange(max(numbers[dim], 1))),
        lambda: d.op("select.int", x, d.dim(x), 0),
        lambda: d.op("split.Tensor", x, d.draw.choice((1, 2, 4)), fixed_dim(d, x)),
        lambda: d.op("split_with_sizes", x, _parts(d, x, (dim := fixed_dim(d, x))), dim),
        lambda: d.op("chunk", x, 2, fixed_dim(d, x)),
        lambda: d.op("unbind.int", x, fixed_dim(d, x)),
        lambda: d.op("narrow", x, d.dim(x), 0, 1),
        lambda: d.op("t", x),
        lambda: d.op("view", x, [-1, *sizes[2:]]),
        lambda: d.op("diagonal", x),
        lambda: d.op("view.dtype", d.sharp(lambda t: t is x), Dtype(d.draw.choice(("int32", "float32", "int16")))),
        lambda: d.op("unflatten.int", x, -1, [2, -1]),
    ]  # fmt: skip
    try:
        return d.draw.choice(pick)()
    except IndexError:
        raise RefusedError from None


def fixed_dim(d: Draft, x: TensorMeta) -> int:
    fixed = [dim for dim, size in enumerate(x.shape) if isinstance(size, int)]
    if not fixed:
        raise RefusedError
    return d.draw.choice(fixed)


def _parts(d: Draft, x: TensorMeta, dim: int) -> list[int]:
    size = d.shape(x)[dim]
    first = d.draw.randint(0, size)
    return [first, size - first]


def view(d: Draft) -> None:
    """One view, or one of a view of a view."""
    made = d.pick()
    for _ in range(d.draw.choice((1, 1, 2, 3))):
        made = _viewed(d, made)
        if isinstance(made, tuple):
            made = d.draw.choice(made or (d.pick(),))


def there_and_back(d: Draft) -> Any:
    """Two views that cancel, or almost."""
    x = d.pick(lambda t: len(t.shape) > 0)
    rank, sizes = len(x.shape), d.sizes(x)
    kind = d.draw.choice(("permute", "transpose", "reshape", "squeeze", "expand", "contiguous"))
    if kind == "permute":
        order = d.draw.sample(range(rank), rank)
        back = [order.index(dim) for dim in range(rank)]
        made = d.op("permute", x, order)
        made = _between(d, made)
        return d.op("permute", made, back if d.chance(0.7) else order)
    if kind == "transpose":
        one, two = d.dim(x), d.dim(x)
        made = _between(d, d.op("transpose.int", x, one, two))
        return d.op("transpose.int", made, *d.draw.choice(((one, two), (two, one), (one, d.dim(x)))))
    if kind == "reshape":
        made = _between(d, d.op(d.draw.choice(("view", "reshape")), x, [-1] if d.chance(0.5) else [-1, 2]))
        return d.op(d.draw.choice(("view", "reshape")), made, sizes if d.chance(0.7) else [*sizes, 1])
    if kind == "squeeze":
        dim = d.draw.randint(0, rank)
        made = _between(d, d.op("unsqueeze", x, dim))
        return d.op("squeeze.dim", made, dim if d.chance(0.7) else d.draw.randint(0, rank))
    if kind == "expand":
        return d.op("select.int", d.op("expand", x, [2, *sizes]), 0, d.draw.choice((0, 1)))
    return d.op("contiguous", d.op("permute", x, d.draw.sample(range(rank), rank)))


def _between(d: Draft, x: TensorMeta) -> Any:
    """Now and then, something stands between two nodes that belong together."""
    if d.chance(0.2):
        return d.op("relu", x)
    if d.chance(0.1):
        return d.op("contiguous", x)
    return d.op("clone", x) if d.chance(0.1) else x


def copying(d: Draft) -> None:
    """Copies and no-ops."""
    made = d.pick()
    for _ in range(d.draw.choice((1, 1, 2))):
        made = d.draw.choice((
            lambda x: d.op("clone", x),
            lambda x: d.op("clone", x, memory_format=MemoryFormat("contiguous_format")),
            lambda x: d.op("contiguous", x),
            lambda x: d.op("contiguous", x, memory_format=MemoryFormat("channels_last")),
            lambda x: d.op("alias", x),
            lambda x: d.op("detach", x),
            lambda x: d.op("dropout", x, 0.5, False),
            lambda x: d.op("dropout", x, 0.0, True),
            lambda x: d.op("lift_fresh_copy", x),
            lambda x: d.op("positive", x),
            lambda x: d.op("to.dtype", x, Dtype(x.dtype), copy=d.chance(0.3)),
            lambda x: d.op("expand", x, d.sizes(x)),
            lambda x: d.op("feature_dropout", x, 0.5, False),
            lambda x: d.op("cat", [x]),
            lambda x: d.op("repeat", x, [1] * len(x.shape)),
        ))(made)  # fmt: skip
