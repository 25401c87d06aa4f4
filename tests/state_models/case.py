"""A generated case: the pieces of a model, how they are combined, the ambient mode, and the capture method."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tests.state_models.ambient import AMBIENT
from tests.state_models.piece import PIECES, SIZE, group_of, kind_of

ROADS = ("auto", "export", "record")
SHAPES = ("alone", "inside", "listed", "twice")
MODES = ("plain", "grad", "inference", "float64", "autocast", "deterministic")
CALLS = (0, 1, 0, 1)  # the input of each call


class Case(NamedTuple):
    """One model and one capture of it."""

    pieces: tuple[str, ...]
    shape: str = "alone"
    mode: str = "plain"
    road: str = "auto"
    on_meta: bool = False

    @property
    def group(self) -> str:
        return AMBIENT if self.mode != "plain" else group_of(self.pieces[0])

    def model(self) -> nn.Module:
        return (
            Composed([kind_of(name)() for name in self.pieces], self.shape).eval()
            if self._is_composed
            else (kind_of(self.pieces[0])().eval())
        )

    @property
    def _is_composed(self) -> bool:
        return self.shape != "alone" or len(self.pieces) > 1

    def __str__(self) -> str:
        place = "meta" if self.on_meta else "real"
        return f"{' + '.join(self.pieces)} ({self.shape}, {self.mode}, {self.road}, {place})"


class Composed(nn.Module):
    """Pieces one after the other, as attributes or in a list, each called once or twice."""

    def __init__(self, pieces: list[nn.Module], shape: str) -> None:
        super().__init__()
        self.pieces = nn.ModuleList(pieces) if shape == "listed" else nn.Sequential(*pieces)
        self.times = 2 if shape == "twice" else 1

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            for piece in self.pieces:
                x = piece(x)
        return x


def inputs(count: int = 2) -> list[Tensor]:
    draw = torch.Generator().manual_seed(11)
    return [torch.rand(SIZE, SIZE, generator=draw) for _ in range(count)]


def example() -> Tensor:
    """Return the input for the capture; no call uses it."""
    return inputs(3)[2]


@contextmanager
def ambient(mode: str) -> Iterator[None]:
    """The modes around a model, while it runs in eager and while it is captured."""
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad() if mode == "grad" else torch.no_grad())
        if mode == "inference":
            stack.enter_context(torch.inference_mode())
        if mode == "autocast":
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        if mode == "float64":
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float64)
        if mode == "deterministic":
            stack.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
            torch.use_deterministic_algorithms(True)
        yield


def single_cases() -> list[Case]:
    """Every piece with every capture method, real and on meta; alone, nested, in a list, or called twice."""
    names = [name for kinds in PIECES.values() for name in kinds]
    captures = itertools.product(names, ROADS, (False, True))
    shapes = itertools.cycle(("alone", "inside", "listed", "alone", "twice"))
    return [Case((name,), next(shapes), "plain", road, on_meta) for name, road, on_meta in captures]


def ambient_cases() -> list[Case]:
    """Pieces that modes may change, in every mode and capture method, real and on meta."""
    return [
        Case((name,), "alone", mode, road, on_meta)
        for name, mode, road, on_meta in itertools.product(PIECES[AMBIENT], MODES[1:], ROADS, (False, True))
    ]


def random_cases(count: int, seed: int = 0) -> list[Case]:
    """Two or three pieces of any class in one model, called once or twice, in any mode."""
    draw = random.Random(seed)
    names = [name for kinds in PIECES.values() for name in kinds]
    return [
        Case(
            tuple(draw.sample(names, draw.choice((2, 2, 3)))),
            draw.choice(SHAPES[1:]),
            draw.choice(("plain", "plain", *MODES[1:])),
            draw.choice(ROADS),
            draw.random() < 0.5,
        )
        for _ in range(count)
    ]
