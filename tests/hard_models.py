"""Models that run in Python and that compilers refuse: each must give a graph, whatever it takes.

What each gives is in `tests/hard_models_table.py`.
"""

from __future__ import annotations

import ctypes
import json
import random
import weakref
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
    """Enter a model into the table under the name of its class; its docstring says what is hard about it."""
    MODELS[model.__name__] = model
    return model


# -- Python that follows the data ------------------------------------------------------------------------------------


@hard
class EarlyExit(nn.Module):
    """returns from the first head that is sure enough"""

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
    """runs each expert on the rows that chose it, and skips the others"""

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
    """iterates until it has converged"""

    def forward(self, x):
        root = x.abs() + 1
        while (root * root - x.abs()).abs().max() > 1e-3:
            root = (root + x.abs() / root) / 2
        return root


@hard
class DataDependentDepth(nn.Module):
    """calls itself as often as a value says"""

    def forward(self, x, depth=None):
        depth = int(x.abs().sum() % 3) if depth is None else depth
        return x if depth == 0 else self.forward(x * 2, depth - 1)


@hard
class DispatchTable(nn.Module):
    """looks its activation up in a dict under a number made of data"""

    def forward(self, x):
        table = {0: torch.relu, 1: torch.tanh, 2: torch.sigmoid}
        return table[x.argmax().item() % 3](x)


@hard
class SortedList(nn.Module):
    """lets Python sort tensors"""

    def forward(self, x):
        return torch.stack(sorted(x, key=lambda row: float(row.sum()), reverse=True))


@hard
class Suppression(nn.Module):
    """keeps boxes that overlap none that is kept, in a Python loop"""

    def forward(self, x):
        kept: list[torch.Tensor] = []
        for row in x:
            if all((row - other).abs().max() > 0.15 for other in kept):
                kept.append(row)
        return torch.stack(kept).sum(0)


@hard
class GreedyDecoding(nn.Module):
    """appends tokens until the end token comes"""

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
    """asserts what only the data can tell"""

    def forward(self, x):
        assert torch.isfinite(x).all(), "not finite"
        assert x.min() >= -100
        return x.log1p()


@hard
class Comparison(nn.Module):
    """asks whether tensors are equal"""

    def forward(self, x):
        if torch.equal(x, x.round()) or torch.allclose(x, -x):
            return x.long().float()
        return x * 2


# -- Python that leaves torch ----------------------------------------------------------------------------------------


@hard
class NumpyInPlace(nn.Module):
    """lets NumPy write into the memory of a tensor"""

    def forward(self, x):
        y = x * 2
        y.numpy()[0] += 1
        return y + x


@hard
class NumpyBranch(nn.Module):
    """branches on what NumPy computed"""

    def forward(self, x):
        return x + 1 if np.median(x.detach().numpy()) > 0 else x - 1


@hard
class ThroughJson(nn.Module):
    """writes a tensor as text and reads it back"""

    def forward(self, x):
        return torch.tensor(json.loads(json.dumps((x * 2).tolist())))


@hard
class ThroughDlpack(nn.Module):
    """hands memory to another library and takes it back"""

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
    """has an autograd function that computes in NumPy"""

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
    """makes a layer when it is first called"""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        norm = nn.LayerNorm(x.shape[-1])
        return norm(x) * self.scale


@hard
class HooksThatChange(nn.Module):
    """has hooks that change what goes in and what comes out"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.linear.register_forward_hook(lambda module, args, out: out if out.sum() > 0 else -out)

    def forward(self, x):
        return self.linear(x)


@hard
class WeakReferences(nn.Module):
    """finds its neighbour through a weak reference"""

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
    """keeps what it made in an attribute that grows, and goes on until there is enough"""

    def forward(self, x):
        self.seen = [x]
        while sum(self.seen).sum() < 20:
            self.seen.append(self.seen[-1] + 1)
        return sum(self.seen) / len(self.seen)


class Tagged(torch.Tensor):
    """A tensor that changes what functions do."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.Tensor.relu else result


@hard
class OwnTensorClass(nn.Module):
    """computes with a tensor class of its own"""

    def forward(self, x):
        return x.as_subclass(Tagged).relu().as_subclass(torch.Tensor) + 1


@hard
class PickedByChance(nn.Module):
    """lets Python's own random numbers choose"""

    def forward(self, x):
        return x * 2 if random.Random(int(x.shape[0])).random() > 0.5 else F.relu(x)


@hard
class Compiled(nn.Module):
    """has a part that torch.compile compiles"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.part = torch.compile(lambda x: x.relu() * 2)

    def forward(self, x):
        return self.part(self.linear(x)) if bool(x.any()) else x


# -- all of them -----------------------------------------------------------------------------------------------------

# Of the models that are hard to capture, those that run in Python.
_ABOUT = {
    "Branch": "branches on a sum",
    "Loop": "loops while a norm is large",
    "Assertion": "raises where a value is not finite",
    "ItemAsChoice": "takes an element of a list by a number made of data",
    "ItemAsSize": "makes a tensor as large as a value says",
    "ItemAsRange": "loops as often as a value says",
    "ToList": "makes a list of a tensor, and a tensor of the list",
    "NumpyDetour": "computes in NumPy on the way",
    "Masked": "picks elements by a mask",
    "MaskedSize": "branches on how many elements a mask picks",
    "Sorted": "lets Python find the largest of two rows",
    "LoopOverFound": "loops over the places where something is",
    "Printing": "prints",
    "Formatting": "writes a tensor into a string",
    "CustomAutograd": "has an autograd function of its own",
    "NoFakeKernel": "calls a custom operator that does not say its shape",
    "LikeAnExtension": "calls an operator of an extension that does not say its shape",
    "DataPointer": "computes with the address of a tensor",
    "PythonRandom": "multiplies by a random number of Python's",
    "NumpyFunctions": "lets NumPy take a tensor for an array",
    "ExactType": "insists on the very class of its input",
    "ExactTypeAndLayout": "insists on class and strides of its input",
    "Rounding": "rounds a value in Python",
    "Deepcopy": "copies a tensor with `copy.deepcopy`",
    "Pickled": "sends a tensor through pickle",
    "InAThread": "computes in another thread",
    "Scripted": "has a part in TorchScript",
    "Gradients": "computes a gradient in forward",
    "DynamicAttribute": "sets attributes whose names it makes up",
    "Hooked": "has a hook that changes a result",
    "Generator": "computes in a generator",
    "TryExcept": "tries what fails, and does something else",
    "DataclassOutput": "returns a dataclass",
    "UnknownOutput": "returns a dataclass that torch does not know",
    "GlobalState": "counts its calls in a global list",
    "ListMutation": "appends to a list that it is given",
    "IntKeys": "takes and returns a dict with numbers for keys",
    "KeywordsOnly": "takes keywords only",
    "NotTensors": "takes strings, numbers and None",
    "Recursion": "calls itself",
    "Closure": "computes with a tensor in a closure",
    "HiddenCache": "keeps state in an object that is no module",
    "SubclassInput": "takes a tensor of a class of its own",
    "KeptTensor": "keeps a result in an attribute",
    "MadeInForward": "makes a table when it is first called",
    "Enormous": "asks for the shape of a tensor that no memory holds",
}


@dataclass(frozen=True)
class Hard:
    """A model with the inputs of its call, and what is hard about it."""

    name: str
    model: type[nn.Module]
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
