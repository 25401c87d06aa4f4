"""Pieces with state in Python: counters, lists, flags, hooks, settings and globals."""

# mypy: ignore-errors

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque

import torch
from torch import nn

from tests.state_models.piece import SIZE, piece

COUNTERS, HOOKS, GLOBALS = "Python state", "hooks", "globals"
SEEN: list[int] = []
SETTINGS = {"scale": 1.0}
CALLS = 0


@piece(COUNTERS)
class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@piece(COUNTERS)
class CountsInCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def forward(self, x):
        self.calls["forward"] += 1
        return x * self.calls["forward"]


@piece(COUNTERS)
class CountsInObject(nn.Module):
    class Statistics:
        calls = 0

    def __init__(self):
        super().__init__()
        self.statistics = self.Statistics()

    def forward(self, x):
        self.statistics.calls += 1
        return x * self.statistics.calls


@piece(COUNTERS)
class CountsOnClass(nn.Module):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return x * self.calls


@piece(COUNTERS)
class CountsByIterator(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)

    def forward(self, x):
        return x * next(self.numbers)


@piece(COUNTERS)
class CountsInClosure(nn.Module):
    def __init__(self):
        super().__init__()
        calls = 0

        def count():
            nonlocal calls
            calls += 1
            return calls

        self.count = count

    def forward(self, x):
        return x * self.count()


@piece(COUNTERS)
class CountsInDefault(nn.Module):
    def forward(self, x, seen=[]):  # noqa: B006  # this is the fault
        seen.append(1)
        return x * len(seen)


@piece(COUNTERS)
class Appends(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x.mean())
        return x + torch.stack(self.seen).sum()


@piece(COUNTERS)
class AppendsToDeque(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = deque(maxlen=2)

    def forward(self, x):
        self.seen.append(x)
        return sum(self.seen)


@piece(COUNTERS)
class AppendsButNeverReads(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return x + 1


@piece(COUNTERS)
class CountsButNeverReads(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + 1


@piece(COUNTERS)
class FirstCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.is_first = True

    def forward(self, x):
        if self.is_first:
            self.is_first = False
            return x * 2
        return x + 3


@piece(COUNTERS)
class Toggles(nn.Module):
    def __init__(self):
        super().__init__()
        self.is_on = False

    def forward(self, x):
        self.is_on = not self.is_on
        return x * 2 if self.is_on else x + 3


@piece(COUNTERS)
class ThirdCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * 2 if self.calls < 3 else x + 3


@piece(COUNTERS)
class InitialisesOnce(nn.Module):
    def __init__(self):
        super().__init__()
        self.is_ready = False
        self.register_buffer("scale", torch.ones(SIZE))

    def forward(self, x):
        if not self.is_ready:
            self.scale.copy_(x.abs().amax(0) + 1)
            self.is_ready = True
        return x / self.scale


@piece(COUNTERS)
class Pops(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = [float(number) for number in range(32)]

    def forward(self, x):
        return x * self.left.pop()


@piece(COUNTERS)
class ChangesSettings(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = {"nested": {"scale": 1.0}}

    def forward(self, x):
        y = x * self.config["nested"]["scale"]
        self.config["nested"]["scale"] *= 2
        return y


@piece(COUNTERS)
class RemembersInputSize(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = None

    def forward(self, x):
        self.size = x.shape[0]
        return x / self.size


@piece(COUNTERS)
class LogsByKey(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = defaultdict(list)

    def forward(self, x):
        self.log["x"].append(float(x.shape[0]))
        return x * len(self.log["x"])


@piece(COUNTERS)
class ChangesMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(SIZE)

    def forward(self, x):
        self.norm.train(not self.norm.training)
        return self.norm(x)


@piece(COUNTERS)
class CountsInBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@piece(HOOKS)
class CollectsByHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Tanh()
        kept = self.kept = []
        self.act.register_forward_hook(lambda module, args, out: kept.append(out))

    def forward(self, x):
        y = self.act(x)
        return y + len(self.kept)


@piece(HOOKS)
class CollectsOutside(nn.Module):
    """The hook appends to a list outside the model."""

    def __init__(self):
        super().__init__()
        self.act = nn.Tanh()
        kept = []
        self.act.register_forward_hook(lambda module, args, out: kept.append(1) or out * len(kept))

    def forward(self, x):
        return self.act(x)


@piece(HOOKS)
class KeepsByHookOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Tanh()
        self.kept = {}
        self.act.register_forward_hook(lambda module, args, out: self.kept.update(out=out))

    def forward(self, x):
        return self.act(x) + 1


@piece(HOOKS)
class ChangesByPreHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Tanh()
        self.act.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.act.register_forward_hook(lambda module, args, out: out + args[0])

    def forward(self, x):
        return self.act(x)


@piece(HOOKS)
class RemovesItsHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Tanh()
        self.handle = self.act.register_forward_hook(self.once)

    def once(self, module, args, out):
        self.handle.remove()
        return out * 3

    def forward(self, x):
        return self.act(x)


@piece(GLOBALS)
class CountsInGlobal(nn.Module):
    def forward(self, x):
        global CALLS
        CALLS += 1
        return x * CALLS


@piece(GLOBALS)
class AppendsToGlobal(nn.Module):
    def forward(self, x):
        SEEN.append(1)
        return x * len(SEEN)


@piece(GLOBALS)
class ChangesGlobalSettings(nn.Module):
    def forward(self, x):
        SETTINGS["scale"] += 1
        return x * SETTINGS["scale"]
