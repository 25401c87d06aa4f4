"""Verification against an oracle process: no graph that is wrong there passes."""

import random

import pytest
import torch

from tests.verification_oracle import stateful
from tests.verification_oracle.sweep import CORRUPTED, is_same, names, sweep

STATEFUL = [f"state.{name}" for name in stateful.MODELS]
SAMPLE = random.Random(0).sample([name for name in names() if name.startswith(("catalogue.", "random."))], 4)


def test_a_sample_against_the_oracle() -> None:
    """Every stateful model as it is captured, and a seeded sample of the others with corrupted graphs."""
    found = sweep({**dict.fromkeys(STATEFUL, 0), **dict.fromkeys(SAMPLE, 2)})
    assert found.false_passes == []
    assert found.false_failures == []
    assert found.graphs["wrong FAILED"] > 12
    assert found.graphs["right PASSED"] > 12


@pytest.mark.slow
def test_every_model_against_the_oracle() -> None:
    found = sweep(dict.fromkeys(names(), CORRUPTED))
    assert found.false_passes == []
    assert found.false_failures == []


def test_the_comparison_of_the_oracle() -> None:
    """It shares no code with verification, so it is tested separately."""
    x, nan, inf = torch.tensor([1.0, 2.0]), float("nan"), float("inf")
    assert is_same(x, x + 1e-6)
    assert not is_same(x, x + 0.01)
    assert not is_same(x, x.double())
    assert not is_same(x, x[:1])
    assert is_same(torch.tensor([nan, inf, -inf]), torch.tensor([nan, inf, -inf]))
    assert not is_same(torch.tensor([nan, 1.0]), torch.tensor([inf, 1.0]))
    assert not is_same(torch.tensor([inf]), torch.tensor([-inf]))
    assert not is_same(torch.tensor([2**53 + 1]), torch.tensor([2**53]))
    assert not is_same(torch.tensor([1 + 1j]), torch.tensor([1 - 1j]))
    assert not is_same(torch.tensor([1e-12]), torch.tensor([2e-12]))
    assert is_same(3, 3)
    assert not is_same(3, 3.0)
    assert not is_same("a", None)
