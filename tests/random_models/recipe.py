"""A recipe: everything that defines a random model, its inputs and its capture, short enough to store and shrink."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from tests.random_models.block import BLOCKS, Body, Draw
from torch_ir.ops.fast_paths import plain_attention

BATCHES = (3, 5)  # the sizes that a dimension which may vary is tried with
LARGEST = 4096  # elements of any tensor
SPECIAL = (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-42, 1e30, -1.0)
CALLS = ("plain", "plain", "tuple", "dict", "keywords")
RESULTS = ("last", "tuple", "list", "dict", "dataclass", "named tuple", "nested")
_SHAPES = (
    "4", "3, 4", "2, 3, 4", "2, 6, 4", "2, 4, 6, 6", "1, 4", "2, 2, 4, 4, 4", "", "2, 1, 4", "2, 4, 7", "3, 3",
    "1, 1, 1",
    "batch, 4", "batch, 6, 4", "batch, 4, 6, 6", "batch", "0, 4",
)  # fmt: skip
_DTYPES = (
    *["float32"] * 10, *["float64"] * 2, "bfloat16", "float16", *["int64"] * 3, "int32", "int16", "int8", "uint8",
    "bool",
    "complex64", "complex128",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """The seed is that of inputs; a step is a block and the seed of its choices; `batch` in an input may vary."""

    seed: int
    inputs: tuple[str, ...]
    steps: tuple[tuple[str, int], ...]
    call: str = "plain"
    result: str = "tuple"
    on_meta: bool = True
    training: bool = False
    special: bool = False

    @property
    def is_dynamic(self) -> bool:
        return any("batch" in text for text in self.inputs)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Recipe:
        """Return the recipe of a JSON record."""
        steps = tuple((str(name), int(seed)) for name, seed in record["steps"])
        return cls(**{**record, "inputs": tuple(record["inputs"]), "steps": steps})

    def record(self) -> dict[str, Any]:
        """Return the JSON form: only values that differ from the defaults."""
        usual = asdict(Recipe(0, (), ()))
        return {name: value for name, value in asdict(self).items() if name == "seed" or value != usual[name]}


class Placed(NamedTuple):
    """A step that fits: the indices of its tensors, and the builder of its body."""

    name: str
    reads: tuple[int, ...]
    make: Callable[[], Body]


class Draft:
    """A model that is run while it is drawn, at every dynamic size."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.batches = BATCHES if recipe.is_dynamic else BATCHES[:1]
        self.pools: list[list[Tensor]] = [tensors_for(recipe, batch) for batch in self.batches]
        self.placed: list[Placed] = []

    def place(self, name: str, seed: int) -> bool:
        """Add a step, if there are tensors for it and eager accepts them."""
        draw, pool = Draw(f"{name}/{seed}"), self.pools[0]
        reads: list[int] = []
        for takes in BLOCKS[name].takes:
            found = [index for index, x in enumerate(pool) if takes.fits(x, [pool[read] for read in reads])]
            if not found:
                return False
            reads.append(found[int(len(found) * draw.random() ** 0.5)])
        made = Placed(name, tuple(reads), _maker(name, seed, [pool[read] for read in reads], draw.random()))
        try:
            new = [self._ran(made, pool) for pool in self.pools]
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, ArithmeticError, AssertionError):
            return False
        if not new[0] or any(x.numel() > LARGEST for x in new[0]) or not _vary_alike(new):
            return False
        for pool, tensors in zip(self.pools, new, strict=True):
            pool.extend(tensors)
        self.placed.append(made)
        return True

    def _ran(self, made: Placed, pool: list[Tensor]) -> list[Tensor]:
        body = made.make()
        if isinstance(body, torch.nn.Module):
            body.train(self.recipe.training)
        with torch.no_grad(), plain_attention():
            return tensors_in(body(*(pool[read] for read in made.reads)))


def _maker(name: str, seed: int, read: Sequence[Tensor], start: float) -> Callable[[], Body]:
    forms = [x.to("meta") for x in read]

    def make() -> Body:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return BLOCKS[name].make(Draw(f"{name}/{seed}/{start}"), *forms)

    return make


def _vary_alike(new: list[list[Tensor]]) -> bool:
    return len({len(tensors) for tensors in new}) == 1 and all(
        len({(x.dim(), x.dtype) for x in alike}) == 1 for alike in zip(*new, strict=True)
    )


def tensors_in(made: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]


def tensors_for(recipe: Recipe, batch: int, number: int = 0) -> list[Tensor]:
    """Return random values for the inputs of a call, some of them special if the recipe says so."""
    generator = torch.Generator().manual_seed(1000 * recipe.seed + number)
    return [_values(text, batch, generator, recipe.special) for text in recipe.inputs]


def _values(text: str, batch: int, generator: torch.Generator, special: bool) -> Tensor:
    dtype_name, sizes = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()  # type: ignore[union-attr]  # ours
    shape = [batch if size == "batch" else int(size) for size in sizes.split(", ") if size]
    dtype = getattr(torch, dtype_name)
    if dtype.is_complex or dtype.is_floating_point:
        made = torch.randn(shape, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64)
        if special:
            picks = torch.tensor(SPECIAL, dtype=torch.float64)[torch.randint(len(SPECIAL), shape, generator=generator)]
            made = torch.where(torch.rand(shape, generator=generator) < 0.3, picks, made)
        return made.to(dtype)
    low, high = (0, 2) if dtype == torch.bool else (0 if dtype == torch.uint8 else -4, 9)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def drawn(seed: int, blocks: Sequence[str] = tuple(BLOCKS), *, plain: bool = False) -> Recipe:
    """A recipe of 1 to 12 steps; a plain one has float32 inputs that are not empty, and no training mode."""
    draw = Draw(f"recipe/{seed}")
    recipe = _settings(draw, seed, plain)
    draft, steps = Draft(recipe), []
    wanted = draw.randint(1, 12)
    for _ in range(8 * wanted):
        step = draw.choice(blocks), draw.randrange(1000)
        if draft.place(*step):
            steps.append(step)
        if len(steps) == wanted:
            break
    return replace(recipe, steps=tuple(steps))


def _settings(draw: Draw, seed: int, plain: bool) -> Recipe:
    is_dynamic = not plain and draw.chance(0.25)
    shapes = [shape for shape in _SHAPES if ("batch" not in shape or is_dynamic) and not (plain and "0" in shape)]
    inputs = [
        _input("float32" if plain else draw.choice(_DTYPES), draw.choice(shapes)) for _ in range(draw.randint(1, 3))
    ]
    if is_dynamic:
        inputs[0] = _input("float32", draw.choice([shape for shape in _SHAPES if "batch, " in shape]))
    return Recipe(
        seed, tuple(inputs), (), draw.choice(CALLS), draw.choice(RESULTS), on_meta=draw.chance(0.7),
        training=not plain and draw.chance(0.15), special=not plain and draw.chance(0.2),
    )  # fmt: skip


def _input(dtype: str, shape: str) -> str:
    return f"{dtype}[{shape}]"
