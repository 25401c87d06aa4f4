"""Pieces that query a parameter, buffer or input, or change its memory: `requires_grad`, classes, `.data`."""

# mypy: ignore-errors

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from tests.state_models.piece import SIZE, piece

IDENTITY, DATA, PARAMETRISED = "identity of tensors", "memory of tensors", "parametrisations"


class Weighted(nn.Module):
    """A parameter, a frozen parameter, a buffer and a layer, with the same values in every process."""

    def __init__(self):
        super().__init__()
        draw = torch.Generator(device="cpu").manual_seed(1)
        values = [torch.rand(SIZE, generator=draw, device="cpu") + 0.5 for _ in range(3)]
        self.w = nn.Parameter(values[0])
        self.frozen = nn.Parameter(values[1], requires_grad=False)
        self.register_buffer("b", values[2])


@piece(IDENTITY)
class AsksForGrad(Weighted):
    def forward(self, x):
        return x * self.w if self.w.requires_grad else x + self.w


@piece(IDENTITY)
class AsksForGradOfFrozen(Weighted):
    def forward(self, x):
        return x * self.frozen if self.frozen.requires_grad else x + self.frozen


@piece(IDENTITY)
class AsksForGradOfBuffer(Weighted):
    def forward(self, x):
        return x * self.b if self.b.requires_grad else x + self.b


@piece(IDENTITY)
class AsksForGradOfInput(Weighted):
    def forward(self, x):
        return x * self.w if x.requires_grad else x + self.w


@piece(IDENTITY)
class AsksForGradOfResult(Weighted):
    def forward(self, x):
        y = x * self.w
        return y * 2 if y.requires_grad else y + 3


@piece(IDENTITY)
class AsksForLeaf(Weighted):
    def forward(self, x):
        y = x * self.w
        return y * 2 if self.w.is_leaf and y.is_leaf else y + 3


@piece(IDENTITY)
class AsksForGradFunction(Weighted):
    def forward(self, x):
        y = x * self.w
        return y * 2 if y.grad_fn is not None else y + 3


@piece(IDENTITY)
class AsksForGradOfAny(Weighted):
    def forward(self, x):
        return x * self.w if any(p.requires_grad for p in self.parameters()) else x + self.w


@piece(IDENTITY)
class Freezes(Weighted):
    def forward(self, x):
        y = x * 2 if self.w.requires_grad else x + 3
        self.w.requires_grad_(False)
        return y


@piece(IDENTITY)
class AsksForParameterClass(Weighted):
    def forward(self, x):
        return x * self.w if type(self.w) is nn.Parameter else x + self.w


@piece(IDENTITY)
class AsksForParameterInstance(Weighted):
    def forward(self, x):
        return x * self.w if isinstance(self.w, nn.Parameter) and not isinstance(self.b, nn.Parameter) else x + self.w


@piece(IDENTITY)
class AsksForBufferClass(Weighted):
    def forward(self, x):
        return x * self.b if type(self.b) is torch.Tensor else x + self.b


@piece(IDENTITY)
class AsksForInputClass(Weighted):
    def forward(self, x):
        return x * self.w if type(x) is torch.Tensor else x + self.w


@piece(IDENTITY)
class AsksForResultClass(Weighted):
    def forward(self, x):
        y = x * self.w
        return y * 2 if type(y) is torch.Tensor else y + 3


@piece(IDENTITY)
class AsksByClassName(Weighted):
    def forward(self, x):
        return x * self.w if self.w.__class__.__name__ == "Parameter" else x + self.w


@piece(IDENTITY)
class AsksByTable(Weighted):
    def forward(self, x):
        return {nn.Parameter: x * 2, torch.Tensor: x + 3}.get(type(self.w), x - 1)


@piece(IDENTITY)
class TypedStorageClass(Weighted):
    def forward(self, x):
        return x * 2 if self.w.type() == "torch.FloatTensor" and torch.is_tensor(self.w) else x + 3


@piece(IDENTITY)
class ComparesIdentity(Weighted):
    def __init__(self):
        super().__init__()
        self.twin = self.w
        self.held = [self.b]

    def forward(self, x):
        return x * 2 if self.twin is self.w and self.held[0] is self.b else x + 3


@piece(IDENTITY)
class NamesParameters(Weighted):
    def forward(self, x):
        names = {id(p): name for name, p in self.named_parameters()}
        return x * 2 if names.get(id(self.w)) == "w" else x + 3


@piece(DATA)
class AssignsDataOfParameter(Weighted):
    def forward(self, x):
        self.w.data = self.w.data * 0.5 + 1
        return x * self.w


@piece(DATA)
class AssignsDataOfBuffer(Weighted):
    def forward(self, x):
        self.b.data = self.b + x[0]
        return x * self.b


@piece(DATA)
class AssignsDataOfInput(Weighted):
    def forward(self, x):
        x = x * 1
        x.data = x * self.w
        return x + 1


@piece(DATA)
class AssignsDataOfTemporary(Weighted):
    def forward(self, x):
        y = x + 1
        y.data = x * self.w
        return y * 2


@piece(DATA)
class AssignsDataAfterUse(Weighted):
    def forward(self, x):
        y = x * self.w
        self.w.data = torch.ones(SIZE) * 2
        return y


@piece(DATA)
class WritesDataOfParameter(Weighted):
    def forward(self, x):
        self.w.data.add_(1)
        return x * self.w


@piece(DATA)
class WritesDataOfTemporary(Weighted):
    def forward(self, x):
        y = x + 1
        y.data.mul_(2)
        y.data[0] = 7
        return y


@piece(DATA)
class ReadsData(Weighted):
    def forward(self, x):
        return x.data * self.w.data + self.b.data


@piece(DATA)
class CopiesIntoData(Weighted):
    def forward(self, x):
        self.b.data.copy_(x[0])
        self.w.data[1:] = 3
        return x * self.b + self.w


@piece(DATA)
class DetachesAndWrites(Weighted):
    def forward(self, x):
        self.w.detach().mul_(2)
        self.b.detach_().add_(1)
        return x * self.w + self.b


@piece(DATA)
class SetsMemory(Weighted):
    def forward(self, x):
        y = x + 1
        y.set_(x * 3)
        return y + 1


@piece(DATA)
class SetsMemoryOfBuffer(Weighted):
    def forward(self, x):
        self.b.set_(self.b * 2 + x[0])
        return x * self.b


@piece(DATA)
class Resizes(Weighted):
    def forward(self, x):
        y = x.flatten() + 1
        y.resize_(2, SIZE)
        return x + y.sum()


@piece(DATA)
class SwapsTensors(Weighted):
    def forward(self, x):
        a, b = x + 1, x * 2
        torch.utils.swap_tensors(a, b)
        return a * 2 + b


@piece(DATA)
class SwapsBuffers(Weighted):
    def __init__(self):
        super().__init__()
        self.register_buffer("c", torch.ones(SIZE))

    def forward(self, x):
        torch.utils.swap_tensors(self.b, self.c)
        return x * self.b


@piece(DATA)
class WritesParameterWithoutGrad(Weighted):
    def forward(self, x):
        with torch.no_grad():
            self.w.add_(1)
        return x * self.w


@piece(DATA)
class WritesInput(Weighted):
    def forward(self, x):
        x.mul_(2)
        return x + self.w


@piece(DATA)
class WritesBuffer(Weighted):
    def forward(self, x):
        self.b.mul_(0.5).add_(x[0])
        return x * self.b


class Doubled(nn.Module):
    def forward(self, w):
        return w * 2


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.ones(SIZE))

    def forward(self, w):
        return w + self.shift

    def right_inverse(self, w):
        return w - 1


@piece(PARAMETRISED)
class Parametrised(Weighted):
    def __init__(self):
        super().__init__()
        parametrize.register_parametrization(self, "w", Doubled())

    def forward(self, x):
        return x * self.w


@piece(PARAMETRISED)
class ParametrisedTwice(Weighted):
    def __init__(self):
        super().__init__()
        parametrize.register_parametrization(self, "w", Doubled())
        parametrize.register_parametrization(self, "w", Shifted())

    def forward(self, x):
        return x * self.w


@piece(PARAMETRISED)
class ParametrisedCached(Weighted):
    def __init__(self):
        super().__init__()
        parametrize.register_parametrization(self, "w", Doubled())

    def forward(self, x):
        with parametrize.cached():
            return x * self.w + self.w


@piece(PARAMETRISED)
class ParametrisedAssigned(Weighted):
    def __init__(self):
        super().__init__()
        parametrize.register_parametrization(self, "w", Shifted())

    def forward(self, x):
        self.w = torch.full((SIZE,), 2.0) + x[0]
        return x * self.w


@piece(PARAMETRISED)
class SpectrallyNormed(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.fc = nn.utils.parametrizations.spectral_norm(nn.Linear(SIZE, SIZE))

    def forward(self, x):
        return self.fc(x)


@piece(PARAMETRISED)
class WeightNormed(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(SIZE, SIZE))

    def forward(self, x):
        return self.fc(x)


@piece(PARAMETRISED)
class Pruned(nn.Module):
    """Pruning keeps a plain attribute that a forward pre-hook assigns."""

    def __init__(self):
        super().__init__()
        from torch.nn.utils import prune

        self.fc = nn.Linear(SIZE, SIZE, bias=False)
        self.fc.weight = nn.Parameter(torch.arange(16.0).reshape(SIZE, SIZE) / 10)
        prune.l1_unstructured(self.fc, "weight", amount=0.5)

    def forward(self, x):
        return self.fc(x)
