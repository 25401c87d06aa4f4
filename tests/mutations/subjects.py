"""The models whose graphs are corrupted, each with real weights and inputs."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import catalogue
from tests.proof import captured
from torch_ir import IR

# for the content of each, see its file in the catalogue
CHOSEN = (
    *(
        "buffer_mutation",
        "causal_attention",
        "cnn",
        "constants",
        "control_flow",
        "convnext",
        "embedding_bag",
        "gru",
        "inplace",
    ),
    *("integer_ops", "lstm", "multi_output", "nested_inputs", "shared_weights", "static_cache"),
    *("transformer_encoder", "ours.batches", "ours.in_place"),
)


@dataclass(frozen=True)
class Subject:
    """A graph and the model that it was captured from."""

    name: str
    ir: IR
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Batches(nn.Module):
    """Two sizes that vary, one of them in a computed shape, an index and an output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.head = nn.Linear(8, 6)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
        batch, length, width = x.shape
        hidden = torch.relu(self.embed(x)).reshape(batch * length, 8)
        mask = torch.arange(length) < length // 2
        rows = self.head(hidden).view(batch, length, width).masked_fill(mask[:, None], 0.5)
        return rows + y[:, None], torch.cat([x, x], dim=1).sum(1) / length, length


class InPlace(nn.Module):
    """Writes to both of its inputs and returns a view."""

    def forward(self, x: Tensor, total: Tensor) -> Tensor:
        x[:, 1:].mul_(2)
        total.add_(x.sum(0)).clamp_(max=3.0)
        return x.t() - total[:, None]


def _batches() -> Subject:
    sizes = {"x": {0: Dim("batch"), 1: Dim("length", min=2, max=64)}, "y": {0: Dim("batch")}}
    inputs = (torch.randn(3, 4, 6), torch.randn(3, 6))
    model = Batches().eval()
    return Subject("ours.batches", captured(model, *inputs, dynamic_shapes=sizes), model, inputs, {})


def _in_place() -> Subject:
    model, inputs = InPlace().eval(), (torch.randn(3, 4), torch.randn(4))
    return Subject("ours.in_place", captured(model, *inputs), model, inputs, {})


_OURS = {"ours.batches": _batches, "ours.in_place": _in_place}


def names() -> list[str]:
    """Every subject: the catalogue and our own."""
    return [*(entry.name for entry in catalogue.entries()), *_OURS]


@cache
def subject(name: str) -> Subject:
    """The subject of this name, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name in _OURS:
            return _OURS[name]()
        entry = catalogue.find(name)
        model, args, kwargs = entry.build(), cropped(entry.inputs()), entry.kwargs()
        return Subject(name, captured(model, *args, kwargs=kwargs), model, args, kwargs)


def cropped(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Shrink large images: every mutant runs about 30 times."""
    return tuple(
        arg[..., :64, :64].clone() if isinstance(arg, Tensor) and arg.numel() > 100_000 else arg for arg in args
    )
