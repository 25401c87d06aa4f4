"""Pieces with state in objects of a user's own classes: slots, data classes, named tuples, subclasses of containers."""

# mypy: ignore-errors

from __future__ import annotations

import enum
import types
import weakref
from collections import ChainMap, OrderedDict, UserDict, UserList, namedtuple
from dataclasses import dataclass, field

import torch
from torch import nn

from tests.state_models.piece import SIZE, piece

OBJECTS = "Python objects"


class Slotted:
    __slots__ = ("calls", "seen")

    def __init__(self):
        self.calls = 0
        self.seen = []


class SlottedChild(Slotted):
    __slots__ = ("more",)


class SlottedWithDict(Slotted):
    """A class without __slots__: instances have slots and a dict."""


@dataclass(slots=True)
class Record:
    calls: int = 0
    seen: list = field(default_factory=list)


@dataclass
class OpenRecord:
    inner: Record = field(default_factory=Record)


Pair = namedtuple("Pair", "name seen")


class PlainPair(Pair):
    """A named tuple with attributes."""


class Holder(nn.Module):
    """Keeps one object."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept


@piece(OBJECTS)
class CountsInSlot(Holder):
    def __init__(self):
        super().__init__(Slotted())

    def forward(self, x):
        self.kept.calls += 1
        return x * self.kept.calls


@piece(OBJECTS)
class FillsEmptySlot(Holder):
    """The slot has no value before the first call."""

    def __init__(self):
        super().__init__(SlottedChild())

    def forward(self, x):
        if hasattr(self.kept, "more"):
            return x * 2
        self.kept.more = True
        return x


@piece(OBJECTS)
class EmptiesSlot(Holder):
    def __init__(self):
        super().__init__(SlottedChild())
        self.kept.more = 3

    def forward(self, x):
        if not hasattr(self.kept, "more"):
            return x * 2
        del self.kept.more
        return x


@piece(OBJECTS)
class AppendsInSlot(Holder):
    def __init__(self):
        super().__init__(Slotted())

    def forward(self, x):
        self.kept.seen.append(1)
        return x * len(self.kept.seen)


@piece(OBJECTS)
class CountsInInheritedSlot(Holder):
    def __init__(self):
        super().__init__(SlottedWithDict())

    def forward(self, x):
        self.kept.calls += 1
        return x * self.kept.calls


@piece(OBJECTS)
class KeepsTensorInSlot(Holder):
    def __init__(self):
        super().__init__(SlottedChild())

    def forward(self, x):
        before = getattr(self.kept, "more", x)
        self.kept.more = x
        return x + before


@piece(OBJECTS)
class MemoInSlot(Holder):
    """Every call computes the same."""

    def __init__(self):
        super().__init__(SlottedChild())

    def forward(self, x):
        if not hasattr(self.kept, "more"):
            self.kept.more = torch.arange(float(SIZE)).cos()
        return x * self.kept.more


@piece(OBJECTS)
class WritesTensorInSlot(Holder):
    def __init__(self):
        super().__init__(SlottedChild())
        self.kept.more = torch.zeros(SIZE)

    def forward(self, x):
        self.kept.more += 1
        return x + self.kept.more


@piece(OBJECTS)
class CountsInRecord(Holder):
    def __init__(self):
        super().__init__(Record())

    def forward(self, x):
        self.kept.calls += 1
        return x * self.kept.calls


@piece(OBJECTS)
class AppendsInNestedRecord(Holder):
    def __init__(self):
        super().__init__(OpenRecord())

    def forward(self, x):
        self.kept.inner.seen.append(x.shape[0])
        return x * len(self.kept.inner.seen)


@piece(OBJECTS)
class ReplacesRecord(Holder):
    def __init__(self):
        super().__init__(Record())

    def forward(self, x):
        self.kept = Record(self.kept.calls + 1)
        return x * self.kept.calls


@piece(OBJECTS)
class AppendsInNamedTuple(Holder):
    def __init__(self):
        super().__init__(Pair("a", []))

    def forward(self, x):
        self.kept.seen.append(1)
        return x * len(self.kept.seen)


@piece(OBJECTS)
class CountsInDerivedNamedTuple(Holder):
    def __init__(self):
        super().__init__(PlainPair("a", []))
        self.kept.calls = 0

    def forward(self, x):
        self.kept.calls += 1
        self.kept.seen.append(1)
        return x * self.kept.calls + len(self.kept.seen)


@piece(OBJECTS)
class CountsInSimpleNamespace(Holder):
    def __init__(self):
        super().__init__(types.SimpleNamespace(calls=0))

    def forward(self, x):
        self.kept.calls += 1
        return x * self.kept.calls


@piece(OBJECTS)
class CountsInUserDict(Holder):
    def __init__(self):
        super().__init__(UserDict(calls=0))

    def forward(self, x):
        self.kept["calls"] += 1
        return x * self.kept["calls"]


@piece(OBJECTS)
class AppendsToUserList(Holder):
    def __init__(self):
        super().__init__(UserList())

    def forward(self, x):
        self.kept.append(1)
        return x * len(self.kept)


@piece(OBJECTS)
class CountsInChainMap(Holder):
    def __init__(self):
        super().__init__(ChainMap({"calls": 0}))

    def forward(self, x):
        self.kept["calls"] += 1
        return x * self.kept["calls"]


class Items(list):
    """A list with attributes."""


class Table(dict):
    """A dict with attributes."""


@piece(OBJECTS)
class CountsOnListSubclass(Holder):
    def __init__(self):
        super().__init__(Items())
        self.kept.calls = 0

    def forward(self, x):
        self.kept.calls += 1
        return x * self.kept.calls


@piece(OBJECTS)
class AppendsToListSubclass(Holder):
    def __init__(self):
        super().__init__(Items())

    def forward(self, x):
        self.kept.append(1)
        return x * len(self.kept)


@piece(OBJECTS)
class CountsInDictSubclass(Holder):
    def __init__(self):
        super().__init__(Table(calls=0))

    def forward(self, x):
        self.kept["calls"] += 1
        return x * self.kept["calls"]


@piece(OBJECTS)
class MovesToEnd(Holder):
    """Only the order of an OrderedDict changes."""

    def __init__(self):
        super().__init__(OrderedDict(a=1.0, b=2.0))

    def forward(self, x):
        self.kept.move_to_end(next(iter(self.kept)))
        return x * next(iter(self.kept.values()))


@piece(OBJECTS)
class CountsInBytes(Holder):
    def __init__(self):
        super().__init__(bytearray(1))

    def forward(self, x):
        self.kept[0] += 1
        return x * self.kept[0]


@piece(OBJECTS)
class CountsByWeakReference(nn.Module):
    """The model refers to the object only weakly."""

    def __init__(self):
        super().__init__()
        KEPT_ALIVE.append(OpenRecord())
        self.kept = weakref.ref(KEPT_ALIVE[-1])

    def forward(self, x):
        self.kept().inner.calls += 1
        return x * self.kept().inner.calls


@piece(OBJECTS)
class CountsByWeakDictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = weakref.WeakKeyDictionary()

    def forward(self, x):
        self.kept[self] = self.kept.get(self, 0) + 1
        return x * self.kept[self]


KEPT_ALIVE: list[OpenRecord] = []


class Phase(enum.Enum):
    FIRST = 1
    LATER = 2


@piece(OBJECTS)
class ChangesEnum(Holder):
    def __init__(self):
        super().__init__(Phase.FIRST)

    def forward(self, x):
        phase, self.kept = self.kept, Phase.LATER
        return x * phase.value


class Meter:
    """An object with a method that the model calls, and a property."""

    def __init__(self):
        self._calls = 0

    @property
    def calls(self):
        self._calls += 1
        return self._calls

    def __call__(self, x):
        return x * self.calls


@piece(OBJECTS)
class CallsMeter(Holder):
    def __init__(self):
        super().__init__(Meter())

    def forward(self, x):
        return self.kept(x)


@piece(OBJECTS)
class KeepsObjectInTuple(Holder):
    def __init__(self):
        super().__init__((Slotted(), {"deep": [Record()]}))

    def forward(self, x):
        self.kept[1]["deep"][0].calls += 1
        return x * self.kept[1]["deep"][0].calls


@piece(OBJECTS)
class CountsInSetSlot(Holder):
    """An object in a set."""

    def __init__(self):
        super().__init__({Slotted()})

    def forward(self, x):
        (only,) = self.kept
        only.calls += 1
        return x * only.calls


@piece(OBJECTS)
class CountsInKey(Holder):
    """An object that is a key of a dict."""

    def __init__(self):
        super().__init__({Slotted(): 1})

    def forward(self, x):
        (only,) = self.kept
        only.calls += 1
        return x * only.calls


@piece(OBJECTS)
class KeepsGenerator(Holder):
    def __init__(self):
        super().__init__(number for number in range(1, 100))

    def forward(self, x):
        return x * next(self.kept)


@piece(OBJECTS)
class SendsToGenerator(Holder):
    def __init__(self):
        super().__init__(running_total())
        next(self.kept)

    def forward(self, x):
        return x * self.kept.send(1)


def running_total():
    total = 0
    while True:
        total += yield total
