"""Weights of classes that wrap other tensors, as in quantisation libraries: the inner tensors are the weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_ir import ConversionError, IRExecutor, WeightLoadError, compile, extract_ir, optimize
from torch_ir.ops.tensor_data import plain_tensors
from torch_ir.ops.torch_internals import disabled_torch_function

BITS = 4
KEYS = [
    "first.weight._data",
    "first.weight._scale",
    "first.bias",
    "second.weight._data",
    "second.weight._scale",
    "second.bias",
    "third.weight._data._data",
    "third.weight._scale",
    "third.bias",
]
pytestmark = pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Packed(Tensor):
    """Two numbers of 4 bits in each byte."""

    __torch_function__ = disabled_torch_function

    @staticmethod
    def __new__(cls, data: Tensor, size: Any) -> "Packed":
        return Tensor._make_wrapper_subclass(cls, size, dtype=torch.uint8, device=data.device)  # type: ignore[attr-defined]

    def __init__(self, data: Tensor, size: Any) -> None:
        self._data = data

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["_data"], {"size": list(self.shape)}

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: Any, size: Any, stride: Any) -> "Packed":
        return Packed(inner["_data"], meta["size"])

    def unpacked(self) -> Tensor:
        return torch.cat([self._data & 15, self._data >> BITS])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Packed(func(args[0]._data), args[0].shape)
        return func(*[each.unpacked() if isinstance(each, Packed) else each for each in args], **(kwargs or {}))


class Scaled(Tensor):
    """Whole numbers times a scale; `linear` reads the parts in Python, other operators get the product."""

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor, axis: int) -> "Scaled":
        made: Scaled = Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)  # type: ignore[attr-defined]
        return made

    def __init__(self, data: Tensor, scale: Tensor, axis: int) -> None:
        self._data, self._scale, self._axis = data, scale, axis

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["_data", "_scale"], {"axis": self._axis}

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: Any, size: Any, stride: Any) -> "Scaled":
        return Scaled(inner["_data"], inner["_scale"], meta["axis"])

    def whole(self) -> Tensor:
        data = self._data.unpacked() if isinstance(self._data, Packed) else self._data
        return data * self._scale.unsqueeze(1 - self._axis)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear and isinstance(args[1], Scaled) and args[1]._axis == 0:
            product = functional.linear(args[0], args[1]._data.to(args[0].dtype)) * args[1]._scale
            return product if args[2] is None else product + args[2]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Scaled(func(args[0]._data), func(args[0]._scale), args[0]._axis)
        return func(*[each.whole() if isinstance(each, Scaled) else each for each in args], **(kwargs or {}))


class Net(nn.Module):
    """Three weights: read in Python, by operators, and with a part that is a wrapper itself."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        numbers, device = torch.Generator().manual_seed(seed), torch.get_default_device()

        def scaled(axis: int, *, packed: bool = False) -> nn.Parameter:
            data = torch.randint(-100, 100, (4, 4), generator=numbers, device="cpu").to(device, torch.int8)
            scale = (torch.rand(4, generator=numbers, device="cpu") + 0.5).to(device)
            bits = torch.randint(0, 255, (2, 4), generator=numbers, device="cpu").to(device, torch.uint8)
            return nn.Parameter(Scaled(Packed(bits, (4, 4)) if packed else data, scale, axis), requires_grad=False)

        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.first.weight, self.second.weight, self.third.weight = scaled(0), scaled(1), scaled(0, packed=True)
        for layer in (self.first, self.second, self.third):
            layer.bias = nn.Parameter(torch.rand(4, generator=numbers, device="cpu").to(device))

    def forward(self, x: Tensor) -> Tensor:
        return self.third(functional.relu(self.second(self.first(x)))) + (self.second.weight @ x.t()).sum()


def on_meta() -> Net:
    with torch.device("meta"):
        return Net(0).eval()


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_another_checkpoint_is_bound(place: str) -> None:
    """Every inner tensor is a weight under its own key, none a constant, with and without values at capture."""
    model = Net(0).eval() if place == "cpu" else on_meta()
    ir = extract_ir(model, (X.to(place),), strict=False)
    assert [(param.key, param.param.kind) for param in ir.params if param.param] == [(key, "parameter") for key in KEYS]
    for graph in (ir, optimize(ir, "full")[0]):
        for other in (Net(0).eval(), Net(1).eval()):
            torch.testing.assert_close(IRExecutor(graph, other.state_dict())(X), other(X))


def test_a_checkpoint_with_plain_keys_is_bound() -> None:
    """Libraries also store the inner tensors under keys of their own."""
    ir, other = extract_ir(on_meta(), (X.to("meta"),)), Net(1).eval()
    plain = plain_tensors(other.state_dict())
    assert list(plain) == KEYS
    torch.testing.assert_close(compile(ir, plain, backend="torch")(X), other(X))
    with pytest.raises(WeightLoadError, match=r"first\.weight\._scale"):
        IRExecutor(ir, {key: value for key, value in plain.items() if key != "first.weight._scale"})


@pytest.mark.parametrize("made", [False, True])
def test_a_wrapper_cannot_be_returned(made: bool) -> None:
    """A graph returns plain tensors."""

    class Returns(Net):
        def forward(self, x: Tensor) -> Any:
            return Scaled(x.to(torch.int8), x[0], 1) if made else self.second.weight

    with pytest.raises(ConversionError, match="a Scaled, which wraps other tensors"):
        extract_ir(Returns(0).eval(), (X,), strict=False, capture="record")
