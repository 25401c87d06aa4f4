"""Pieces with state in code: closures, defaults, decorators, descriptors, classes, caches of functions."""

# mypy: ignore-errors

from __future__ import annotations

import functools

import torch
from torch import nn

from tests.state_models import other_module
from tests.state_models.piece import SIZE, piece

CODE = "state of code"


class Base(nn.Module):
    """The counter is on a base class."""

    total = 0
    seen = []  # noqa: RUF012


@piece(CODE)
class CountsOnBaseClass(Base):
    def forward(self, x):
        Base.total += 1
        return x * Base.total


@piece(CODE)
class AppendsOnBaseClass(Base):
    def forward(self, x):
        self.seen.append(1)
        return x * len(self.seen)


class Totals:
    calls = 0
    table = {"calls": 0}  # noqa: RUF012


@piece(CODE)
class CountsOnOtherClass(nn.Module):
    def forward(self, x):
        Totals.calls += 1
        return x * Totals.calls


@piece(CODE)
class CountsInTableOfOtherClass(nn.Module):
    def forward(self, x):
        Totals.table["calls"] += 1
        return x * Totals.table["calls"]


@piece(CODE)
class CountsByClassMethod(nn.Module):
    calls = 0

    @classmethod
    def next_call(cls):
        cls.calls += 1
        return cls.calls

    def forward(self, x):
        return x * self.next_call()


@piece(CODE)
class CountsByStaticMethod(nn.Module):
    calls = [0]  # noqa: RUF012

    @staticmethod
    def next_call():
        CountsByStaticMethod.calls[0] += 1
        return CountsByStaticMethod.calls[0]

    def forward(self, x):
        return x * self.next_call()


@piece(CODE)
class CountsInOtherModule(nn.Module):
    def forward(self, x):
        other_module.COUNT += 1
        return x * other_module.COUNT


@piece(CODE)
class CountsByFunctionOfOtherModule(nn.Module):
    def forward(self, x):
        return x * other_module.next_count()


@piece(CODE)
class AppendsInOtherModule(nn.Module):
    def forward(self, x):
        other_module.SEEN.append(1)
        return x * len(other_module.SEEN)


@piece(CODE)
class CountsInObjectOfOtherModule(nn.Module):
    def forward(self, x):
        other_module.STATE.calls += 1
        return x * other_module.STATE.calls


@piece(CODE)
class CountsInNestedClosure(nn.Module):
    def __init__(self):
        super().__init__()

        def outer():
            calls = 0

            def inner():
                nonlocal calls
                calls += 1
                return calls

            return lambda: inner()

        self.next_call = outer()

    def forward(self, x):
        return x * self.next_call()


@piece(CODE)
class CountsInPartial(nn.Module):
    def __init__(self):
        super().__init__()
        self.next_call = functools.partial(lambda seen, x: seen.append(1) or x * len(seen), [])

    def forward(self, x):
        return self.next_call(x)


def counted(function):
    """A decorator that counts on the wrapper."""

    @functools.wraps(function)
    def wrapper(*args):
        wrapper.calls += 1
        return function(*args) * wrapper.calls

    wrapper.calls = 0
    return wrapper


@piece(CODE)
class CountsByDecorator(nn.Module):
    @counted
    def forward(self, x):
        return x + 1


@piece(CODE)
class CountsByDecoratedMethod(nn.Module):
    @counted
    def scaled(self, x):
        return x + 1

    def forward(self, x):
        return self.scaled(x)


@piece(CODE)
class CountsByKeywordDefault(nn.Module):
    def forward(self, x, *, seen=[]):  # noqa: B006
        seen.append(1)
        return x * len(seen)


@piece(CODE)
class CountsInDefaultOfMethod(nn.Module):
    def scaled(self, x, state={"calls": 0}):  # noqa: B006
        state["calls"] += 1
        return x * state["calls"]

    def forward(self, x):
        return self.scaled(x)


@piece(CODE)
class CachesMethod(nn.Module):
    """The cache is filled by the first call, and every call computes the same."""

    @functools.lru_cache  # noqa: B019
    def table(self, size):
        return torch.arange(float(size)).cos()

    def forward(self, x):
        return x * self.table(x.shape[-1])


@piece(CODE)
class CachesFirstResult(nn.Module):
    """The cached function depends on a counter: later calls see the first count."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    @functools.lru_cache  # noqa: B019
    def scale(self, even):
        return self.calls

    def forward(self, x):
        self.calls += 1
        return x * self.scale(self.calls % 2 == 0)


@piece(CODE)
class CachesByInputSum(nn.Module):
    """A cache keyed by identity never hits: each input is another object."""

    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        key = id(self)
        self.tables[key] = self.tables.get(key, 0) + 1
        return x * self.tables[key]


class Counting:
    """A descriptor with state."""

    def __init__(self):
        self.calls = 0

    def __get__(self, instance, owner):
        self.calls += 1
        return self.calls


@piece(CODE)
class CountsByDescriptor(nn.Module):
    calls = Counting()

    def forward(self, x):
        return x * self.calls


@piece(CODE)
class CountsByProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self._calls = 0

    @property
    def calls(self):
        self._calls += 1
        return self._calls

    def forward(self, x):
        return x * self.calls


@piece(CODE)
class CountsByGetattr(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = [0]

    def __getattr__(self, name):
        if name == "calls":
            self.counts[0] += 1
            return self.counts[0]
        return super().__getattr__(name)

    def forward(self, x):
        return x * self.calls


@piece(CODE)
class ReplacesForward(nn.Module):
    """The first call replaces forward of the instance."""

    def later(self, x):
        return x * 3

    def forward(self, x):
        self.forward = self.later
        return x


@piece(CODE)
class ReplacesMethodOfClass(nn.Module):
    def scaled(self, x):
        ReplacesMethodOfClass.scaled = lambda self, x: x * 3
        return x

    def forward(self, x):
        return self.scaled(x)


@piece(CODE)
class SetsByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        setattr(self, "calls", getattr(self, "calls") + 1)  # noqa: B009, B010
        return x * self.calls


@piece(CODE)
class UpdatesItsDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.__dict__.update(calls=self.calls + 1)
        return x * vars(self)["calls"]


@piece(CODE)
class CountsInParent(nn.Module):
    """A child changes its parent through a bound method."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.child = Child(self.count)

    def count(self):
        self.calls += 1

    def forward(self, x):
        return self.child(x) * self.calls


class Child(nn.Module):
    def __init__(self, report):
        super().__init__()
        self.report = report

    def forward(self, x):
        self.report()
        return x + 1


@piece(CODE)
class HidesModuleInList(nn.Module):
    """A counter on a module that torch does not know."""

    def __init__(self):
        super().__init__()
        self.hidden = [Numbered()]

    def forward(self, x):
        return self.hidden[0](x)


class Numbered(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@piece(CODE)
class KeepsModuleInGlobal(nn.Module):
    def forward(self, x):
        return GLOBAL_MODULE(x)


GLOBAL_MODULE = Numbered()


@piece(CODE)
class KeepsBufferInGlobalModule(nn.Module):
    def forward(self, x):
        return GLOBAL_BUFFERED(x)


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(SIZE))

    def forward(self, x):
        self.total += 1
        return x + self.total


GLOBAL_BUFFERED = Buffered()


@piece(CODE)
class CountsByException(nn.Module):
    """A branch on an attribute that is missing at first."""

    def forward(self, x):
        try:
            self.calls += 1
        except AttributeError:
            self.calls = 1
        return x * self.calls


@piece(CODE)
class CountsInMapped(nn.Module):
    """Inside a comprehension and a lambda."""

    def __init__(self):
        super().__init__()
        self.calls = [0, 0]

    def forward(self, x):
        self.calls = [count + 1 for count in self.calls]
        return sum(map(lambda count: x * count, self.calls))  # noqa: C417
