"""Rotary embeddings: both forms become one call, and nothing else does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.captured import captured, kinds
from tests.rewriting import optimized
from torch_ir.passes.optimize_levels import CLEAN

X, TABLE, HALF = (1, 2, 4, 8), (1, 1, 4, 8), (1, 1, 4, 4)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((-x[..., 4:], x[..., :4]), dim=-1)


def halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@pytest.mark.parametrize(
    ("function", "table"),
    [
        (lambda x, cos, sin: x * cos + rotate_half(x) * sin, TABLE),
        (lambda x, cos, sin: sin * rotate_half(x) + cos * x, TABLE),
        (halves, HALF),
    ],
    ids=["rotate_half", "the other way round", "halves"],
)
@pytest.mark.parametrize("before", [[], list(CLEAN)], ids=["as captured", "clean"])
def test_every_spelling(function: Callable[..., Any], table: tuple[int, ...], before: list[str]) -> None:
    """One call, equal to the last bit, that reads the tensor and the tables."""
    after = optimized(captured(function, X, table, table), [*before, "fuse-rotary"], exact=True)
    assert kinds(after) == ["fused.rotary"]
    assert after.nodes[0].args == ("input", "cos", "sin")


@pytest.mark.parametrize(
    "function",
    [
        lambda x, cos, sin: x * cos + torch.cat((x[..., 4:], x[..., :4]), dim=-1) * sin,
        lambda x, cos, sin: x * cos + torch.cat((-x[..., :4], x[..., 4:]), dim=-1) * sin,
        lambda x, cos, sin: x * cos + rotate_half(x.exp()) * sin,
        lambda x, cos, sin: torch.add(x * cos, rotate_half(x) * sin, alpha=2),
        lambda x, cos, sin: (lambda turned: (x * cos + turned * sin, turned))(rotate_half(x)),
    ],
    ids=["no negation", "halves in place", "another tensor", "a factor", "inner result is read"],
)
def test_what_is_no_rotation_stays(function: Callable[..., Any]) -> None:
    """Similar nodes that compute something else, or whose intermediate results have other consumers."""
    after = optimized(captured(function, X, TABLE, TABLE), [*CLEAN, "fuse-rotary"], exact=True)
    assert "fused.rotary" not in kinds(after)
