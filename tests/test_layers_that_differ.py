"""Repeated layers as one function: layers that differ in anything are told apart, whatever makes them differ."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_ir import IR, CaptureWarning, ExportError, extract_ir, verify_ir_with_state_dict

DEPTH = 6


class Layer(nn.Module):
    """A layer with an index that it does not read."""

    def __init__(self, index: int, width: int = 4) -> None:
        super().__init__()
        self.index = index
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.inner(self.norm(x)).relu()
        return x if mask is None else x * mask


class Stack(nn.Module):
    def __init__(self, make: Callable[[int], nn.Module] = Layer, depth: int = DEPTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make(index) for index in range(depth))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def forms(model: nn.Module, *inputs: Any) -> tuple[IR, IR]:
    """The function form of a model, and the flat graph of torch.export."""
    inputs = inputs or (torch.randn(3, 4),)
    found = []
    for options in ({"blocks": "function"}, {"capture": "export"}):
        random.seed(0)
        COUNTER[0] = 0
        SEEN.clear()
        found.append(extract_ir(model.eval(), inputs, strict=False, **options))
    return found[0], found[1]


def functions_in(ir: IR) -> int:
    return sum(1 for node in ir.nodes if node.is_call)


def test_equal_layers_are_calls_of_one_function() -> None:
    folded, flat = forms(Stack())
    assert (len(folded.functions), functions_in(folded)) == (1, DEPTH)
    assert folded.at_level("aten").to_json() == flat.to_json()


def test_put_inline_it_is_the_flat_graph() -> None:
    """blocks="inline" has the same bytes as the quick recording of every layer, and they verify."""
    torch.manual_seed(0)
    model, x = Stack().eval(), torch.randn(3, 4)
    flat = extract_ir(model, (x,), strict=False, crosscheck=True)
    function = extract_ir(model, (x,), strict=False, blocks="function")
    assert function.at_level("aten").to_json() == flat.to_json()
    assert verify_ir_with_state_dict(function, model.state_dict(), model, (x,))[0]


def test_two_kinds_in_turn() -> None:
    """Layers of two configurations are two functions."""

    class Turn(Layer):
        def __init__(self, index: int) -> None:
            super().__init__(index)
            self.kind = "local" if index % 2 else "full"

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2 if self.kind == "local" else 3)

    folded, flat = forms(Stack(Turn, 10))
    assert len(folded.functions) == 2
    assert folded.at_level("aten").to_json() == flat.to_json()


def test_layers_that_return_several_and_pass_arguments_on() -> None:
    """Tuples, keywords, None, and an argument that is returned unchanged."""

    class Several(Layer):
        def forward(self, x: Tensor, *, mask: Tensor | None = None, flag: bool = True) -> Any:  # type: ignore[override]
            return super().forward(x, mask), (mask, x.to(torch.float32)), None

    class Calls(Stack):
        def forward(self, x: Tensor) -> Tensor:
            mask = (x > 0).float()
            kept = x
            for layer in self.layers:
                x, (mask, kept), _ = layer(x, mask=mask, flag=False)
            return self.head(x + mask) + kept.sum()

    folded, flat = forms(Calls(Several))
    assert folded.at_level("aten").to_json() == flat.to_json()


def test_tied_weights() -> None:
    """Layers that share a weight are equal only if they share it in the same way."""
    model = Stack()
    model.layers[4].inner.weight = model.layers[2].inner.weight
    folded, flat = forms(model)
    assert folded.at_level("aten").to_json() == flat.to_json()


# -- layers that differ -----------------------------------------------------------------------------------------------

COUNTER = [0]  # state outside all layers, which shows in the second layer
SEEN: list[Any] = []


class ReadsIndex(Layer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * (self.index + 1)


class AsksForIndex(Layer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * (2 if getattr(self, "index", 0) > 3 else 1)


class Alternates(Layer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) if self.index % 2 else super().forward(x).tanh()


class CountsOnItself(Layer):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        self.calls = self.calls + 1
        return super().forward(x)


class CountsInAGlobal(Layer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        COUNTER[0] += 1
        return super().forward(x) * COUNTER[0]


class AppendsToAList(Layer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        SEEN.append(super().forward(x))
        return SEEN[-1] * 1


class ReadsAnother(Layer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) + self.other[0].inner.weight.sum()  # type: ignore[index]


class HasSettings(Layer):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.settings = {"scale": float(index)}

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * self.settings["scale"]


class HasAHook(Layer):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.register_forward_hook(lambda module, args, result: result * (index + 1))


class HasAClosure(Layer):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.scale = lambda x: x * (index + 1)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.scale(super().forward(x))  # type: ignore[no-any-return]


class DrawsInPython(Layer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * random.random()


class WritesToABuffer(Layer):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.register_buffer("seen", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        self.seen += x
        return super().forward(x)


UNLIKE = (
    *(ReadsIndex, AsksForIndex, Alternates, CountsOnItself, CountsInAGlobal, AppendsToAList),
    *(HasSettings, HasAHook, HasAClosure, DrawsInPython, WritesToABuffer),
)


@pytest.mark.filterwarnings("ignore:forward changes state")
@pytest.mark.parametrize("kind", UNLIKE)
def test_layers_that_differ_are_told_apart(kind: type[Layer]) -> None:
    """Whatever tells one layer from another is seen, and the graph is right."""
    folded, flat = forms(Stack(kind))
    assert folded.at_level("aten").to_json() == flat.to_json()


def test_a_tensor_of_another_layer() -> None:
    """A layer that reads a weight of another layer."""
    model = Stack(ReadsAnother)
    for index, layer in enumerate(model.layers):
        layer.__dict__["other"] = [model.layers[max(0, index - 1)]]
    folded, flat = forms(model)
    assert folded.at_level("aten").to_json() == flat.to_json()


def test_a_layer_that_is_called_again() -> None:
    """A layer of the stack that is called once more behind it."""

    class Again(Stack):
        def forward(self, x: Tensor) -> Tensor:
            return self.layers[3](super().forward(x).repeat(1, 2))

    folded, flat = forms(Again())
    assert folded.at_level("aten").to_json() == flat.to_json()


def test_a_cache_that_layers_share() -> None:
    """An argument that every layer changes."""

    class Cached(Layer):
        def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:  # type: ignore[override]
            cache.append(x)
            return super().forward(x) + cache[0]

    class Caching(Stack):
        def forward(self, x: Tensor) -> Any:
            cache: list[Tensor] = []
            for layer in self.layers:
                x = layer(x, cache)
            return self.head(x), *cache

    folded, flat = forms(Caching(Cached))
    assert folded.at_level("aten").to_json() == flat.to_json()


def test_training_mode() -> None:
    """Dropout that drops is an operator like any other, and every layer has its own."""

    class Dropping(Layer):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return torch.dropout(super().forward(x), 0.5, self.training)

    model, graphs = Stack(Dropping).train(), []
    for options in ({"blocks": "function"}, {"capture": "export"}):
        with pytest.warns(CaptureWarning, match="training mode"):
            graphs.append(extract_ir(model, (torch.randn(3, 4),), strict=False, **options))
    assert graphs[0].at_level("aten").to_json() == graphs[1].to_json()


def test_routing_that_depends_on_data() -> None:
    """Experts that are chosen by data: the graph comes from torch.export, and verifies."""

    class Routed(Layer):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return torch.cond(x.sum() > 0, lambda y: self.inner(y), lambda y: self.norm(y), (x,))

    torch.manual_seed(0)
    model, x = Stack(Routed, depth=2).eval(), torch.randn(3, 4)
    ir = extract_ir(model, (x,), strict=False, blocks="function")
    assert verify_ir_with_state_dict(ir, model.state_dict(), model, (x,))[0]


def test_an_unknown_form_of_blocks() -> None:
    with pytest.raises(ExportError, match="did you mean 'function'"):
        extract_ir(Stack().eval(), (torch.randn(3, 4),), strict=False, blocks="functions")
