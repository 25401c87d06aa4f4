"""Whole models with dynamic sizes: one extraction without weights, run from the file at several sizes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import catalogue
from tests.architectures import architectures
from tests.proof import captured, verdict

ARCHITECTURES = {each.name: each for each in architectures()}
TOKENS = [(1, 2), (1, 9), (3, 4), (5, 31)]
IMAGES = [(1, 3, 64, 64), (3, 3, 34, 96), (4, 3, 65, 33)]


def images(size: tuple[int, ...]) -> Tensor:
    return torch.randn(size)


def tokens(size: tuple[int, ...]) -> Tensor:
    return torch.randint(99, size)


def build(name: str) -> tuple[nn.Module, str]:
    """Return a model, and the name of its first argument."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name].build(), "input_ids"
    return catalogue.find(name).build(), "x"


@pytest.mark.filterwarnings("ignore:the values of .* are unknown")  # verification finds them in the model
@pytest.mark.parametrize("kind", ["named", "automatic"])
@pytest.mark.parametrize(
    ("name", "draw", "sample", "varying", "sizes"),
    [
        ("resnet18", images, (2, 3, 64, 80), {0: ("batch", 1, 8), 2: ("height", 33, 96), 3: ("width", 33, 96)}, IMAGES),
        ("bert", tokens, (2, 8), {0: ("batch", 1, 8), 1: ("seq", 2, 32)}, TOKENS),
        ("llama", tokens, (2, 8), {0: ("batch", 2, 8), 1: ("seq", 2, 32)}, TOKENS[2:]),
    ],
    ids=["cnn", "encoder", "decoder"],
)
def test_one_extraction_equals_the_model_at_every_size(
    name: str, draw: Any, sample: tuple[int, ...], varying: dict[int, Any], sizes: list[tuple[int, ...]], kind: str
) -> None:
    """With a `Dim` the names and ranges are the user's; with `Dim.AUTO` every requested size is dynamic."""
    torch.manual_seed(0)
    model, argument = build(name)
    named = {dim: Dim(word, min=low, max=high) for dim, (word, low, high) in varying.items()}
    asked = named if kind == "named" else dict.fromkeys(varying, Dim.AUTO)
    ir = captured(model, kwargs={argument: draw(sample)}, dynamic_shapes={argument: asked})
    shape = ir.graph_inputs[0].shape
    assert all(isinstance(shape[dim], str) for dim in varying), shape
    if kind == "named":
        found = {name: (symbol.min, symbol.max) for name, symbol in ir.symbols.items()}
        assert found == {word: (low, high) for word, low, high in varying.values()}
    for size in sizes:
        report = verdict(ir, model, kwargs={argument: draw(size)}, probe=False)
        assert report.is_valid, f"{size}: {report}"
