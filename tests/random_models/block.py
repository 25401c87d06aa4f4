"""A block: a small piece of a model with the tensors that it accepts, built for given shapes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

Body = Callable[..., Any]  # a module, or a function, of tensors
Make = TypeVar("Make", bound=Callable[..., Body])

KINDS: dict[str, tuple[torch.dtype, ...]] = {
    "float": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
    "wide": (torch.float32, torch.float64),
    "complex": (torch.complex64, torch.complex128),
    "int": (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    "long": (torch.int64,),
    "bool": (torch.bool,),
    "byte": (torch.uint8,),
}
KINDS["real"] = (*KINDS["float"], *KINDS["int"])
KINDS["number"] = (*KINDS["real"], *KINDS["complex"])
KINDS["whole"] = (*KINDS["int"], *KINDS["bool"])
KINDS["any"] = (*KINDS["number"], *KINDS["bool"])


class Draw(random.Random):
    """The random choices of one block, determined by the seed."""

    def chance(self, share: float) -> bool:
        return self.random() < share

    def size(self) -> int:
        return self.choice((2, 3, 4, 6, 8))

    def dim(self, x: Tensor) -> int:
        """Any dimension, also counted from the end."""
        return self.randrange(-x.dim(), x.dim())

    def number(self, x: Tensor) -> Any:
        """Draw a Python number that is compatible with a tensor."""
        return self.choice((0.5, -1.5, 2, 1e-3)) if x.is_floating_point() or x.is_complex() else self.choice((2, 3, 1))


@dataclass(frozen=True)
class Takes:
    """Requirements of a block on one of its tensors: kind of dtype, number of dimensions, sizes."""

    kind: str = "any"
    rank: int = 0  # at least
    most: int = 5
    alike: bool = False  # in shape and dtype, to the first tensor of the block
    even: int | None = None  # the dimension of which the size must be even

    def fits(self, x: Tensor, before: Sequence[Tensor]) -> bool:
        if x.dtype not in KINDS[self.kind] or not self.rank <= x.dim() <= self.most:
            return False
        if self.alike and (x.shape, x.dtype) != (before[0].shape, before[0].dtype):
            return False
        return self.even is None or x.shape[self.even] % 2 == 0


@dataclass(frozen=True)
class Block:
    """A named builder of a body for tensors of given shapes; its result is known when it runs."""

    name: str
    family: str
    takes: tuple[Takes, ...]
    make: Callable[..., Body]


BLOCKS: dict[str, Block] = {}


def block(*takes: Takes) -> Callable[[Make], Make]:
    """Register a function that builds a body from a draw and tensors on meta."""

    def keep(make: Make) -> Make:
        add(make.__name__.rstrip("_"), make.__module__, make, *takes)
        return make

    return keep


def function(name: str, module: str, body: Body, *takes: Takes) -> None:
    """Add a block that is one function, always the same."""
    add(name, module, lambda draw, *forms: body, *takes)


def add(name: str, module: str, make: Callable[..., Body], *takes: Takes) -> None:
    assert name not in BLOCKS, f"two blocks are called {name}"
    BLOCKS[name] = Block(name, module.rpartition(".")[2], takes, make)


def floats(rank: int = 0, most: int = 5, even: int | None = None) -> Takes:
    return Takes("float", rank, most, even=even)


ALIKE = Takes(alike=True)
