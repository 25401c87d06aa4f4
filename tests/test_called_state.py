"""State that changes in a function which forward reaches only through a parent, a hook, an object or a table."""

import gc
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_ir import CaptureWarning, extract_ir

CALLS = 0


def count(x: Tensor) -> Tensor:
    global CALLS
    CALLS += 1
    return x * CALLS


def through_another(x: Tensor) -> Tensor:
    return count(x)


TABLE = {"count": through_another}


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Parent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return count(x)


class CallsParent(Parent):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class CallsNamed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = getattr(self, "step")(x)  # noqa: B009  # what is tested
        return result

    def step(self, x: Tensor) -> Tensor:
        return count(x)


class CountingObject:
    def __call__(self, x: Tensor) -> Tensor:
        return through_another(x)


class HoldsObject(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        held = self.held[0] if isinstance(self.held, list) else self.held
        result: Tensor = held(x)
        return result


class ReadsTable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return TABLE["count"](x)


def with_hook() -> nn.Module:
    model = Plain()
    model.register_forward_hook(lambda module, args, result: through_another(result))
    return model


def with_own_forward() -> nn.Module:
    model = Plain()
    model.forward = types.MethodType(lambda self, x: through_another(x), model)  # type: ignore[method-assign]
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "a parent": CallsParent,
    "a name": CallsNamed,
    "an object": lambda: HoldsObject(CountingObject()),
    "a function": lambda: HoldsObject(through_another),
    "a list": lambda: HoldsObject([through_another]),
    "a table": ReadsTable,
    "a hook": with_hook,
    "its own forward": with_own_forward,
}


@pytest.mark.parametrize("capture", ["auto", "export", "record"])
@pytest.mark.parametrize("reached", MODELS)
def test_state_is_named_and_restored(reached: str, capture: str) -> None:
    """A counter that only a reached function changes is reported, and has its old value after the capture."""
    global CALLS
    CALLS = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CaptureWarning)
        extract_ir(MODELS[reached]().eval(), (torch.empty(3, device="meta"),), capture=capture)
    assert any("'CALLS' at" in str(warning.message) for warning in caught)
    assert CALLS == 0


def test_a_class_is_not_kept_after_its_capture() -> None:
    """Nor what the closure of its forward holds, nor the class of an object with slots."""

    def make() -> tuple[nn.Module, Any, Any, Any]:
        held = torch.ones(3)

        class Slotted:
            __slots__ = ("value",)

        class Local(Plain):
            def __init__(self) -> None:
                super().__init__()
                self.slotted = Slotted()
                self.slotted.value = 2

            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + held * self.slotted.value

        return Local().eval(), weakref.ref(Local), weakref.ref(held), weakref.ref(Slotted)

    model, kind, tensor, slotted = make()
    extract_ir(model, (torch.empty(3, device="meta"),))
    del model
    gc.collect()
    assert kind() is None
    assert tensor() is None
    assert slotted() is None
