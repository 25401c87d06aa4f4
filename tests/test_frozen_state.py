"""Python state that a graph freezes is named, with its line, by every capture method; memoised tables are not."""

import contextvars
import itertools
import os
import random
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import random as uniform
from typing import Any, ClassVar, NamedTuple

import numpy
import pytest
import torch
from torch import Tensor, nn

from tests.proof import line_of, module
from torch_ir import CaptureWarning, IRExecutor, extract_ir
from torch_ir.capture.export.dynamic import Call
from torch_ir.capture.state import frozen_state
from torch_ir.capture.state.side_effects import Observed

X = torch.arange(12.0).reshape(3, 4)
roads = pytest.mark.parametrize("capture", ["auto", "export", "record"])
both = pytest.mark.parametrize(
    ("is_inside", "capture"), [(False, "auto"), (False, "export"), (False, "record"), (True, "auto")]
)
TOLD = "forward changes state that the graph does not keep: "
SEEN: list[int] = []


def counting(self: Any, x: Tensor) -> Tensor:
    self.held += 1  # counting
    return x * self.held


def once(self: Any, x: Tensor) -> Tensor:
    if self.held:
        return x + 1
    self.held = True  # once
    return x * 2


def late(self: Any, x: Tensor) -> Tensor:
    self.held += 1  # late
    return x * 2 if self.held < 3 else x + 1


def previous(self: Any, x: Tensor) -> Tensor:
    before = x if self.held is None else self.held
    self.held = x  # previous
    return x + before


def collecting(self: Any, x: Tensor) -> Tensor:
    self.held.append(x.sum())  # collecting
    return x + sum(self.held)


def globally(self: Any, x: Tensor) -> Tensor:
    SEEN.append(1)  # globally
    return x * len(SEEN)


def swapping(self: Any, x: Tensor) -> Tensor:
    self.held[0], self.held[1] = self.held[1], self.held[0]  # swapping
    made: Tensor = self.held[0](x)
    return made


def settings(self: Any, x: Tensor) -> Tensor:
    self.held["inner"]["scale"] *= 2  # settings
    return x * self.held["inner"]["scale"]


FROZEN: dict[Callable[..., Any], tuple[Callable[[], Any], str]] = {
    counting: (lambda: 0, "held"),
    once: (lambda: False, "held"),
    late: (lambda: 0, "held"),
    previous: (lambda: None, "held"),
    collecting: (list, "held"),
    globally: (lambda: None, "SEEN"),
    swapping: (lambda: nn.ModuleList([nn.Tanh(), nn.ReLU()]), "held.0"),
    settings: (lambda: {"inner": {"scale": 1.0}}, "held.inner.scale"),
}


def model(forward: Callable[..., Any], held: Any, is_inside: bool) -> nn.Module:
    inner = module(forward, held=held)
    return module(lambda self, x: self.inner(x) * 2, inner=inner) if is_inside else inner


def told(given: nn.Module, capture: str, **options: Any) -> list[str]:
    """Return the warnings of a capture about state."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        extract_ir(given, (X,), strict=False, capture=capture, **options)
    return [str(warning.message) for warning in caught if TOLD in str(warning.message)]


@both
@pytest.mark.parametrize("forward", FROZEN, ids=lambda forward: forward.__name__)
def test_frozen_state_is_named_with_its_line(forward: Callable[..., Any], is_inside: bool, capture: str) -> None:
    made, name = FROZEN[forward]
    path = "inner." if is_inside and name.startswith("held") else ""
    (sentence,) = told(model(forward, made(), is_inside), capture)
    assert f"{TOLD}'{path}{name}' at {line_of(__file__, forward.__name__)}" in sentence


def drawing(self: Any, x: Tensor) -> Tensor:
    return x * self.held.random()  # drawing


def array(self: Any, x: Tensor) -> Tensor:
    self.held += 1  # array
    return x * float(self.held[0])


def fresh(self: Any, x: Tensor) -> Tensor:
    globals()["FRESH"] = globals().get("FRESH", 0) + 1  # fresh
    return x * globals()["FRESH"]


def attribute(self: Any, x: Tensor) -> Tensor:
    attribute.calls = getattr(attribute, "calls", 0) + 1  # type: ignore[attr-defined]  # attribute
    return x * attribute.calls  # type: ignore[attr-defined]


def byte(self: Any, x: Tensor) -> Tensor:
    self.held[0] += 1  # byte
    return x * self.held[0]


def growing_subclass(self: Any, x: Tensor) -> Tensor:
    self.held.append(1)  # growing_subclass
    return x * len(self.held)


def slot(self: Any, x: Tensor) -> Tensor:
    self.held.calls += 1  # slot
    return x * self.held.calls


def named_tuple(self: Any, x: Tensor) -> Tensor:
    self.held.seen.append(1)  # named_tuple
    return x * len(self.held.seen)


def in_class(self: Any, x: Tensor) -> Tensor:
    Record.total += 1  # in_class
    return x * Record.total


def in_environment(self: Any, x: Tensor) -> Tensor:
    os.environ["TORCH_IR_TEST"] = os.environ.get("TORCH_IR_TEST", "") + "1"  # in_environment
    return x * len(os.environ["TORCH_IR_TEST"])


class Items(list[int]):
    """A list of the user's."""


class Pair(NamedTuple):
    seen: list[int]


@dataclass(slots=True)
class Record:
    calls: int = 0
    total: ClassVar[int] = 0


OBJECTS: dict[Callable[..., Any], tuple[Callable[[], Any], str]] = {
    byte: (lambda: bytearray(1), "held"),
    growing_subclass: (Items, "held"),
    slot: (Record, "held.calls"),
    named_tuple: (lambda: Pair([]), "held[0]"),
    in_class: (lambda: None, "Record.total"),
    in_environment: (lambda: None, "os.environ.TORCH_IR_TEST"),
}


@pytest.mark.parametrize("capture", ["auto", "export"])
@pytest.mark.parametrize("forward", OBJECTS, ids=lambda forward: forward.__name__)
def test_state_of_objects_is_named_with_its_line(forward: Callable[..., Any], capture: str) -> None:
    made, name = OBJECTS[forward]
    (sentence,) = told(model(forward, made(), False), capture)
    assert f"{TOLD}'{name}' at {line_of(__file__, forward.__name__)}" in sentence
    assert "TORCH_IR_TEST" not in os.environ
    assert Record.total == 0


FROZEN |= {
    drawing: (lambda: random.Random(0), "held"),
    array: (lambda: numpy.zeros(1), "held"),
    fresh: (lambda: None, "FRESH"),
    attribute: (lambda: None, "attribute.calls"),
}


def advancing(self: Any, x: Tensor) -> Tensor:
    return x * next(self.held)


def clock(self: Any, x: Tensor) -> Tensor:
    return x * time.perf_counter_ns()


def in_thread(self: Any, x: Tensor) -> Tensor:
    LOCAL.calls = getattr(LOCAL, "calls", 0) + 1
    return x * LOCAL.calls


def in_context(self: Any, x: Tensor) -> Tensor:
    CONTEXT.set(CONTEXT.get() + 1)
    return x * CONTEXT.get()


LOCAL = threading.local()
CONTEXT = contextvars.ContextVar("CONTEXT", default=0)
# state that cannot be copied, and what it is called
OPAQUE: list[tuple[Callable[..., Any], Callable[[], Any], str]] = [
    (advancing, lambda: itertools.cycle([1.0, 2.0]), "held"),
    (advancing, lambda: iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]), "held"),
    (advancing, lambda: (float(number) for number in range(20)), "held"),
    (clock, lambda: None, "time"),
    (in_thread, lambda: None, "LOCAL"),
    (in_context, lambda: None, "CONTEXT"),
]


@pytest.mark.parametrize("capture", ["auto", "export"])
@pytest.mark.parametrize(("forward", "made", "name"), OPAQUE)
def test_state_that_cannot_be_copied_is_named(
    forward: Callable[..., Any], made: Callable[[], Any], name: str, capture: str
) -> None:
    """Two runs that compute something else are enough."""
    (sentence,) = told(model(forward, made(), False), capture)
    assert f"{TOLD}'{name}';" in sentence


def unread_iterator(self: Any, x: Tensor) -> Tensor:
    next(self.held)
    return x * 2


def test_an_iterator_that_decides_nothing_is_not_named() -> None:
    assert told(model(unread_iterator, itertools.cycle([1.0, 2.0]), False), "auto") == []


def growing(self: Any, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = layer(x)
    self.layers.append(nn.Tanh())  # growing
    return x


@roads
def test_a_model_with_a_shared_module_hides_nothing(capture: str) -> None:
    """torch.export runs such a model on copies of its modules, which lose what is appended to them."""
    norm = nn.BatchNorm1d(4)
    growth = module(growing, layers=nn.ModuleList([nn.Tanh()]))
    (sentence,) = told(nn.Sequential(norm, norm, growth).eval(), capture)
    assert f"{TOLD}'2.layers.1' at {line_of(__file__, 'growing')}" in sentence


def test_what_a_capture_changed_is_put_back() -> None:
    """Also in containers in containers, in objects and in globals."""
    SEEN.clear()
    held: dict[str, Any] = {"inner": {"scale": 1.0}}
    assert told(model(settings, held, True), "auto")
    assert told(model(globally, None, False), "export")
    assert (held, SEEN) == ({"inner": {"scale": 1.0}}, [])
    drawn, numbers = random.Random(0), numpy.zeros(1)
    assert told(model(drawing, drawn, False), "auto")
    assert told(model(array, numbers, False), "auto")
    assert told(model(fresh, None, False), "auto")
    assert (drawn.getstate(), numbers.tolist()) == (random.Random(0).getstate(), [0.0])
    assert "FRESH" not in globals()


def test_the_warning_comes_out_of_a_child() -> None:
    assert told(model(counting, 0, False), "auto", isolated=True)


def table(self: Any, x: Tensor) -> Tensor:
    if self.held is None:
        self.held = torch.arange(4.0).cos()
    return x * self.held


def table_of_a_weight(self: Any, x: Tensor) -> Tensor:
    if self.held is None:
        self.held = self.w * 2
    return x * self.held


def size(self: Any, x: Tensor) -> Tensor:
    self.held = x.shape[0]
    return x / self.held


def unread(self: Any, x: Tensor) -> Tensor:
    self.held = x * 2
    return self.held + 1


def masks(self: Any, x: Tensor) -> Tensor:
    self.tables.setdefault(x.shape[0], torch.ones(3, 4).tril())
    made: Tensor = x * self.tables[x.shape[0]]
    return made


def kept_buffer(self: Any, x: Tensor) -> Tensor:
    self.b = self.b * 0.5 + x[0]
    return x + self.b


@both
@pytest.mark.parametrize("forward", [table, table_of_a_weight, size, unread, masks, kept_buffer])
def test_memos_and_buffers_are_not_named(forward: Callable[..., Any], is_inside: bool, capture: str) -> None:
    """Every call computes the same, or the graph keeps the state, so it equals eager in every call."""

    def made() -> nn.Module:
        inner = module(forward, held=None, tables={}, w=nn.Parameter(torch.ones(4)), buffers={"b": torch.ones(4)})
        return module(lambda self, x: self.inner(x) * 2, inner=inner) if is_inside else inner

    assert told(made(), capture) == []
    eager = made()
    executor = IRExecutor(extract_ir(made(), (X,), strict=False, capture=capture), made().state_dict())
    with torch.no_grad():
        for given in (X, X + 1):
            torch.testing.assert_close(executor(given), eager(given))


def test_a_warning_is_a_capture_warning() -> None:
    with pytest.warns(CaptureWarning, match=TOLD):
        extract_ir(model(counting, 0, False), (X,), strict=False)


class CountsInFile(nn.Module):
    """Reads and writes a file, if it is told to: code that only names `open` has no such state."""

    def __init__(self, path: str, is_counting: bool) -> None:
        super().__init__()
        self.path, self.is_counting = path, is_counting

    def forward(self, x: Tensor) -> Tensor:
        return x * self.count() if self.is_counting else x * 2

    def count(self) -> int:
        with open(self.path) as file:
            number = int(file.read()) + 1
        with open(self.path, "w") as file:
            file.write(str(number))
        return number


@roads
@pytest.mark.parametrize("is_counting", [True, False])
def test_a_file_is_state_where_it_is_opened(
    tmp_path: Path, capture: str, is_counting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "count").write_text("0")
    runs = []
    monkeypatch.setattr(frozen_state, "_frozen", lambda *args, ask=frozen_state._frozen: runs.append(1) or ask(*args))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CaptureWarning)
        extract_ir(CountsInFile(str(tmp_path / "count"), is_counting), (X,), strict=False, capture=capture)
    told = [str(warning.message) for warning in caught if TOLD in str(warning.message)]
    assert len(told) == len(runs) == is_counting
    assert all("'open'" in text for text in told)


class SetsOption(nn.Module):
    """Assigns an attribute of another object than itself, to the value that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.options = Options()

    def forward(self, x: Tensor) -> Tensor:
        self.options.is_causal = False
        return x * 2


class Options:
    def __init__(self) -> None:
        self.is_causal = False


def test_a_value_that_stays_is_no_reason_to_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_state, "_frozen", lambda *_: pytest.fail("ran again"))
    extract_ir(SetsOption().eval(), (X,), strict=False, capture="export")


class Skips(nn.Module):
    """Skips a layer at random, in training or always."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        return x if (self.training or self.always) and uniform() < 2 else x * 2


def test_a_draw_that_forward_leaves_out_is_no_reason_to_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of `random` change its generator, so only a model that calls one has state."""
    frozen: list[Observed] = []

    def note(_: nn.Module, __: Call, observed: Observed) -> dict[str, str]:
        frozen.append(observed)
        return {}

    monkeypatch.setattr(frozen_state, "_frozen", note)
    extract_ir(Skips(False).eval(), (X,), strict=False)
    assert frozen == []
    extract_ir(Skips(True).eval(), (X,), strict=False)
    assert [observed.is_blind for observed in frozen] == [True]
