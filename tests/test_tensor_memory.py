"""Queries of tensors in forward are answered as in eager; replacing a tensor's memory is refused with its line."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.proof import line_of, module
from torch_ir import CaptureWarning, ConversionError, IRExecutor, TorchIRError, extract_ir

X = torch.arange(12.0).reshape(3, 4)
roads = pytest.mark.parametrize("capture", ["auto", "export", "record"])
devices = pytest.mark.parametrize("device", ["cpu", "meta"])


def asks_for_gradients(self: Any, x: Tensor) -> Tensor:
    asked = (self.w.requires_grad, self.frozen.requires_grad, self.b.requires_grad, x.requires_grad)
    return x * 2 if asked == (True, False, False, False) else x + 3


def asks_for_instances(self: Any, x: Tensor) -> Tensor:
    return x * 2 if isinstance(self.w, nn.Parameter) and not isinstance(self.b, nn.Parameter) else x + 3


def asks_for_identity(self: Any, x: Tensor) -> Tensor:
    return x * 2 if self.held[0] is self.b and self.held[1] is self.w else x + 3


def writes_what_is_held(self: Any, x: Tensor) -> Tensor:
    self.b += 1
    made: Tensor = x + self.held[0]
    return made


def reads_data(self: Any, x: Tensor) -> Tensor:
    self.b.data.add_(1)
    return x.data * self.w.data + self.b


def assigns_parameter(self: Any, x: Tensor) -> Tensor:
    self.w = nn.Parameter(self.w * 0.5 + 1)
    return x * self.w


def changes_places(self: Any, x: Tensor) -> Tensor:
    self.b, self.c = self.c, self.b + x[0]
    return x + self.b


def keeps_its_input(self: Any, x: Tensor) -> Tensor:
    made = x + self.wide
    self.wide = x
    return made


def model(forward: Callable[..., Any], device: str = "cpu") -> nn.Module:
    with torch.device(device):
        buffers = {"b": torch.ones(4), "c": torch.zeros(4), "wide": torch.zeros(3, 4)}
        frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        made = module(forward, w=nn.Parameter(torch.ones(4)), frozen=frozen, buffers=buffers)
    made.held = [made.b, made.w]
    return made


@roads
@devices
@pytest.mark.parametrize(
    "forward",
    [
        *(asks_for_gradients, asks_for_instances, asks_for_identity, writes_what_is_held, reads_data),
        *(assigns_parameter, changes_places, keeps_its_input),
    ],
)
def test_call_after_call_as_in_eager(forward: Callable[..., Any], device: str, capture: str) -> None:
    ir = extract_ir(model(forward, device), (X.to(device),), strict=False, capture=capture)
    executor, eager = IRExecutor(ir, model(forward).state_dict()), model(forward)
    with torch.no_grad():
        for given in (X, X + 1, X):
            torch.testing.assert_close(executor(given), eager(given))


def assigns_data(self: Any, x: Tensor) -> Tensor:
    self.w.data = self.w.data * 2  # assigns_data
    return x * self.w


def assigns_data_of_a_result(self: Any, x: Tensor) -> Tensor:
    made = x + 1
    made.data = x * 3  # assigns_data_of_a_result
    return made


@roads
@devices
def test_assigned_data_is_refused_by_line(device: str, capture: str) -> None:
    given = model(assigns_data, device)
    before = given.w.detach().clone()
    told = f"{line_of(__file__, 'assigns_data')}: forward replaces the memory of a tensor .*write the values with copy_"
    with pytest.raises(ConversionError, match=told):
        extract_ir(given, (X.to(device),), strict=False, capture=capture)
    assert device == "meta" or torch.equal(given.w, before)


@pytest.mark.parametrize("capture", ["auto", "record"])
def test_assigned_data_of_a_result_is_recorded(capture: str) -> None:
    given = model(assigns_data_of_a_result)
    ir = extract_ir(given, (X,), strict=False, capture=capture)
    assert torch.equal(IRExecutor(ir, given.state_dict())(X), given(X))


def sets_memory(self: Any, x: Tensor) -> Tensor:
    self.b.set_(self.b * 2)
    return x * self.b


def swaps_tensors(self: Any, x: Tensor) -> Tensor:
    torch.utils.swap_tensors(self.b, self.c)  # type: ignore[no-untyped-call]  # torch's own
    return x + self.b


@devices
@pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")
@pytest.mark.parametrize("forward", [sets_memory, swaps_tensors])
def test_memory_that_changes_hands_is_refused(forward: Callable[..., Any], device: str) -> None:
    with pytest.raises(TorchIRError):
        IRExecutor(extract_ir(model(forward, device), (X.to(device),), strict=False), model(forward).state_dict())


def resizes(self: Any, x: Tensor) -> Tensor:
    self.b.resize_(2, 2).fill_(3)
    return x * self.b.sum()


@roads
def test_a_buffer_that_would_get_another_size_is_refused_and_kept(capture: str) -> None:
    given = model(resizes)
    before = given.b.clone()
    with pytest.raises(TorchIRError):
        extract_ir(given, (X,), strict=False, capture=capture)
    assert torch.equal(given.b, before)


def writes_through(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Callable[..., Any]:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = x.clone()
        y.as_strided(sizes, strides).mul_(3)
        return y

    return forward


@roads
def test_a_write_to_elements_that_share_memory_is_refused(capture: str) -> None:
    for sizes, strides in (((2, 2), (1, 1)), ((3, 2), (2, 4)), ((4,), (0,))):
        with pytest.raises(TorchIRError):
            extract_ir(model(writes_through(sizes, strides)), (X,), strict=False, capture=capture)
    for sizes, strides in (((2, 2), (2, 1)), ((2, 1), (1, 1)), ((2, 3), (3, 1)), ((3, 2), (2, 3))):
        given = model(writes_through(sizes, strides))
        ir = extract_ir(given, (X,), strict=False, capture=capture)
        assert torch.equal(IRExecutor(ir, given.state_dict())(X), given(X))


def asks_for_the_class(self: Any, x: Tensor) -> Tensor:
    return x * 2 if type(self.w) is nn.Parameter else x + 3  # asks_for_the_class


@roads
def test_a_question_for_the_class_of_a_tensor_is_named(capture: str) -> None:
    given = model(asks_for_the_class)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        extract_ir(given, (X,), strict=False, capture=capture)
    told = [str(warning.message) for warning in caught if warning.category is CaptureWarning]
    assert f"reads the class of a tensor at {line_of(__file__, 'asks_for_the_class')}" in told[0]


def reads_a_view(self: Any, x: Tensor) -> Tensor:
    self.b += 1
    made: Tensor = x[:, :2] + self.tail[0]
    return made


@pytest.mark.parametrize("capture", ["auto", "export"])
def test_a_view_that_an_attribute_holds(capture: str) -> None:
    """Only real memory shows the effect of a write to a buffer: recorded, or refused."""
    given = model(reads_a_view)
    given.tail = (given.b[2:],)
    before = given.b.clone()
    if capture == "export":
        with pytest.raises(ConversionError, match=r"writes to 'b', which shares its memory with 'tail\[0\]'"):
            extract_ir(given, (X,), strict=False, capture=capture)
    else:
        with pytest.warns(CaptureWarning, match="captured by recording"):
            ir = extract_ir(given, (X,), strict=False)
        executor = IRExecutor(ir, given.state_dict())
        assert torch.equal(executor(X), X[:, :2] + 2)
        assert torch.equal(executor(X), X[:, :2] + 3)
    assert torch.equal(given.b, before)
