"""Blocks that rearrange elements: views, splits, joins, slices, gathers, scatters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.random_models.block import ALIKE, Body, Draw, Takes, block

ANY = Takes("any", 1)


@block(Takes("any", 2))
def permuted(draw: Draw, x: Tensor) -> Body:
    order = draw.sample(range(x.dim()), x.dim())
    return draw.choice((lambda x: x.permute(order), lambda x: x.transpose(0, -1), lambda x: x.movedim(0, 1)))


@block(ANY)
def reshaped(draw: Draw, x: Tensor) -> Body:
    """The first size is read from the tensor, so that it may be dynamic."""
    rest = math.prod(x.shape[1:])
    return draw.choice((
        lambda x: x.reshape(x.shape[0], -1) if x.numel() else x, lambda x: x.reshape(x.shape[0], rest, 1),
        lambda x: x.flatten(), lambda x: x.reshape(-1), lambda x: x.ravel().unsqueeze(0),
    ))  # fmt: skip


@block(ANY)
def viewed(draw: Draw, x: Tensor) -> Body:
    return draw.choice((
        lambda x: x.view(x.shape[0], -1), lambda x: x.view(*x.shape, 1), lambda x: x.contiguous().view(-1),
        lambda x: x.view_as(x.clone()), lambda x: x.unflatten(-1, (-1, 1)),
    ))  # fmt: skip


@block(Takes("any"))
def unsqueezed(draw: Draw, x: Tensor) -> Body:
    return draw.choice((lambda x: x.unsqueeze(0), lambda x: x.unsqueeze(-1), lambda x: x[None, ..., None]))


@block(ANY)
def squeezed(draw: Draw, x: Tensor) -> Body:
    dim = draw.dim(x)
    return lambda x: x.squeeze(dim)


@block(Takes("any", 0, 3))
def expanded(draw: Draw, x: Tensor) -> Body:
    count = draw.choice((2, 3))
    return draw.choice((
        lambda x: x.unsqueeze(0).expand(count, *x.shape),
        lambda x: x.unsqueeze(-1).expand(*x.shape, count).contiguous(),
        lambda x: torch.broadcast_to(x, (count, *x.shape)), lambda x: x.expand_as(torch.stack([x, x])),
    ))  # fmt: skip


@block(ANY)
def repeated(draw: Draw, x: Tensor) -> Body:
    dim = draw.dim(x)
    return draw.choice((
        lambda x: x.repeat_interleave(2, dim), lambda x: x.repeat(*[1] * (x.dim() - 1), 2),
        lambda x: torch.tile(x, (2,)),
    ))  # fmt: skip


@block(ANY)
def turned(draw: Draw, x: Tensor) -> Body:
    dim, by = draw.dim(x), draw.randint(-2, 2)
    return draw.choice((lambda x: x.flip(dim), lambda x: x.roll(by, dim), lambda x: torch.rot90(x, 1, (0, -1))))


@block(Takes("any", 2))
def triangle(draw: Draw, x: Tensor) -> Body:
    by = draw.randint(-1, 1)
    return draw.choice((lambda x: x.tril(by), lambda x: x.triu(by), lambda x: x.diagonal(0, -2, -1), torch.trace))


# -- splits and joins -------------------------------------------------------------------------------------------------


@block(ANY)
def chunked(draw: Draw, x: Tensor) -> Body:
    dim = draw.dim(x)
    return draw.choice((lambda x: x.chunk(2, dim), lambda x: torch.tensor_split(x, 2, dim), lambda x: x.split(2, dim)))


@block(ANY)
def split_unevenly(draw: Draw, x: Tensor) -> Body:
    sizes = [1, x.shape[-1] - 1]
    return lambda x: x.split(sizes, -1)


@block(ANY)
def unbound(draw: Draw, x: Tensor) -> Body:
    return lambda x: x.unbind(-1)[:3]


@block(ANY, ALIKE)
def joined(draw: Draw, x: Tensor, y: Tensor) -> Body:
    dim = draw.dim(x)
    return draw.choice((
        lambda x, y: torch.cat([x, y, x], dim), lambda x, y: torch.stack([x, y], dim),
        lambda x, y: torch.hstack([x, y]),
    ))  # fmt: skip


@block(Takes("any", 1, 2))
def grid(draw: Draw, x: Tensor) -> Body:
    return draw.choice((
        lambda x: torch.meshgrid(x.flatten()[:3], x.flatten()[:2], indexing="ij"),
        lambda x: torch.block_diag(x[:2], x[:1]), lambda x: torch.combinations(x.flatten()[:3], 2),
    ))  # fmt: skip


# -- indexing ---------------------------------------------------------------------------------------------------------


@block(ANY)
def sliced(draw: Draw, x: Tensor) -> Body:
    return draw.choice((
        lambda x: x[1:], lambda x: x[..., ::2], lambda x: x[..., -1], lambda x: x[0], lambda x: x[:-1],
        lambda x: x[..., :1],
        lambda x: x.narrow(-1, 0, 1), lambda x: x.select(0, -1), lambda x: x[:, None] if x.dim() else x,
        lambda x: x[0:1, ...],
    ))  # fmt: skip


@block(ANY)
def advanced_index(draw: Draw, x: Tensor) -> Body:
    last = draw.randrange(x.shape[-1])
    captured = torch.tensor([last, 0, -1])
    return draw.choice((
        lambda x: x[..., [0, last]], lambda x: x[..., captured], lambda x: x[:, [0, -1]],
        lambda x: x[[0, 0], ..., last],
        lambda x: x.index_select(-1, torch.tensor([last, 0])), lambda x: x[torch.arange(x.shape[0])],
        lambda x: x.take(torch.tensor([0, last])), lambda x: x[torch.tensor([[0], [-1]]), None],
    ))  # fmt: skip


@block(Takes("real", 1))
def gathered(draw: Draw, x: Tensor) -> Body:
    dim = draw.dim(x)
    return draw.choice((
        lambda x: x.gather(dim, x.argsort(dim)), lambda x: torch.take_along_dim(x, x.argmax(dim, keepdim=True), dim),
    ))  # fmt: skip


@block(Takes("real", 1))
def scattered(draw: Draw, x: Tensor) -> Body:
    dim = draw.dim(x)
    return draw.choice((
        lambda x: torch.zeros_like(x).scatter(dim, x.argsort(dim), x), lambda x: x.scatter(dim, x.argmax(dim, True), 1),
        lambda x: x.scatter_add(dim, torch.zeros_like(x, dtype=torch.int64), x),
        lambda x: x.scatter_reduce(dim, torch.zeros_like(x, dtype=torch.int64), x, "amax"),
    ))  # fmt: skip


@block(ANY)
def indexed_write(draw: Draw, x: Tensor) -> Body:
    places = torch.tensor([0])
    return draw.choice((
        lambda x: x.index_put((places,), x[-1]), lambda x: x.index_fill(-1, places, 1),
        lambda x: x.index_add(0, places, x[-1:]),
        lambda x: x.index_copy(0, places, x[-1:]), lambda x: x.index_put((places,), x[:1], accumulate=True),
    ))  # fmt: skip


@block(Takes("real"))
def masked(draw: Draw, x: Tensor) -> Body:
    return draw.choice((
        lambda x: x.masked_fill(x > 0, 2), lambda x: torch.where(x > 0, x, -1), lambda x: torch.where(x != x, 0.0, x),
        lambda x: x.where(x < 1, x * 2), lambda x: x.masked_scatter(x > 0, x.flip(0)) if x.dim() else x,
    ))  # fmt: skip


@block(Takes("real", 1, 3))
def chosen_by_data(draw: Draw, x: Tensor) -> Body:
    """Sizes that only the data decides, gone again within the block."""
    return draw.choice((
        lambda x: x[x > 0].sum(), lambda x: torch.nonzero(x > 0).sum(0), lambda x: torch.masked_select(x, x > 0).sum(),
        lambda x: torch.zeros_like(x).index_put(torch.where(x > 0), torch.ones((), dtype=x.dtype)),
        lambda x: torch.unique(x).sum(),
    ))  # fmt: skip


@block(Takes("wide", 1, 2))
def looked_up(draw: Draw, x: Tensor) -> Body:
    edges = torch.tensor([-1.0, 0.0, 0.5])
    return draw.choice((
        lambda x: torch.bucketize(x, edges.to(x.dtype)),
        lambda x: torch.searchsorted(edges.to(x.dtype), x.contiguous()),
        lambda x: torch.histc(x.nan_to_num(0, 0, 0), 4, -1, 1),
    ))  # fmt: skip


@block(ANY)
def strided(draw: Draw, x: Tensor) -> Body:
    return draw.choice((
        lambda x: x.unfold(-1, 2, 1), lambda x: x.contiguous().as_strided((2,), (1,)),
        lambda x: x.t() if x.dim() <= 2 else x.mT,
        lambda x: x.to(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous(),
        lambda x: x.clone().swapaxes(0, -1),
    ))  # fmt: skip
