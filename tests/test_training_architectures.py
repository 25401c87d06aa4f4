"""Training steps of tiny architectures of `transformers`: gradients and AdamW's update are those of eager mode."""

import random
import warnings

import pytest

from tests.architectures import Architecture, architectures
from tests.architectures.sweep import select
from tests.trained_models import compare
from torch_ir.errors import TorchIRError

DRAWN_BY_NUMPY = {"sew_d"}  # masks of spectrograms, which a graph keeps from its capture
ROUNDING = 1e-5  # of gradients and weights, relative to the largest

SAMPLE = [each for each in random.Random(29).sample(architectures(), 40) if each.name not in DRAWN_BY_NUMPY]


def outcome(architecture: Architecture) -> str:
    """Return `exact`, the differences if they are rounding, or why the model was not compared."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compared = compare(architecture.build(), (), kwargs=architecture.inputs())
    except TorchIRError as error:
        return f"refused: {error}"
    if compared.is_exact:
        return "exact"
    kind = "rounded" if max(compared.losses, compared.gradients) < ROUNDING else "different"
    return f"{kind}: loss {compared.losses:.1e}, gradients {compared.gradients:.1e}, weights {compared.weights:.1e}"


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_a_sample_is_exact(name: str) -> None:
    (architecture,) = select([name])
    assert outcome(architecture) == "exact"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SAMPLE, ids=lambda each: each.name)
def test_a_larger_sample_is_never_different(architecture: Architecture) -> None:
    assert not outcome(architecture).startswith("different")
