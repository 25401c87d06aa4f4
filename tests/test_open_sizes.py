"""Fast capture with sizes that vary: the graph, its ranges and its constraints are those of torch.export."""

import logging
import random
import warnings
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim
from torch.fx.experimental import symbolic_shapes

import catalogue
from tests import specialised
from torch_ir import IRExecutor, TorchIRError, extract_ir
from torch_ir.capture.fast import size_environment, varying_sizes
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.fast.shape_tensors import NotCoveredError
from torch_ir.ir import IR
from torch_ir.ops import tested_versions

BATCH, SEQ, PAST = Dim("batch"), Dim("seq", min=2, max=64), Dim("past", min=1, max=100)
NAMED = {"x": {0: BATCH, 1: SEQ}}
AUTO: dict[str, Any] = {"x": {0: Dim.AUTO, 1: Dim.AUTO}}
DYNAMIC: dict[str, Any] = {"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}}


class Calls(nn.Module):
    """A function of x as a module."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(self.norm(self.conv(x)).relu_(), 2)
        return self.linear(F.adaptive_avg_pool2d(y, 1).flatten(1))


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum((0, 1))
        y = x.clone()
        y[:, 0] = 1
        y[:, 2:].mul_(x.shape[1])
        return y + self.total


class Cache(nn.Module):
    def forward(self, x: torch.Tensor, cache: dict[str, torch.Tensor]) -> Any:
        k, v = (torch.cat([cache[name], x], 1) for name in ("k", "v"))
        return F.scaled_dot_product_attention(x, k, v), {"k": k, "v": v}


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cat([x, x]) + y, x.shape[0]


class Apart(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + 1, y + 1


def asserted(x: torch.Tensor) -> torch.Tensor:
    assert x.shape[1] >= 2
    return x + 1


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "view": lambda x: x.view(x.shape[0] * x.shape[1], -1) * 2,
    "a half": lambda x: x[:, : x.shape[1] // 2],
    "all but one": lambda x: x[:, :-1].reshape(-1),
    "the last by its number": lambda x: x[:, x.shape[1] - 1],
    "positions": lambda x: x + torch.arange(x.shape[1])[None, :, None],
    "causal mask": lambda x: x.transpose(1, 2) @ torch.ones(x.shape[1], x.shape[1]).tril(),
    "literal": lambda x: x * torch.tensor([x.shape[1]]),
    "a root": lambda x: x / x.shape[1] ** 0.5,
    "a branch": lambda x: x + 1 if x.shape[1] > 4 else x - 1,
    "odd": lambda x: x + 1 if x.shape[1] % 2 == 1 else x,
    "equal sizes": lambda x: x if x.shape[0] == x.shape[1] else x * 2,
    "min and max": lambda x: x[:, : min(x.shape[1], 5)] * max(x.shape[0], 2),
    "a loop": lambda x: sum(x[:, i] for i in range(x.shape[1])),
    "a float": lambda x: x * float(x.shape[1]),
    "expand": lambda x: x[:, :1].expand(-1, x.shape[1], -1) + x,
    "pad": lambda x: F.pad(x, (0, 0, 1, x.shape[1])),
    "interpolate": lambda x: F.interpolate(x.transpose(1, 2), scale_factor=2.0),
    "pool": lambda x: F.avg_pool1d(x.transpose(1, 2), 2),
    "einsum": lambda x: torch.einsum("bsd,btd->bst", x, x),
    "returned sizes": lambda x: (x, x.shape[0], x.shape[1] * 2),
    "numel": lambda x: x.reshape(x.numel() // 8, 8),
    "contiguous": lambda x: x.transpose(0, 1).contiguous().view(x.shape[1], -1),
    "a question about layout": lambda x: x.transpose(0, 1) if x.is_contiguous() else x,
    "every second": lambda x: x[:, ::2],
    "new tensors": lambda x: x.new_zeros(x.shape[0], x.shape[1] + 1, 8),
    "check": lambda x: (torch._check(x.shape[1] > 3), x + 1)[1],
    "assert": asserted,
    "in place": lambda x: x.clone().add_(1).mul_(x.shape[0]),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "the other way round": lambda x: x.reshape(list(x.shape)[::-1]),
    "data": lambda x: x[:, : int(x.sum().item())],
    "nonzero": lambda x: x.nonzero(),
}


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def on_meta(kind: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return kind().eval()


def captured(model: nn.Module, call: tuple[Any, ...], varying: Any, **options: Any) -> str:
    """Return the file of a graph, or the words of the refusal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ir = extract_ir(model, call, dynamic_shapes=varying, **options)
            ir.extensions.clear()  # the way by which it was captured
            return ir.to_json()
        except TorchIRError as error:
            return str(error)


def same_both_ways(model: nn.Module, call: tuple[Any, ...], varying: Any) -> str:
    """Capture both ways, and once more with all answers known; return the file."""
    exact = captured(model, call, varying, capture="export")
    assert captured(model, call, varying) == exact
    assert captured(model, call, varying) == exact
    return exact


def test_guards_have_no_source_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch would import its compiler to find them, in the first capture of a process."""
    monkeypatch.setattr(symbolic_shapes, "uninteresting_files", lambda: pytest.fail("a source line was looked up"))
    ir = record_fast(on_meta(ConvNet), (empty(5, 3, 17, 19),), {}, dynamic_shapes={"x": {0: BATCH, 2: Dim.AUTO}})
    assert len(ir.symbols) == 2
    assert ir.constraints


VARYING = {"named": NAMED, "auto": AUTO, "dynamic": DYNAMIC}
# Each function in one of the ways, and in the others where every sweep is in full.
IN_TURN = [
    pytest.param(name, way, marks=() if (place + number) % len(VARYING) == 0 else pytest.mark.slow)
    for place, name in enumerate(FUNCTIONS)
    for number, way in enumerate(VARYING)
]


@pytest.mark.parametrize(("name", "way"), IN_TURN)
def test_graphs_and_refusals_are_those_of_torch_export(name: str, way: str) -> None:
    """Bytes or words: a size that the model fixes, narrows or cannot vary is told alike."""
    same_both_ways(Calls(FUNCTIONS[name]).eval(), (empty(3, 7, 8),), VARYING[way])


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("data", "nonzero")])
def test_a_recording_covers_all_but_data(name: str) -> None:
    """Nothing of this falls back to torch.export."""
    record_fast(Calls(FUNCTIONS[name]).eval(), (empty(3, 7, 8),), {}, dynamic_shapes=AUTO)


def cases() -> list[tuple[str, nn.Module, tuple[Any, ...], Any]]:
    cache = {"k": empty(3, 5, 8), "v": empty(3, 5, 8)}
    both = {"k": {0: BATCH, 1: PAST}, "v": {0: BATCH, 1: PAST}}
    auto = {"k": {0: Dim.AUTO, 1: Dim.AUTO}, "v": {0: Dim.AUTO, 1: Dim.AUTO}}
    image = on_meta(ConvNet)
    return [
        ("batch of images", image, (empty(3, 3, 32, 32),), {"x": {0: BATCH}}),
        ("images of any size", image, (empty(3, 3, 32, 48),), {"x": {0: BATCH, 2: Dim.AUTO, 3: Dim.AUTO}}),
        ("writes", on_meta(Writes), (empty(3, 7, 8),), AUTO),
        ("a cache", Cache().eval(), (empty(3, 7, 8), cache), {"x": {0: BATCH, 1: SEQ}, "cache": both}),
        ("a cache in tuples", Cache().eval(), (empty(3, 7, 8), cache), ({0: BATCH, 1: SEQ}, both)),
        ("a cache of any size", Cache().eval(), (empty(3, 7, 8), cache), {**AUTO, "cache": auto}),
        ("twice the batch", Pair().eval(), (empty(3, 4), empty(6, 4)), {"x": {0: BATCH}, "y": {0: 2 * BATCH}}),
        ("found to be equal", Pair().eval(), (empty(3, 4), empty(6, 4)), {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}}),
        ("promised to be equal", Apart().eval(), (empty(3, 4), empty(3, 4)), {"x": {0: BATCH}, "y": {0: BATCH}}),
        ("some fixed", Apart().eval(), (empty(3, 4), empty(3, 4)), {"x": {0: BATCH, 1: Dim.STATIC}, "y": None}),
        ("a batch of one", Apart().eval(), (empty(1, 4), empty(3, 4)), {"x": {0: BATCH}, "y": None}),
        ("unequal examples", Apart().eval(), (empty(3, 4), empty(2, 4)), {"x": {0: BATCH}, "y": {0: BATCH}}),
        ("strides", Calls(lambda x: x + 1), (empty(7, 3, 8).transpose(0, 1),), AUTO),
    ]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case[0])
def test_inputs_of_every_kind(case: tuple[str, nn.Module, tuple[Any, ...], Any]) -> None:
    _, model, call, varying = case
    same_both_ways(model.eval(), call, varying)


@pytest.mark.parametrize("name", ["a half", "a branch", "odd", "equal sizes", "pool", "min and max", "causal mask"])
def test_every_size_is_run_or_refused_as_by_the_exported_graph(name: str) -> None:
    """Sizes 0, 1, 2, equal ones, those at the bounds and beyond: the same values, or the same words."""
    call = (empty(3, 7, 8),)
    model = Calls(FUNCTIONS[name]).eval()
    varying: Any = {"x": {0: Dim.AUTO(min=1, max=16), 1: Dim.AUTO(min=1, max=16)}}
    fast, exact = (extract_ir(model, call, dynamic_shapes=varying, capture=how) for how in ("auto", "export"))
    for batch in (0, 1, 2, 3, 16, 17):
        for length in (0, 1, 2, 3, 4, 5, 7, 16, 17):
            x = torch.arange(batch * length * 8.0).view(batch, length, 8)
            assert _outcome(fast, x) == _outcome(exact, x)


def _outcome(ir: IR, x: torch.Tensor) -> Any:
    try:
        return IRExecutor(ir, {})(x).tolist()
    except (TorchIRError, RuntimeError) as error:
        return str(error)


def test_the_reason_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested_versions, "OPEN_SIZES_TORCH", tested_versions.TESTED_TORCH)
    with caplog.at_level(logging.INFO, "torch_ir.capture"):
        captured(Calls(FUNCTIONS["nonzero"]).eval(), (empty(3, 7, 8),), AUTO)
    assert "is not recorded fast: a size that depends on the data" in caplog.text


class Counted:
    """How often torch's environment of sizes was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        original = size_environment.Environment

        def make(*args: Any) -> Any:
            self.made += 1
            return original(*args)

        monkeypatch.setattr(varying_sizes, "Environment", make)


def test_a_second_capture_asks_torch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, call = on_meta(ConvNet), (empty(3, 3, 32, 40),)
    varying = {"x": {0: Dim("images")}}
    first = record_fast(model, call, {}, dynamic_shapes=varying)
    counted = Counted(monkeypatch)
    assert record_fast(on_meta(ConvNet), call, {}, dynamic_shapes=varying).to_json() == first.to_json()
    assert counted.made == 0


def test_layers_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the layers ask torch no more."""

    def tower(depth: int) -> nn.Module:
        return on_meta(lambda: nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(depth)]))

    def asked(depth: int) -> int:
        varying_sizes._spaces.clear()
        record_fast(tower(depth), (empty(3, 7, 8),), {}, dynamic_shapes=({0: BATCH, 1: SEQ},))
        (space,) = varying_sizes._spaces.values()
        return space.asked

    assert asked(8) == asked(4)


def test_models_with_the_same_inputs_go_different_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one model taught torch is not known to the other; its first steps are remembered, the rest is asked."""
    call = (empty(3, 7, 8),)
    first = Calls(lambda x: x * 2 if x.shape[1] > 4 else x).eval()
    second = Calls(lambda x: (x * 2 if x.shape[1] > 4 else x) + (1 if x.shape[1] < 9 else 2)).eval()
    third = Calls(lambda x: x * 2 if x.shape[1] < 9 else x).eval()
    for model in (first, second, third, second, first):
        assert captured(model, call, AUTO) == captured(model, call, AUTO, capture="export")


def test_few_kinds_of_inputs_are_remembered() -> None:
    model = Calls(lambda x: x + 1).eval()
    for width in range(2, 24):
        record_fast(model, (empty(3, width),), {}, dynamic_shapes={"x": {0: BATCH}})
    assert len(varying_sizes._spaces) <= 16
    assert all(space._environment is None for space in varying_sizes._spaces.values())


def test_a_size_that_was_kept_is_refused() -> None:
    """A size of an earlier capture means nothing in the next one, nor outside."""
    kept: SimpleQueue[Any] = SimpleQueue()  # which no capture can put back as it was

    def keep(x: torch.Tensor) -> torch.Tensor:
        size = x.shape[0] if kept.empty() else kept.get()
        kept.put(size)
        return x.reshape(size, -1)

    model = Calls(keep).eval()
    record_fast(model, (empty(3, 4),), {}, dynamic_shapes={"x": {0: BATCH}})
    with pytest.raises(NotCoveredError, match="kept from an earlier capture"):
        record_fast(model, (empty(3, 4),), {}, dynamic_shapes={"x": {0: BATCH}})
    with pytest.raises(NotCoveredError, match="kept from an earlier capture"):
        bool(kept.get() == 3)


@pytest.mark.parametrize("name", ["view", "positions", "causal mask", "a root", "in place", "pad", "numel"])
def test_a_specialised_graph_is_a_fixed_capture(name: str) -> None:
    """`ir.specialize` gives the bytes of a capture at that size."""
    model = Calls(FUNCTIONS[name]).eval()
    ir = extract_ir(model, (empty(3, 7, 8),), dynamic_shapes=NAMED)
    fixed = extract_ir(model, (empty(5, 9, 8),))
    assert ir.specialize(batch=5, seq=9).to_json() == fixed.to_json()


def _unnamed(cases: Iterable[specialised.Case]) -> dict[str, str]:
    """The models whose specialised graph differs from a fixed capture in a way that has no name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # values lost on meta are expected here
        outcomes = {case.name: specialised.compare(case) for case in cases}
    return {name: outcome for name, outcome in outcomes.items() if not set(outcome.split(", ")) <= specialised.NAMED}


def test_a_sample_of_the_catalogue_specialises_to_fixed_captures() -> None:
    """Eight models; where the bytes differ, the difference has a name."""
    names = random.Random(0).sample([entry.name for entry in catalogue.entries()], 8)
    assert _unnamed(specialised.of_catalogue(names)) == {}


@pytest.mark.slow
def test_the_catalogue_and_sixty_architectures_specialise_to_fixed_captures() -> None:
    assert _unnamed(specialised.of_catalogue()) == {}
    assert _unnamed(specialised.of_architectures()) == {}


def test_what_another_model_asked_does_not_change_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that cannot be reached again are dropped, and asked for once more."""
    call = (empty(3, 7, 8),)
    model = Calls(FUNCTIONS["a branch"]).eval()
    expected = captured(model, call, AUTO, capture="export")
    record_fast(model, call, {}, dynamic_shapes=AUTO)
    (*_, space) = varying_sizes._spaces.values()
    space.close()
    monkeypatch.setattr(space, "_is_reached", lambda step: False)
    other = Calls(lambda x: FUNCTIONS["a branch"](x)[:, ::3]).eval()  # which goes on where the first one ended
    record_fast(other, call, {}, dynamic_shapes=AUTO)  # without falling back
    assert space not in varying_sizes._spaces.values()
    assert captured(other, call, AUTO) == captured(other, call, AUTO, capture="export")
    assert captured(model, call, AUTO) == expected
