"""Regions and function transforms: autograd, precision and batching around ordinary code."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from tests.forms.form import Family

family = Family("transforms")

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


# torch.export turns the operands of `grad` and similar functions into constants: the graph ignores the input.


def layer() -> dict[str, Any]:
    return {"layer": nn.Linear(4, 4)}


# -- regions ----------------------------------------------------------------------------------------------------------


@family.forward((X,), (-X,), parts=layer)
def no_grad_regions(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = self.layer(x)
        with torch.enable_grad():
            z = self.layer(y).relu_()
    with torch.inference_mode():
        return z + y.detach()


@family.forward((X,), (-X,), parts=layer)
def grad_mode_set_by_a_call(self: Any, x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    y = self.layer(x)
    torch.set_grad_enabled(True)
    return y + 1


@family.forward((X,), (-X,), parts=layer)
def autocast_regions(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.layer(x)
        with torch.autocast("cpu", enabled=False):
            z = self.layer(y.float())
        w = y @ y.t()
    return y, z, w


@family.forward((X,), (-X,), parts=layer)
def checkpointed(self: Any, x: Tensor) -> Tensor:
    return checkpoint(lambda x: self.layer(x).relu(), x, use_reentrant=False) + 1


@family.forward((X,), (-X,), parts=layer)
def checkpointed_reentrant(self: Any, x: Tensor) -> Tensor:
    return checkpoint(lambda x: self.layer(x).relu(), x, use_reentrant=True) + 1


class Straight(torch.autograd.Function):
    """Round, and pass the gradient through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0]


@family.forward((X,), (-X,))
def custom_autograd_function(self: Any, x: Tensor) -> Tensor:
    return Straight.apply(x * 3) + 1


class Doubled(torch.autograd.Function):
    """Returns two results and writes to its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float) -> Any:
        x.mul_(k)
        ctx.mark_dirty(x)
        return x, x.exp()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


@family.forward((X,), (-X,))
def custom_autograd_function_that_writes(self: Any, x: Tensor) -> Any:
    return Doubled.apply(x + 1, 2.0)


# -- function transforms ----------------------------------------------------------------------------------------------


@family.forward((X,), (-X,), parts=layer)
def vmap_over_rows(self: Any, x: Tensor) -> Tensor:
    return vmap(lambda row: self.layer(row) * row.sum())(x)


@family.forward((X,), (-X,))
def vmap_nested(self: Any, x: Tensor) -> Tensor:
    return vmap(vmap(lambda a, b: a * b + a.sin(), in_dims=(0, None)), in_dims=(None, 0))(x[0], x[:, 1])


@family.forward((X,), (-X,))
def vmap_with_random_numbers(self: Any, x: Tensor) -> Tensor:
    return vmap(lambda row: row + torch.rand(4), randomness="different")(x)


@family.forward((X,), (-X,), parts=layer)
def vmap_over_models(self: Any, x: Tensor) -> Tensor:
    weights = {"weight": torch.stack([self.layer.weight, self.layer.weight * 2])}
    return vmap(lambda own: functional_call(self.layer, {**own, "bias": self.layer.bias}, (x,)))(weights)


@family.forward((X,), (-X,))
def gradient(self: Any, x: Tensor) -> Tensor:
    return grad(lambda y: (y.sin() * x).sum())(x)


@family.forward((X,), (-X,))
def gradient_of_each_row(self: Any, x: Tensor) -> Tensor:
    return vmap(grad(lambda row: (row**3).sum()))(x)


@family.forward((X,), (-X,))
def forward_mode_gradient(self: Any, x: Tensor) -> Any:
    return jvp(lambda y: y.sin() * 2, (x,), (torch.ones_like(x),))


@family.forward((X,), (-X,))
def vector_jacobian_product(self: Any, x: Tensor) -> Any:
    out, pull = vjp(lambda y: y.cos(), x)
    return out, pull(torch.ones_like(out))


@family.forward((X,), (-X,))
def jacobian_and_hessian(self: Any, x: Tensor) -> Any:
    return jacrev(lambda y: y.sin())(x[0]), hessian(lambda y: (y**3).sum())(x[0])


@family.forward((X,), (-X,))
def gradient_by_autograd(self: Any, x: Tensor) -> Any:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad((y**2).sum(), y)[0]


@family.forward((X,), (-X,), parts=layer)
def functional_call_with_other_weights(self: Any, x: Tensor) -> Tensor:
    return functional_call(self.layer, {"weight": self.layer.weight * 2, "bias": x[0]}, (x,))


# -- parametrised weights ---------------------------------------------------------------------------------------------


@family.model((X,), (-X,))
def weight_norm() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).eval()


@family.model((X,), (-X,))
def spectral_norm() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).eval()


@family.model((X,), (-X,))
def orthogonal_weight() -> nn.Module:
    return nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)).eval()


@family.model((X,), (-X,))
def pruned_weight() -> nn.Module:
    made = nn.Linear(4, 4)
    prune.l1_unstructured(made, "weight", amount=0.5)
    return made.eval()


@family.model((X,), (-X,))
def module_with_hooks() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    made[0].register_forward_hook(lambda module, args, result: result * 2)
    made.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return made.eval()
