"""Pieces whose forward assigns parameters, buffers, modules and tensors."""

# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import nn

from tests.state_models.parameters import Weighted
from tests.state_models.piece import SIZE, piece

ASSIGNED = "attributes assigned"


@piece(ASSIGNED)
class AssignsParameter(Weighted):
    def forward(self, x):
        self.w = nn.Parameter(self.w * 0.5 + 1)
        return x * self.w


@piece(ASSIGNED)
class AssignsConstantParameter(Weighted):
    def forward(self, x):
        self.w = nn.Parameter(torch.full((SIZE,), 3.0))
        return x * self.w


@piece(ASSIGNED)
class AssignsParameterAfterUse(Weighted):
    def forward(self, x):
        y = x * self.w
        self.w = nn.Parameter(torch.full((SIZE,), 3.0))
        return y


@piece(ASSIGNED)
class DeletesParameter(Weighted):
    def forward(self, x):
        if "w" in self._parameters:
            w = self.w
            del self.w
            return x * w
        return x + 3


@piece(ASSIGNED)
class RegistersBuffer(Weighted):
    def forward(self, x):
        if not hasattr(self, "late"):
            self.register_buffer("late", x[0] * 2)
        return x + self.late


@piece(ASSIGNED)
class SwapsModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), nn.Tanh()])

    def forward(self, x):
        self.layers[0], self.layers[1] = self.layers[1], self.layers[0]
        return self.layers[0](x)


@piece(ASSIGNED)
class ReplacesModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Tanh()

    def forward(self, x):
        y = self.act(x)
        self.act = nn.Identity()
        return y


@piece(ASSIGNED)
class AppendsModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Tanh()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        self.layers.append(nn.Tanh())
        return x


@piece(ASSIGNED)
class SwapsBuffersByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(SIZE))
        self.register_buffer("b", torch.ones(SIZE))

    def forward(self, x):
        self.a, self.b = self.b, self.a + x[0]
        return x + self.a


@piece(ASSIGNED)
class KeepsPreviousBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("prev", torch.zeros(SIZE, SIZE))

    def forward(self, x):
        y = x + self.prev
        self.prev = x
        return y


@piece(ASSIGNED)
class KeepsPreviousResultBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("prev", torch.zeros(SIZE, SIZE))

    def forward(self, x):
        self.prev = x + self.prev * 0.5
        return self.prev


@piece(ASSIGNED)
class KeepsViewOfBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.arange(float(SIZE)))

    def forward(self, x):
        self.b = self.b.flip(0)
        self.b[0] += 1
        return x + self.b


@piece(ASSIGNED)
class KeepsPrevious(nn.Module):
    def __init__(self):
        super().__init__()
        self.prev = torch.zeros(SIZE, SIZE)

    def forward(self, x):
        y = x + self.prev
        self.prev = x
        return y


@piece(ASSIGNED)
class KeepsPreviousOrNone(nn.Module):
    def __init__(self):
        super().__init__()
        self.prev = None

    def forward(self, x):
        y = x if self.prev is None else x + self.prev
        self.prev = y
        return y


@piece(ASSIGNED)
class KeepsButNeverReads(nn.Module):
    def forward(self, x):
        self.last = x * 2
        return self.last + 1


@piece(ASSIGNED)
class SwapsPlainTensors(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.zeros(SIZE), torch.ones(SIZE)

    def forward(self, x):
        self.a, self.b = self.b, self.a
        return x + self.a


@piece(ASSIGNED)
class BufferBecomesNone(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("once", torch.ones(SIZE))

    def forward(self, x):
        if self.once is not None:
            x = x + self.once
            self.once = None
        return x
