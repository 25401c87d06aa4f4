"""Modules of `to_torch` refuse inputs with strides or shared memory for which the graph was not captured."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torch_ir import IR, ExecutionError, IRExecutor, extract_ir, to_torch

X = torch.arange(12.0).reshape(3, 4)


class Strided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.stride(0)


class Writing(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x + y


class Viewing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.reshape(-1).add_(1)  # changes x where `reshape` is a view
        return x * 2


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x + self.count


@pytest.mark.parametrize("model", [Strided(), Viewing()])
@pytest.mark.parametrize("with_weights", [False, True])
def test_other_strides_are_refused(model: nn.Module, with_weights: bool) -> None:
    """The same values in another order of memory."""
    module = to_torch(extract_ir(model.eval(), (X.clone(),), strict=False), {} if with_weights else None)
    assert torch.equal(module(X.clone()), model(X.clone()))
    other = X.t().contiguous().t()
    assert not torch.equal(model(other.clone(memory_format=torch.preserve_format)), model(X.clone()))
    for each in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module.__dict__["_checked"])) and module):
        with pytest.raises(ExecutionError, match="strides"):
            each(other)


def test_inputs_that_share_written_memory_are_refused() -> None:
    """`f(x, x)` where the first is written to."""
    module = to_torch(extract_ir(Writing().eval(), (X.clone(), X.clone()), strict=False), {})
    x, y = X.clone(), X.clone()
    assert torch.equal(module(X.clone(), y), Writing()(x, y))
    with pytest.raises(ExecutionError, match="shares memory"):
        module(x, x)
    with pytest.raises(ExecutionError, match="shares memory"):
        module(x[:2].view(-1)[:8].view(2, 4)[:1].expand(3, 4), x)


def test_a_buffer_as_input_is_refused() -> None:
    """The graph writes the buffer that it is called on."""
    model = Counting().eval()
    module = to_torch(extract_ir(model, (torch.zeros(4),), strict=False), model.state_dict())
    assert torch.equal(module(torch.zeros(4)), torch.ones(4))
    with pytest.raises(ExecutionError, match="shares memory"):
        module(module.count)


def test_transforms_and_compilers_see_no_checks() -> None:
    """vmap, torch.jit.trace and torch.export run the module as before."""
    model = Strided().eval()
    module = to_torch(extract_ir(model, (X,), strict=False), {})
    many = torch.stack([X, X + 1])
    assert torch.equal(torch.vmap(module)(many), many * 4)
    assert torch.equal(torch.jit.trace(module, (X,))(X), X * 4)
    assert torch.equal(torch.export.export(module, (X,)).module()(X), X * 4)


class ByRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:2] * 2 if x.shape[0] > 2 else x + x.shape[0]


@pytest.mark.parametrize("with_weights", [False, True])
def test_other_sizes_and_dtypes_are_refused(with_weights: bool) -> None:
    """Sizes outside of the range or the constraints, another fixed size, dtype or number of dimensions."""
    rows = torch.export.Dim.AUTO
    ir = extract_ir(ByRows().eval(), (X.clone(),), strict=False, dynamic_shapes=({0: rows},))
    module = to_torch(ir, {} if with_weights else None)
    assert torch.equal(module(torch.ones(5, 4)), torch.full((2, 4), 2.0))
    for refused in (X[:2], X[:1], X[:0], X[:, :3], X.double(), X[None]):
        with pytest.raises(ExecutionError):
            module(refused)
    fixed = to_torch(extract_ir(ByRows().eval(), (X.clone(),), strict=False), {})
    with pytest.raises(ExecutionError, match=r"has shape \[2, 4\], the graph takes \[3, 4\]"):
        fixed(X[:2])


class Stacking(nn.Module):
    def forward(self, given: dict[str, Tensor], *, scale: Tensor, shift: Tensor) -> Tensor:
        return torch.stack(list(given.values())) * scale + shift


@pytest.mark.parametrize("make", [IRExecutor, lambda ir: to_torch(ir, {})])
def test_another_order_of_keys_is_refused(make: Callable[[IR], Callable[..., Tensor]]) -> None:
    """`list(d.values())` depends on the order in which the caller built the dict; keywords have no order."""
    one, two = torch.ones(2), torch.zeros(2)
    given, named = {"a": one, "b": two}, {"scale": one, "shift": two}
    run = make(extract_ir(Stacking().eval(), (given,), kwargs=named, strict=False))
    swapped = {"shift": two, "scale": one}
    assert torch.equal(run(given, **swapped), Stacking()(given, **swapped))
    with pytest.raises(
        ExecutionError, match=r"keys in the order \['b', 'a'\], but the graph was captured for \['a', 'b'\]"
    ):
        run({"b": two, "a": one}, **named)
