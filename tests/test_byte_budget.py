"""The recipe within a budget is the best one: the knapsack against exhaustive search."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from torch_ir.quantization.byte_budget import best_choice


def combinations() -> Iterator[tuple[list[list[tuple[int, float]]], int]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        sizes = torch.randint(1, 40, (5, 3), generator=generator).tolist()
        losses = torch.rand((5, 3), generator=generator).tolist()
        items = [list(zip(size, loss, strict=True)) for size, loss in zip(sizes, losses, strict=True)]
        yield items, sum(min(size) for size in sizes) + int(torch.randint(0, 60, (), generator=generator))


def test_best_choice_equals_exhaustive_search() -> None:
    for items, budget in combinations():
        every = [
            sum(loss for _, loss in chosen)
            for chosen in itertools.product(*items)
            if sum(size for size, _ in chosen) <= budget
        ]
        picked = [choices[at] for choices, at in zip(items, best_choice(items, budget), strict=True)]
        assert sum(size for size, _ in picked) <= budget
        assert sum(loss for _, loss in picked) == pytest.approx(min(every))
