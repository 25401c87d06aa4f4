"""Models whose Python leaves torch, or needs a tensor's memory."""

from __future__ import annotations

import copy
import pickle
import random
import threading
import warnings

import numpy as np
import torch
from torch import nn

from tests.hostile_models.case import case


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


@case(words=("reads the memory",))
class Deepcopy(nn.Module):
    def forward(self, x):
        return copy.deepcopy(x) + 1  # here


@case(words=("reads the memory",))
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
