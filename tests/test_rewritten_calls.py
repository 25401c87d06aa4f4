"""Calls that write otherwise than to the elements of their first argument are recorded, with the results of eager."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.test_data_queries import Net, X, check
from torch_ir import IR, CaptureWarning, IRExecutor, extract_ir


def _as_strided(net: Any, x: Tensor) -> Tensor:
    y = torch.zeros(4, 9)
    y.as_strided((3, 4), [10, 1]).copy_(x)
    return y


def _data(net: Any, x: Tensor) -> Tensor:
    y = x + 1
    before = y.view(-1)
    y.data = x * 2
    return y + before.view(3, 4)


def _assigned(net: Any, x: Tensor) -> Tensor:
    y = x * net.scale
    net.scale = net.scale + x.sum()
    net.count = net.count + 1
    return y * net.scale


def _swapped(net: Any, x: Tensor) -> Tensor:
    net.scale, net.other = net.other, net.scale
    return x * net.scale


def _cached(net: Any, x: Tensor) -> Tensor:
    net.count = x.sum(0)
    return net.count * x


def _in_region(net: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        return net.linear(x)


CASES: dict[str, Callable[[Any, Tensor], Any]] = {
    "squeeze_": lambda net, x: x.mean(0, True).squeeze_(0),
    "unsqueeze_ and transpose_": lambda net, x: (x + 1).unsqueeze_(0).transpose_(0, 1),
    "out of a sum": lambda net, x: torch.add(x, 1, out=torch.empty(3, 4)) * 2,
    "out of two results": lambda net, x: torch.max(x, 1, out=(torch.empty(3), torch.empty(3, dtype=torch.long)))[0],
    "resize_ of an empty tensor": lambda net, x: x + x.new().resize_((3, 4)).fill_(2),
    "a write to as_strided": _as_strided,
    "data of a tensor": _data,
    "assigned buffers": _assigned,
    "swapped buffers": _swapped,
    "a buffer as a cache": _cached,
    "a region with gradients": _in_region,
    "a lazy conjugate": lambda net, x: (lambda c: torch.fft.irfft(c * c.conj() + c.conj(), n=4))(torch.fft.rfft(x)),
}


class Wide(Net):
    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__(function)
        self.register_buffer("other", torch.tensor(5.0))


@pytest.mark.parametrize("name", CASES)
def test_the_recorder_covers_the_call(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model = Wide(CASES[name]).eval()
    with caplog.at_level(logging.INFO, "torch_ir.capture"), warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        ir = extract_ir(model, (X,), strict=False)
    assert not [record for record in caplog.records if hasattr(record, "fallback")]
    check(model, IR.from_json(ir.to_json()), X - 1)


@pytest.mark.parametrize("name", ["normal_", "bernoulli_", "random out"])
def test_random_writes_are_recorded(name: str, caplog: pytest.LogCaptureFixture) -> None:
    function: Any = {
        "normal_": lambda net, x: x + torch.empty(4).normal_(1, 2),
        "bernoulli_": lambda net, x: x + torch.empty(4).bernoulli_(0.5),
        "random out": lambda net, x: x + torch.randn(4, out=torch.empty(4)),
    }[name]
    model = Wide(function).eval()
    with caplog.at_level(logging.INFO, "torch_ir.capture"):
        ir = extract_ir(model, (X,), strict=False)
    assert not [record for record in caplog.records if hasattr(record, "fallback")]
    torch.manual_seed(3)
    expected = model(X)
    torch.manual_seed(3)
    torch.testing.assert_close(IRExecutor(ir, model.state_dict())(X), expected)


def test_gradients_that_forward_reads_are_not_made_up() -> None:
    """A recording has no gradients, so it does not answer whether a result has one."""

    def forward(net: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = net.linear(x)
        return y if y.requires_grad else x

    model = Wide(forward).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        ir = extract_ir(model, (X,), strict=False)
    assert [node.op_type for node in ir.nodes if node.outputs] == ["aten.linear.default"]
    assert ir.graph_outputs[0].producer is not None


@pytest.mark.parametrize("is_of_conjugate", [False, True])
def test_a_write_to_a_lazy_conjugate_is_not_lost(is_of_conjugate: bool) -> None:
    """Both have one memory, and each holds the conjugates of the elements of the other."""

    def forward(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.fft.fft(x)
        other = made.conj()
        (other if is_of_conjugate else made).add_(1j)
        return made * 1, other * 1

    model = Wide(forward).eval()
    check(model, extract_ir(model, (X,), strict=False))


class Shared(nn.Module):
    """Compares a shared module with None before it calls it elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()
        self.inner = nn.Sequential(nn.Linear(4, 4), self.act)

    def forward(self, x: Tensor) -> Tensor:
        if self.inner[1] is not None:
            x = self.inner(x)
        return self.act(x)


def test_a_shared_module_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torch_ir.capture"):
        ir = extract_ir(Shared().eval(), (X,), strict=False)
    assert not [record for record in caplog.records if hasattr(record, "fallback")]
    assert [node.origin.module for node in ir.nodes] == ["inner.0", "inner.1", "act"]
