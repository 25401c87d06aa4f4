"""Pieces in which two names alias the same memory, and one is written to."""

# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import nn

from tests.state_models.piece import SIZE, piece

ALIASES, BUFFERS_ALIKE = "aliases", "aliased inputs and outputs"


class Viewed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("all", torch.arange(float(2 * SIZE)))


@piece(ALIASES)
class ViewAsAttribute(Viewed):
    def __init__(self):
        super().__init__()
        self.tail = self.all[SIZE:]

    def forward(self, x):
        self.all += 1
        return x + self.tail


@piece(ALIASES)
class ViewIsWritten(Viewed):
    def __init__(self):
        super().__init__()
        self.tail = self.all[SIZE:]

    def forward(self, x):
        self.tail.add_(1)
        return x + self.all[SIZE:]


@piece(ALIASES)
class ViewInList(Viewed):
    def __init__(self):
        super().__init__()
        self.parts = [self.all[:SIZE], self.all[SIZE:]]

    def forward(self, x):
        self.all.mul_(2)
        return x + self.parts[1]


@piece(ALIASES)
class ViewInDict(Viewed):
    def __init__(self):
        super().__init__()
        self.parts = {"tail": (self.all[SIZE:],)}

    def forward(self, x):
        self.all.mul_(2)
        return x + self.parts["tail"][0]


@piece(ALIASES)
class ViewInObject(Viewed):
    class Holder:
        pass

    def __init__(self):
        super().__init__()
        self.holder = self.Holder()
        self.holder.tail = self.all[SIZE:]

    def forward(self, x):
        self.all.mul_(2)
        return x + self.holder.tail


@piece(ALIASES)
class ViewIsOnlyRead(Viewed):
    def __init__(self):
        super().__init__()
        self.tail = self.all[SIZE:]

    def forward(self, x):
        return x + self.tail + self.all[0]


@piece(ALIASES)
class SameTensorAsAttribute(Viewed):
    def __init__(self):
        super().__init__()
        self.held = [self.all]

    def forward(self, x):
        self.all += 1
        return x + self.held[0][:SIZE]


@piece(ALIASES)
class BufferIsViewOfBuffer(Viewed):
    def __init__(self):
        super().__init__()
        self.register_buffer("tail", self.all[SIZE:])

    def forward(self, x):
        self.all += 1
        return x + self.tail


@piece(ALIASES)
class BufferIsViewOfParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2 * SIZE))
        self.register_buffer("tail", self.w.detach()[SIZE:])

    def forward(self, x):
        with torch.no_grad():
            self.w.add_(1)
        return x + self.tail


@piece(ALIASES)
class PlainTensorsAlias(nn.Module):
    def __init__(self):
        super().__init__()
        self.all = torch.zeros(2 * SIZE)
        self.tail = self.all[SIZE:]

    def forward(self, x):
        self.all += 1
        return x + self.tail


@piece(ALIASES)
class TiedParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(SIZE, SIZE, bias=False)
        self.one.weight = nn.Parameter(torch.eye(SIZE) * 2)
        self.two = nn.Linear(SIZE, SIZE, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x):
        with torch.no_grad():
            self.one.weight.add_(1)
        return self.two(x)


@piece(ALIASES)
class SharedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(SIZE)
        self.again = self.norm

    def forward(self, x):
        return self.again(self.norm(x))


@piece(ALIASES)
class TrainingNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(SIZE)

    def forward(self, x):
        self.norm.train()
        return self.norm(x)


@piece(BUFFERS_ALIKE)
class ReturnsItsInput(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x


@piece(BUFFERS_ALIKE)
class ReturnsViewOfBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.zeros(SIZE, SIZE))

    def forward(self, x):
        self.b += x * 1
        return self.b.t()
