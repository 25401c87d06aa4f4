"""Training steps of tiny architectures of `transformers`: gradients and AdamW's update are those of eager mode."""

import random
from pathlib import Path

import pytest

from tests.architectures import Architecture, architectures
from tests.architectures.sweep import select
from tests.training_sweep import Outcome, outcome, rows_of

SAMPLE = random.Random(29).sample(architectures(), 40)
TABLE = Path(__file__).parent / "data" / "training_sweep.jsonl"  # written by tests/training_sweep.py


def of(architecture: Architecture) -> Outcome:
    return outcome(architecture.build, (), architecture.inputs())


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_a_sample_is_exact(name: str) -> None:
    (architecture,) = select([name])
    assert of(architecture)["outcome"] == "exact"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SAMPLE, ids=lambda each: each.name)
def test_a_larger_sample_is_as_in_the_table(architecture: Architecture) -> None:
    (row,) = [row for row in rows_of(TABLE) if row["name"] == architecture.name]
    assert of(architecture)["outcome"] == row["outcome"] != "different"
