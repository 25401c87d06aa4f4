"""Equal layers are recorded once and stamped, and different layers never are."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_ir import CaptureWarning, ExportError, extract_ir, verify_ir_with_state_dict

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


def graphs(model: nn.Module, *inputs: Any) -> tuple[str, str, int]:
    """The function form with and without stamping, and how many layers were really run with it."""
    runs: list[nn.Module] = []
    kinds = {type(layer) for layer in getattr(model, "layers", [])}
    originals = {kind: kind.forward for kind in kinds}

    def counted(kind: type[nn.Module]) -> Callable[..., Any]:
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            runs.append(self)
            return originals[kind](self, *args, **kwargs)

        return forward

    inputs = inputs or (torch.randn(3, 4),)
    folded = extract_ir(model.eval(), inputs, strict=False, blocks="function")
    for kind in kinds:
        kind.forward = counted(kind)  # type: ignore[method-assign]
    try:
        stamped = extract_ir(model, inputs, strict=False, blocks="function", stamp=True)
    finally:
        for kind, forward in originals.items():
            kind.forward = forward  # type: ignore[method-assign]
    return folded.to_json(), stamped.to_json(), len(runs)


def test_equal_layers_are_run_three_times() -> None:
    """The first, the second and the last are run; the graph is that of all."""
    folded, stamped, runs = graphs(Stack())
    assert stamped == folded
    assert runs == 3


def test_growth() -> None:
    """However many layers there are, three are run."""
    assert graphs(Stack(depth=40))[2] == 3


def test_put_inline_it_is_the_flat_graph() -> None:
    """blocks="inline" yields the same bytes with and without stamping, and they verify."""
    torch.manual_seed(0)
    model, x = Stack().eval(), torch.randn(3, 4)
    flat = extract_ir(model, (x,), strict=False)
    stamped = extract_ir(model, (x,), strict=False, stamp=True, crosscheck=True)
    assert stamped.to_json() == flat.to_json()
    function = extract_ir(model, (x,), strict=False, stamp=True, blocks="function")
    assert verify_ir_with_state_dict(function, model.state_dict(), model, (x,))[0]


def test_two_kinds_in_turn() -> None:
    """Layers of two configurations are two groups."""

    class Turn(Layer):
        def __init__(self, index: int) -> None:
            super().__init__(index)
            self.kind = "local" if index % 2 else "full"

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2 if self.kind == "local" else 3)

    folded, stamped, runs = graphs(Stack(Turn, 10))
    assert stamped == folded
    assert runs == 6


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

    folded, stamped, runs = graphs(Calls(Several))
    assert stamped == folded
    assert runs == 3


def test_tied_weights() -> None:
    """Layers that share a weight are equal only if they share it in the same way."""
    model = Stack()
    model.layers[4].inner.weight = model.layers[2].inner.weight
    folded, stamped, _ = graphs(model)
    assert stamped == folded


# -- what must be run, every layer of it -----------------------------------------------------------------------------

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
def test_layers_that_are_not_alike_are_run(kind: type[Layer]) -> None:
    """Every difference between layers is detected, and the graph is correct."""
    model = Stack(kind)
    random.seed(0)
    COUNTER[0] = 0
    folded = extract_ir(model.eval(), (torch.randn(3, 4),), strict=False, blocks="function").to_json()
    random.seed(0)
    COUNTER[0] = 0
    stamped = extract_ir(model, (torch.randn(3, 4),), strict=False, blocks="function", stamp=True).to_json()
    assert stamped == folded


def test_a_tensor_of_another_layer() -> None:
    """An outside tensor must be the same for all layers, or each is run."""
    model = Stack(ReadsAnother)
    for index, layer in enumerate(model.layers):
        layer.__dict__["other"] = [model.layers[max(0, index - 1)]]
    folded, stamped, _ = graphs(model)
    assert stamped == folded


def test_a_layer_that_is_called_again() -> None:
    """A stamped layer cannot be run later; the model is recorded layer by layer."""

    class Again(Stack):
        def forward(self, x: Tensor) -> Tensor:
            return self.layers[3](super().forward(x).repeat(1, 2))

    folded, stamped, _ = graphs(Again())
    assert stamped == folded


def test_a_cache_that_layers_share() -> None:
    """An argument that a layer could change prevents stamping."""

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

    folded, stamped, runs = graphs(Caching(Cached))
    assert stamped == folded
    assert runs == DEPTH


def test_training_mode() -> None:
    """Dropout that drops is an operator like any other, and every layer has its own."""

    class Dropping(Layer):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return torch.dropout(super().forward(x), 0.5, self.training)

    model = Stack(Dropping).train()
    with pytest.warns(CaptureWarning, match="training mode"):
        folded = extract_ir(model, (torch.randn(3, 4),), strict=False, blocks="function")
    with pytest.warns(CaptureWarning, match="training mode"):
        stamped = extract_ir(model, (torch.randn(3, 4),), strict=False, blocks="function", stamp=True)
    assert stamped.to_json() == folded.to_json()


def test_routing_that_depends_on_data() -> None:
    """Data-dependent routing is not supported by fast capture: the fallback is used, and verifies."""

    class Routed(Layer):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return torch.cond(x.sum() > 0, lambda y: self.inner(y), lambda y: self.norm(y), (x,))

    torch.manual_seed(0)
    model, x = Stack(Routed).eval(), torch.randn(3, 4)
    ir = extract_ir(model, (x,), strict=False, blocks="function", stamp=True)
    assert verify_ir_with_state_dict(ir, model.state_dict(), model, (x,))[0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"blocks": "functions"}, "did you mean 'function'"),
        ({"stamp": True, "capture": "export"}, "torch.export"),
    ],
)
def test_options_that_do_not_fit(wrong: dict[str, Any], words: str) -> None:
    """A one-line error says what to write."""
    with pytest.raises(ExportError, match=words):
        extract_ir(Stack().eval(), (torch.randn(3, 4),), strict=False, **wrong)
