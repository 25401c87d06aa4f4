"""Models with state, arguments and results of every form."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass

import torch
from torch import nn

from tests.hostile_models.case import X, case


@case(captured_by="torch.export")
class DynamicAttribute(nn.Module):
    def forward(self, x):
        setattr(self, f"seen_{x.shape[0]}", x.shape)
        return x + len(self.seen_3)


@case(captured_by="torch.export")
class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.register_forward_hook(lambda module, args, out: out * 2)

    def forward(self, x):
        return self.linear(x)


@case(captured_by="torch.export")
class Generator(nn.Module):
    def forward(self, x):
        return torch.stack(list(self.rows(x)))

    def rows(self, x):
        for row in x:
            yield row * 2


@case(captured_by="torch.export")
class TryExcept(nn.Module):
    def forward(self, x):
        try:
            return x @ x
        except RuntimeError:
            return x @ x.T


@dataclass
class Answer:
    logits: torch.Tensor
    count: int


torch.export.register_dataclass(Answer, serialized_type_name="hostile.Answer")


@case(captured_by="torch.export")
class DataclassOutput(nn.Module):
    def forward(self, x):
        return Answer(x + 1, 3)


@case(words=("Unregistered", "pytree"))
class UnknownOutput(nn.Module):
    """A separate class, because recording registers the classes of outputs with torch."""

    def __init__(self):
        super().__init__()
        self.kind = make_dataclass("Unregistered", [("logits", torch.Tensor)])

    def forward(self, x):  # here
        return self.kind(x + 1)


calls: list[int] = []


@case(captured_by="torch.export")
class GlobalState(nn.Module):
    def forward(self, x):
        calls.append(1)
        return x + 1


@case(args=(X, [X, X]), captured_by="torch.export")
class ListMutation(nn.Module):
    def forward(self, x, parts):
        parts.append(x)
        return torch.cat(parts)


@case(args=({0: X, 1: X},), captured_by="torch.export")
class IntKeys(nn.Module):
    def forward(self, table):
        return {number: table[number] + number for number in table}


@case(args=(), kwargs={"a": X, "b": X}, captured_by="torch.export")
class KeywordsOnly(nn.Module):
    def forward(self, *, a, b):
        return a - b


@case(args=(X, "sum", None, 2.5), captured_by="torch.export")
class NotTensors(nn.Module):
    def forward(self, x, how, nothing, factor):
        return getattr(x, how)() * factor


@case(captured_by="torch.export")
class Recursion(nn.Module):
    def forward(self, x, depth=4):
        return x if depth == 0 else self.forward(x, depth - 1) + depth


@case(words=("recurses without end",))
class EndlessRecursion(nn.Module):
    def forward(self, x):
        return self.forward(x)  # here


@case(captured_by="torch.export")
class Closure(nn.Module):
    def __init__(self):
        super().__init__()
        scale = torch.full((4,), 2.0)
        self.apply_scale = lambda x: x * scale

    def forward(self, x):
        return self.apply_scale(x)


class Cache:
    """Tensors that are registered in no module."""

    def __init__(self):
        self.kept = torch.zeros(3, 4)


@case(words=("not a registered buffer", "register it as a buffer"))
class HiddenCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = Cache()

    def forward(self, x):
        self.cache.kept.add_(x)  # here
        return self.cache.kept * 2


class Labelled(torch.Tensor):
    """A tensor subclass."""


@case(args=(X.as_subclass(Labelled),), captured_by="torch.export")
class SubclassInput(nn.Module):
    def forward(self, x):
        return x + 1


@case(captured_by="torch.export")
class KeptTensor(nn.Module):
    def forward(self, x):
        self.last = x * 2
        return x + 1


@case(captured_by="torch.export")
class MadeInForward(nn.Module):
    def forward(self, x):
        if not hasattr(self, "table"):
            self.table = torch.arange(4.0)
        return x + self.table
