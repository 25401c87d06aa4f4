"""Every model of the catalogue verifies bit for bit, in every dtype."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import catalogue
from catalogue import Entry
from tests.proof import captured, verdict

# models whose forward creates float32 tensors, so that torch itself refuses half-precision weights
FLOAT32_ONLY = {
    "diffusion_step": "the embedding of the time step is float32",
    "fft": "torch has no such Fourier transform",
    "graph_conv": "the matrix of degrees is float32",
    "grouped_query_attention": "rotary tables are float32",
    "llama": "rotary tables are float32",
    "message_passing": "the sums of messages are float32",
    "mixed_precision": "it mixes dtypes by itself",
}


HALVES = (torch.bfloat16, torch.float16)


def in_dtype(tree: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, tree)


may_lose_values = pytest.mark.filterwarnings("ignore:the values of .* are unknown")  # verification has the model's


def agrees_to_the_bit(entry: Entry, dtype: torch.dtype | None) -> None:
    """The file of a model returns the model's bits, on the given and on derived inputs."""
    torch.manual_seed(0)
    model, args, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    if dtype is not None:
        model, args, kwargs = model.to(dtype), in_dtype(args, dtype), in_dtype(kwargs, dtype)
    if dtype is not None and entry.name in FLOAT32_ONLY:
        with pytest.raises(RuntimeError):
            model(*args, **kwargs)
        return
    report = verdict(captured(model, *args, kwargs=kwargs), model, *args, kwargs=kwargs)
    assert report.is_valid, report
    assert report.max_diff == 0.0
    assert report.trials >= 5


@may_lose_values
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("entry", catalogue.entries()[1::7], ids=lambda entry: entry.name)
def test_a_sample_in_half_precision(entry: Entry, dtype: torch.dtype) -> None:
    agrees_to_the_bit(entry, dtype)


@pytest.mark.slow
@may_lose_values
@pytest.mark.parametrize("dtype", [None, *HALVES], ids=str)
@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_every_model_in_every_dtype(entry: Entry, dtype: torch.dtype | None) -> None:
    agrees_to_the_bit(entry, dtype)
