"""Pieces that memoise a tensor or a number: every call returns the same, so there is no warning."""

# mypy: ignore-errors

from __future__ import annotations

import functools

import torch
from torch import nn

from tests.state_models.piece import SIZE, piece

MEMOS, CACHED = "memoised tensors", "tensors cached outside the model"
TABLES: dict[int, torch.Tensor] = {}


@piece(MEMOS)
class MemoOrNone(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(float(SIZE)).cos()
        return x * self.table


@piece(MEMOS)
class MemoBySize(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        if x.shape[0] not in self.tables:
            self.tables[x.shape[0]] = torch.tril(torch.ones(SIZE, SIZE))
        return x * self.tables[x.shape[0]]


@piece(MEMOS)
class MemoOfWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.arange(float(SIZE)))
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = self.w * 2
        return x * self.kept


@piece(MEMOS)
class MemoOfInput(nn.Module):
    """Looks like a memo, but keeps the first input."""

    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = x * 2
        return x + self.kept


@piece(MEMOS)
class MemoBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.zeros(1, 1), persistent=False)

    def forward(self, x):
        if self.mask.shape[0] < x.shape[0]:
            self.mask = torch.tril(torch.ones(SIZE, SIZE))
        return x * self.mask


@piece(MEMOS)
class MemoNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = None

    def forward(self, x):
        self.scale = x.shape[-1] ** -0.5
        return x * self.scale


@piece(MEMOS)
class CachedProperty(nn.Module):
    @functools.cached_property
    def table(self):
        return torch.arange(float(SIZE)).sin()

    def forward(self, x):
        return x * self.table


@functools.lru_cache
def cached_table(size):
    return torch.arange(float(size)).cos()


@functools.lru_cache
def cached_scale(size):
    return size**-0.5


@piece(CACHED)
class CachedByFunction(nn.Module):
    def forward(self, x):
        return x.tanh() * cached_table(x.shape[-1])


@piece(CACHED)
class CachedNumberByFunction(nn.Module):
    def forward(self, x):
        return x * cached_scale(x.shape[-1])


@piece(CACHED)
class CachedInGlobal(nn.Module):
    def forward(self, x):
        if x.shape[-1] not in TABLES:
            TABLES[x.shape[-1]] = torch.arange(float(x.shape[-1])).cos()
        return x.tanh() * TABLES[x.shape[-1]]
