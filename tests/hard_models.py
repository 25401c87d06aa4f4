"""Models that run in Python and that compilers refuse: each must be captured.

The results are in `tests/hard_models_table.py`.
"""

from __future__ import annotations

import ctypes
import json
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.hostile_models import CASES as HOSTILE
from tests.hostile_models import X

MODELS: dict[str, type[nn.Module]] = {}


def hard(model: type[nn.Module]) -> type[nn.Module]:
    """Register a model under the name of its class; its docstring says what is hard about it."""
    MODELS[model.__name__] = model
    return model


# -- Python that follows the data ------------------------------------------------------------------------------------


@hard
class EarlyExit(nn.Module):
    """returns from the first head whose confidence is high enough"""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x):
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = block(x).relu()
            logits = head(x)
            if logits.softmax(-1).max() > 0.9:
                return logits
        return logits


@hard
class RoutedExperts(nn.Module):
    """runs each expert on the rows routed to it, and skips unused experts"""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        choice = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (choice == index).nonzero().flatten()
            if rows.numel():
                out[rows] = expert(x[rows])
        return out


@hard
class Newton(nn.Module):
    """iterates until convergence"""

    def forward(self, x):
        root = x.abs() + 1
        while (root * root - x.abs()).abs().max() > 1e-3:
            root = (root + x.abs() / root) / 2
        return root


@hard
class DataDependentDepth(nn.Module):
    """recurses to a depth given by a tensor value"""

    def forward(self, x, depth=None):
        depth = int(x.abs().sum() % 3) if depth is None else depth
        return x if depth == 0 else self.forward(x * 2, depth - 1)


@hard
class DispatchTable(nn.Module):
    """looks up its activation in a dict by a tensor value"""

    def forward(self, x):
        table = {0: torch.relu, 1: torch.tanh, 2: torch.sigmoid}
        return table[x.argmax().item() % 3](x)


@hard
class SortedList(nn.Module):
    """sorts tensors with Python's `sorted`"""

    def forward(self, x):
        return torch.stack(sorted(x, key=lambda row: float(row.sum()), reverse=True))


@hard
class Suppression(nn.Module):
    """does non-maximum suppression in a Python loop"""

    def forward(self, x):
        kept: list[torch.Tensor] = []
        for row in x:
            if all((row - other).abs().max() > 0.15 for other in kept):
                kept.append(row)
        return torch.stack(kept).sum(0)


@hard
class GreedyDecoding(nn.Module):
    """appends tokens until the end token"""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8)

    def forward(self, x):
        tokens = x.sum().long().view(1) % 8
        while tokens.shape[0] < 6:
            following = self.head(self.embed(tokens).mean(0)).argmax()
            tokens = torch.cat([tokens, following.view(1)])
            if following.item() == 0:
                break
        return tokens


@hard
class AssertsAndWarns(nn.Module):
    """has an assertion on data"""

    def forward(self, x):
        assert torch.isfinite(x).all(), "not finite"
        assert x.min() >= -100
        return x.log1p()


@hard
class Comparison(nn.Module):
    """branches on the equality of tensors"""

    def forward(self, x):
        if torch.equal(x, x.round()) or torch.allclose(x, -x):
            return x.long().float()
        return x * 2


# -- Python that leaves torch ----------------------------------------------------------------------------------------


@hard
class NumpyInPlace(nn.Module):
    """writes to the memory of a tensor with NumPy"""

    def forward(self, x):
        y = x * 2
        y.numpy()[0] += 1
        return y + x


@hard
class NumpyBranch(nn.Module):
    """branches on a NumPy result"""

    def forward(self, x):
        return x + 1 if np.median(x.detach().numpy()) > 0 else x - 1


@hard
class ThroughJson(nn.Module):
    """converts a tensor to JSON and back"""

    def forward(self, x):
        return torch.tensor(json.loads(json.dumps((x * 2).tolist())))


@hard
class ThroughDlpack(nn.Module):
    """passes memory to another library and back"""

    def forward(self, x):
        return torch.from_dlpack((x * 2).__dlpack__()) + 1


@hard
class ThroughCtypes(nn.Module):
    """reads memory through a pointer"""

    def forward(self, x):
        y = (x * 2).contiguous()
        first = ctypes.cast(y.data_ptr(), ctypes.POINTER(ctypes.c_float))[0]
        return y + torch.tensor([first])


class _NumpyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.sinh(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


@hard
class NumpyAutograd(nn.Module):
    """has an autograd function that uses NumPy"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(_NumpyFunction.apply(x)).relu()


@hard
class ElementByElement(nn.Module):
    """applies a Python function to every element"""

    def forward(self, x):
        return (x * 1).apply_(lambda value: value**3 if value > 0.5 else 0.0)


# -- state and structure ---------------------------------------------------------------------------------------------


@hard
class LayerMadeInForward(nn.Module):
    """creates a layer in its first call"""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        norm = nn.LayerNorm(x.shape[-1])
        return norm(x) * self.scale


@hard
class HooksThatChange(nn.Module):
    """has hooks that change inputs and outputs"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.linear.register_forward_hook(lambda module, args, out: out if out.sum() > 0 else -out)

    def forward(self, x):
        return self.linear(x)


@hard
class WeakReferences(nn.Module):
    """accesses a module through a weak reference"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.found = weakref.ref(self.linear)

    def forward(self, x):
        layer = self.found()
        assert layer is not None
        return layer(x)


@hard
class GrowingMemory(nn.Module):
    """appends results to an attribute until there are enough"""

    def forward(self, x):
        self.seen = [x]
        while sum(self.seen).sum() < 20:
            self.seen.append(self.seen[-1] + 1)
        return sum(self.seen) / len(self.seen)


class Tagged(torch.Tensor):
    """A tensor subclass that changes the behaviour of functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.Tensor.relu else result


@hard
class OwnTensorClass(nn.Module):
    """computes with a tensor subclass"""

    def forward(self, x):
        return x.as_subclass(Tagged).relu().as_subclass(torch.Tensor) + 1


@hard
class PickedByChance(nn.Module):
    """branches on Python's random numbers"""

    def forward(self, x):
        return x * 2 if random.Random(int(x.shape[0])).random() > 0.5 else F.relu(x)


@hard
class Compiled(nn.Module):
    """contains a module compiled with torch.compile"""

    def __init__(self, backend: str = "inductor") -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.part = torch.compile(lambda x: x.relu() * 2, backend=backend)

    def forward(self, x):
        return self.part(self.linear(x)) if bool(x.any()) else x


# -- all of them -----------------------------------------------------------------------------------------------------

# Of the models that are hard to capture, those that run in Python.
_ABOUT = {
    "Branch": "branches on a sum",
    "Loop": "loops while a norm is large",
    "Assertion": "raises where a value is not finite",
    "ItemAsChoice": "indexes a list with a tensor value",
    "ItemAsSize": "creates a tensor whose size is a tensor value",
    "ItemAsRange": "loops for a number of iterations given by a tensor value",
    "ToList": "converts a tensor to a list and back",
    "NumpyDetour": "computes an intermediate result in NumPy",
    "Masked": "selects elements by a mask",
    "MaskedSize": "branches on the number of elements that a mask selects",
    "Sorted": "compares two rows with Python's `max`",
    "LoopOverFound": "loops over the indices of non-zero elements",
    "Printing": "prints",
    "Formatting": "formats a tensor as a string",
    "CustomAutograd": "has a custom autograd function",
    "NoFakeKernel": "calls a custom operator without a fake kernel",
    "LikeAnExtension": "calls an extension operator without a fake kernel",
    "DataPointer": "computes with the address of a tensor",
    "PythonRandom": "multiplies by a Python random number",
    "NumpyFunctions": "passes a tensor to NumPy functions",
    "ExactType": "checks the exact class of its input",
    "ExactTypeAndLayout": "checks the exact class and the strides of its input",
    "Rounding": "rounds a value in Python",
    "Deepcopy": "copies a tensor with `copy.deepcopy`",
    "Pickled": "pickles and unpickles a tensor",
    "InAThread": "computes in another thread",
    "Scripted": "contains a TorchScript module",
    "Gradients": "computes a gradient in forward",
    "DynamicAttribute": "sets attributes with computed names",
    "Hooked": "has a hook that changes a result",
    "Generator": "computes in a generator",
    "TryExcept": "catches an exception and takes another path",
    "DataclassOutput": "returns a dataclass",
    "UnknownOutput": "returns a dataclass that is not a pytree node",
    "GlobalState": "counts its calls in a global list",
    "ListMutation": "appends to a list argument",
    "IntKeys": "takes and returns a dict with integer keys",
    "KeywordsOnly": "takes only keyword arguments",
    "NotTensors": "takes strings, numbers and None",
    "Recursion": "calls itself",
    "Closure": "uses a tensor from a closure",
    "HiddenCache": "keeps state in an object that is not a module",
    "SubclassInput": "takes a tensor subclass as input",
    "KeptTensor": "stores a result in an attribute",
    "MadeInForward": "computes a table in its first call",
    "Enormous": "computes only the shape of a tensor too large for memory",
}


@dataclass(frozen=True)
class Hard:
    """A model with the inputs of its call, and what is hard about it."""

    name: str
    model: Callable[..., nn.Module]
    about: str
    args: tuple[Any, ...] = (X,)
    kwargs: dict[str, Any] = field(default_factory=dict)


def cases() -> dict[str, Hard]:
    """Every hard model."""
    own = {name: Hard(name, model, model.__doc__ or "") for name, model in MODELS.items()}
    others = {
        name: Hard(name, HOSTILE[name].model, about, HOSTILE[name].args, HOSTILE[name].kwargs)
        for name, about in _ABOUT.items()
    }
    return {**own, **others}
