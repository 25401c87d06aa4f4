"""Models that are hard to capture, each with the end that it must come to.

A model that cannot be captured marks the line that a diagnosis must name with the comment `# here`.
"""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

X = torch.arange(12.0).reshape(3, 4) / 10


@dataclass
class Case:
    """A model, how it is called, and what must become of it: the step that captures it, or words of its diagnosis."""

    model: type[nn.Module]
    args: tuple[Any, ...] = (X,)
    kwargs: dict[str, Any] = field(default_factory=dict)
    captured_by: str = ""
    words: tuple[str, ...] = ()
    isolated: bool = False
    time_limit: float = 600

    @property
    def place(self) -> str:
        """The marked line, as a diagnosis writes it; nothing if no line is marked."""
        lines, first = inspect.getsourcelines(self.model)
        marked = [first + index for index, line in enumerate(lines) if line.rstrip().endswith("# here")]
        return f"tests/hostile_models.py:{marked[0]}" if marked else ""


CASES: dict[str, Case] = {}


def case(*args: Any, **facts: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Enter a model into the table under the name of its class."""

    def enter(model: type[nn.Module]) -> type[nn.Module]:
        CASES[model.__name__] = Case(model, *args, **facts)
        return model

    return enter


# -- Python that follows the data ------------------------------------------------------------------------------------


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


# -- Python that leaves torch ----------------------------------------------------------------------------------------


@case(captured_by="torch.export")
class Printing(nn.Module):
    def forward(self, x):
        print("the sum is", x.shape)
        return x + 1


@case(captured_by="torch.export")
class Formatting(nn.Module):
    def forward(self, x):
        self.last = f"{x}"
        return x + 1


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(0, 1)

    @staticmethod
    def backward(ctx, grad):
        return grad


@case(captured_by="torch.export")
class CustomAutograd(nn.Module):
    def forward(self, x):
        return _Clip.apply(x) + 1


@torch.library.custom_op("hostile::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@case(words=("hostile::no_fake", "register_fake"))
class NoFakeKernel(nn.Module):
    def forward(self, x):
        return no_fake(x) + 1  # here


_library = torch.library.Library("hostile", "FRAGMENT")
_library.define("native(Tensor x) -> Tensor")
_library.impl("native", lambda x: x * 2, "CPU")


@case(words=("hostile.native", "register_fake"))
class LikeAnExtension(nn.Module):
    def forward(self, x):
        return torch.ops.hostile.native(x)  # here


@case(words=("memory of a tensor",))
class DataPointer(nn.Module):
    def forward(self, x):
        return x + x.data_ptr() % 2  # here


@case(captured_by="torch.export")
class PythonRandom(nn.Module):
    def forward(self, x):
        return x * random.Random(0).random()


@case(captured_by="torch.export in strict mode")
class NumpyFunctions(nn.Module):
    def forward(self, x):
        return torch.as_tensor(np.tanh(np.asarray(x)))


@case(captured_by="torch.export in strict mode")
class ExactType(nn.Module):
    def forward(self, x):
        if type(x) is not torch.Tensor:
            raise TypeError("a plain tensor, please")
        return x + 1


@case(captured_by="torch.export in strict mode")
class ExactTypeAndLayout(nn.Module):
    def forward(self, x):
        if type(x) is not torch.Tensor or not x.is_contiguous():
            raise TypeError("a plain tensor, please")
        return x + x.stride(0)


@case(captured_by="torch.export in strict mode")
class Rounding(nn.Module):
    def forward(self, x):
        return x + round(float(x[0, 0]), 2)


@case(words=("asks for the memory",))
class Deepcopy(nn.Module):
    def forward(self, x):
        return copy.deepcopy(x) + 1  # here


@case(words=("asks for the memory",))
class Pickled(nn.Module):
    def forward(self, x):
        return pickle.loads(pickle.dumps(x))  # here


@case(words=("another thread",))
class InAThread(nn.Module):
    def forward(self, x):
        found = []
        thread = threading.Thread(target=lambda: found.append(x * 2))
        thread.start()
        thread.join()
        return found[0]


@case(words=("TorchScript",))
class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch about its own old age
            self.inner = torch.jit.script(nn.Linear(4, 4))

    def forward(self, x):
        return self.inner(x)


@case(words=("'inner.weight' has no shape yet",))
class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LazyLinear(3)

    def forward(self, x):
        return self.inner(x)


@case(captured_by="torch.export")
class Gradients(nn.Module):
    def forward(self, x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            return torch.autograd.grad((y * y).sum(), y)[0]


# -- state and structure ---------------------------------------------------------------------------------------------


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
    """A class of its own, since whoever records a model makes what it returns known to torch."""

    def __init__(self):
        super().__init__()
        self.kind = make_dataclass("Unregistered", [("logits", torch.Tensor)])

    def forward(self, x):  # here
        return self.kind(x + 1)


_calls: list[int] = []


@case(captured_by="torch.export")
class GlobalState(nn.Module):
    def forward(self, x):
        _calls.append(1)
        return x + 1


@case(captured_by="torch.export")
class ListMutation(nn.Module):
    def forward(self, x, parts):
        parts.append(x)
        return torch.cat(parts)


CASES["ListMutation"].args = (X, [X, X])


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


@case(words=("calls itself without end",))
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
    """Tensors that no module knows of."""

    def __init__(self):
        self.kept = torch.zeros(3, 4)


@case(words=("no module holds", "register it as a buffer"))
class HiddenCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = Cache()

    def forward(self, x):
        self.cache.kept.add_(x)  # here
        return self.cache.kept * 2


class Labelled(torch.Tensor):
    """A tensor of a class of its own."""


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


# -- failures ---------------------------------------------------------------------------------------------------------


@case(words=("KeyError", "'missing'"))
class RaisesItself(nn.Module):
    def forward(self, x):
        return {"present": x}["missing"]  # here


@case(words=("reduction dim", "do not fit"))
class WrongShapes(nn.Module):
    def forward(self, x):
        return x @ x  # here


@case(args=(X, X), words=("not the arguments of forward",))
class TooManyInputs(nn.Module):
    def forward(self, x):  # here
        return x


@case(words=("sys.exit",))
class Exits(nn.Module):
    def forward(self, x):
        sys.exit(3)  # here


@case(words=("SIGABRT",), isolated=True)
class Aborts(nn.Module):
    def forward(self, x):
        os.abort()  # here


@case(words=("longer than 1 s", "loop without end"), isolated=True, time_limit=1)
class Hangs(nn.Module):
    def forward(self, x):
        while True:
            time.sleep(0.1)  # here


@case(captured_by="torch.export")
class Enormous(nn.Module):
    def forward(self, x):
        return x + torch.ones(3, 4, 1 << 50, device="meta").shape[1]
