"""Views made inside a model: for a tensor, a base and calls that make a view of it with the tensor's shape and dtype.

The view has the tensor's values too, unless it repeats elements, or is made `as_strided` of another view.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

View = Callable[[Tensor], Tensor]
Kind = Callable[[random.Random, Tensor], "tuple[Tensor, View] | None"]  # of a tensor: its base, and the view
_BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.bool: torch.uint8}
_BITS |= {torch.int64: torch.float64}
_COMPLEX = (torch.float32, torch.float64)


def chain(draw: random.Random, tensor: Tensor, length: int) -> tuple[Tensor, list[str], list[View]]:
    """A base, the names of views, and the views, which are applied to the base in order."""
    names, views = [], []
    while len(views) < length:
        name = draw.choice(list(KINDS))
        found = KINDS[name](draw, tensor)
        if found is not None and found[0].numel() < 5000:
            tensor = found[0]
            names.insert(0, name)
            views.insert(0, found[1])
    return tensor, names, views


def applied(views: Sequence[View], tensor: Tensor) -> Tensor:
    for view in views:
        tensor = view(tensor)
    return tensor


def result_view(draw: random.Random, made: Tensor) -> View:
    """A view of a result with this shape."""
    rank = made.dim()
    dims = draw.sample(range(rank), rank)
    choices: list[View] = [lambda y: y.unsqueeze(-1), lambda y: y.reshape(-1), lambda y: y.expand(2, *y.shape)]
    if rank:
        dim, size = dims[0], made.shape[dims[0]]
        choices += [
            lambda y: y.permute(dims),
            lambda y: y.permute(dims).reshape(-1),
            lambda y: y.permute(dims).contiguous(),
            lambda y: y.narrow(dim, size // 2, size - size // 2),
            lambda y: y.transpose(dim, -1)[1:],
            lambda y: y[..., ::2],
            lambda y: y.flip(dim),
        ]
        choices += [lambda y: y.select(dim, size - 1), lambda y: y.chunk(2, dim)[-1]] if size else []
        choices += [lambda y: y.as_strided((2,), (1,))] if made.numel() > 1 else []
    return draw.choice(choices)


def _other(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Other values of the tensor's dtype; integers are valid indices and sizes if the tensor's own are."""
    count = math.prod(shape)
    if not tensor.numel():
        return torch.ones(shape, dtype=tensor.dtype)
    made = tensor.flatten().flip(0).repeat(-(-count // tensor.numel()))[:count].reshape(shape)
    return made * 3 + 1 if made.is_floating_point() or made.is_complex() else made


def _dim(draw: random.Random, tensor: Tensor) -> int:
    return draw.randrange(tensor.dim())


def _resized(tensor: Tensor, dim: int, size: int) -> list[int]:
    return [size if at == dim else each for at, each in enumerate(tensor.shape)]


def _slice(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    if not tensor.dim():
        return None
    dim, step, first = _dim(draw, tensor), draw.choice((1, 1, 2)), draw.randrange(3)
    end = first + step * (tensor.shape[dim] - 1) + 1 if tensor.shape[dim] else first
    base = _other(tensor, _resized(tensor, dim, end + draw.randrange(2)))
    place = (slice(None),) * dim + (slice(first, end, step),)
    base[place] = tensor
    return base, lambda x: x[place]


def _narrow(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    if not tensor.dim():
        return None
    dim, first = _dim(draw, tensor), draw.randrange(3)
    size = tensor.shape[dim]
    base = _other(tensor, _resized(tensor, dim, size + first + draw.randrange(2)))
    base.narrow(dim, first, size).copy_(tensor)
    return base, lambda x: x.narrow(dim, first, size)


def _permute(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    rank = tensor.dim()
    if rank < 2:
        return None
    one, two = draw.sample(range(rank), 2)
    order = draw.sample(range(rank), rank)
    back = [order.index(dim) for dim in range(rank)]
    pairs: list[tuple[View, View]] = [
        (lambda x: x.permute(back), lambda x: x.permute(order)),
        (lambda x: x.transpose(one, two), lambda x: x.transpose(one, two)),
        (lambda x: x.mT, lambda x: x.mT),
        (lambda x: x.movedim(one, two), lambda x: x.movedim(two, one)),
        (lambda x: x.permute(*range(rank)[::-1]), lambda x: x.permute(*range(rank)[::-1])),
    ]
    inverse, view = draw.choice(pairs)
    return inverse(tensor).contiguous(), view


def _expand(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    if not tensor.dim() or not tensor.numel():
        return None
    shape = tuple(tensor.shape)
    if draw.random() < 0.5:
        return tensor[0].clone(), lambda x: x.expand(shape)
    base = tensor.narrow(_dim(draw, tensor), 0, 1).clone()
    return base, draw.choice((lambda x: x.expand(shape), lambda x: x.broadcast_to(shape)))


def _diagonal(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    if not tensor.dim():
        return None
    offset, size = draw.choice((0, 1, -1)), tensor.shape[-1]
    base = _other(tensor, [*tensor.shape[:-1], size + max(0, -offset), size + max(0, offset)])
    base.diagonal(offset, -2, -1).copy_(tensor)
    return base, lambda x: x.diagonal(offset, -2, -1)


def _piece(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    """One of several equal parts, as of a merged projection."""
    if not tensor.numel() or not tensor.dim():
        return None
    dim, count = _dim(draw, tensor), draw.choice((2, 3))
    index, size = draw.randrange(count), tensor.shape[dim]
    parts = [tensor if at == index else _other(tensor, tensor.shape) for at in range(count)]
    views: list[View] = [
        lambda x: x.chunk(count, dim)[index],
        lambda x: x.split(size, dim)[index],
        lambda x: x.split([size] * count, dim)[index],
        lambda x: x.tensor_split(count, dim)[index],
        lambda x: x.unflatten(dim, (count, size)).select(dim, index),
    ]
    return torch.cat(parts, dim), draw.choice(views)


def _select(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    dim, index = draw.randint(0, tensor.dim()), draw.randrange(3)
    parts = [tensor if at == index else _other(tensor, tensor.shape) for at in range(3)]
    views: list[View] = [lambda x: x.select(dim, index), lambda x: x.select(dim, index - 3)]
    return torch.stack(parts, dim), draw.choice([*views, lambda x: x.unbind(dim)[index]])


def _unfold(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    """Windows that may overlap; then later ones have the elements."""
    if tensor.dim() < 2 or not tensor.numel():
        return None
    count, size = tensor.shape[-2:]
    step = draw.choice((1, size, size + 1))
    base = _other(tensor, [*tensor.shape[:-2], (count - 1) * step + size])
    for at in range(count):
        base[..., at * step : at * step + size] = tensor[..., at, :]
    return base, lambda x: x.unfold(-1, size, step)


def _flip(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    if not tensor.dim():
        return None
    dim = _dim(draw, tensor)
    return tensor.flip(dim), lambda x: x.flip(dim)


def _reshape(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    """A tensor that is not contiguous, reshaped, which copies it."""
    count, shape = tensor.numel(), tuple(tensor.shape)
    if not count:
        return None
    columns = draw.choice([size for size in range(1, count + 1) if count % size == 0])
    return tensor.reshape(-1, columns).t().contiguous(), lambda x: x.t().reshape(shape)


def _view(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    shape = tuple(tensor.shape)
    return tensor.reshape(-1).clone(), draw.choice((lambda x: x.view(shape), lambda x: x.reshape(shape)))


def _squeeze(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    dim = draw.randint(0, tensor.dim())
    ones = [at for at, size in enumerate(tensor.shape) if size == 1]
    if ones and draw.random() < 0.5:
        one = draw.choice(ones)
        return tensor.squeeze(one).clone(), lambda x: x.unsqueeze(one)
    return tensor.unsqueeze(dim).clone(), lambda x: x.squeeze(dim)


def _as_strided(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    """Dimensions in another order, with gaps, after an offset."""
    shape, strides, step = tuple(tensor.shape), [0] * tensor.dim(), draw.choice((1, 1, 2))
    for dim in draw.sample(range(tensor.dim()), tensor.dim()):
        strides[dim] = step
        step = step * max(tensor.shape[dim], 1) + draw.randrange(2)
    offset = draw.randrange(4)
    base = _other(tensor, [offset + step + draw.randrange(3)])
    base.as_strided(shape, strides, offset).copy_(tensor)
    return base, lambda x: x.as_strided(shape, strides, offset) if offset else x.as_strided(shape, strides)


def _empty_strided(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    strides = tensor.permute(draw.sample(range(tensor.dim()), tensor.dim())).contiguous().stride()
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if not tensor.numel() or sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) >= 5000:
        return None
    return tensor.clone(), lambda x: torch.empty_strided(shape, strides, dtype=dtype).copy_(x)


def _channels_last(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(tensor.dim())
    if layout is None:
        return None
    views: list[View] = [lambda x: x.contiguous(memory_format=layout), lambda x: x.to(memory_format=layout)]
    return tensor.contiguous(), draw.choice(views)


def _complex(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    """The real or imaginary part of complex numbers, which are given as such or as pairs."""
    if tensor.dtype not in _COMPLEX:
        return None
    pairs = torch.stack([tensor, _other(tensor, tensor.shape)], -1)
    views: list[tuple[Tensor, View]] = [
        (torch.view_as_complex(pairs), lambda x: x.real),
        (torch.view_as_complex(pairs.flip(-1)), lambda x: x.imag),
        (torch.view_as_complex(pairs.flip(-1).contiguous()).conj().resolve_conj(), lambda x: x.conj().imag),
        (torch.view_as_complex(pairs.flip(-1)), lambda x: torch.view_as_real(x)[..., 1]),
        (pairs.flip(-1), lambda x: torch.view_as_complex(x).imag),
    ]
    return draw.choice(views)


def _bits(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    """The bits of another dtype of the same size."""
    kind = _BITS.get(tensor.dtype)
    return None if kind is None else (tensor.clone().view(kind), lambda x, dtype=tensor.dtype: x.view(dtype))


def _whole(draw: random.Random, tensor: Tensor) -> tuple[Tensor, View] | None:
    views: list[View] = [lambda x: x[...], lambda x: x.detach(), lambda x: x.view_as(x), lambda x: x.contiguous()]
    return tensor.clone(), draw.choice([*views, lambda x: x.clone()])


KINDS: dict[str, Kind] = {
    "slice": _slice, "narrow": _narrow, "permute": _permute, "expand": _expand, "diagonal": _diagonal, "piece": _piece,
    "select": _select, "unfold": _unfold, "flip": _flip, "reshape": _reshape, "view": _view, "squeeze": _squeeze,
    "as_strided": _as_strided, "empty_strided": _empty_strided, "channels_last": _channels_last, "complex": _complex,
    "bits": _bits, "whole": _whole,
}  # fmt: skip
