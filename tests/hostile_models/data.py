"""Models whose Python depends on data."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.hostile_models.case import case


@case(words=("Python branches on a value", "torch.cond"))
class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # here
            return x + 1
        return x - 1


@case(words=("Python branches on a value", "torch.cond"))
class Loop(nn.Module):
    def forward(self, x):
        while x.norm() > 1:  # here
            x = x / 2
        return x


@case(words=("Python branches on a value",))
class Assertion(nn.Module):
    def forward(self, x):
        if not torch.isfinite(x).all():  # here
            raise ValueError("not finite")
        return x * 2


@case(words=("Python needs a number", "torch.index_select"))
class ItemAsChoice(nn.Module):
    def forward(self, x):
        return [x, -x][int(x[0, 0].item())]  # here


@case(captured_by="torch.export")
class ItemAsSize(nn.Module):
    def forward(self, x):
        count = x.sum().to(torch.int64).item()
        torch._check(count >= 0)
        return torch.zeros(count) + 1


@case(words=("Python needs a number", "torch.while_loop"))
class ItemAsRange(nn.Module):
    def forward(self, x):
        for _ in range(x.sum().int().item()):  # here
            x = x + 1
        return x


@case(captured_by="torch.export")
class ToList(nn.Module):
    def forward(self, x):
        return torch.tensor(x.tolist()) * 2


@case(captured_by="torch.export in strict mode")
class NumpyDetour(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.tanh(x.numpy()))


@case(captured_by="torch.export")
class Masked(nn.Module):
    def forward(self, x):
        return x[x > 0.5].sum()


@case(words=("Python branches on a value",))
class MaskedSize(nn.Module):
    def forward(self, x):
        picked = x[x > 0.5]
        if picked.shape[0] > 3:  # here
            return picked.sum()
        return picked.mean()


@case(words=("Python branches on a value",))
class Sorted(nn.Module):
    def forward(self, x):
        return max(x[0], x[1], key=lambda row: row.sum())  # here


@case(words=("Python branches on a value",))
class LoopOverFound(nn.Module):
    def forward(self, x):
        total = x.sum()
        for index in torch.nonzero(x[0]):  # here
            total = total + index
        return total
