"""Load weights from a file into a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_ir.cli.models.model_kinds import is_config
from torch_ir.errors import CommandError, WeightLoadError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from torch_ir.cli.models.source import Source

_LARGEST = 2_000_000_000  # weights that may be filled with random numbers


def refuse_large(text: str, size: int, way_out: str) -> None:
    """Raise CommandError for a model too large to fill with random numbers."""
    if size > _LARGEST:
        raise CommandError(f"{text} has {size:,} weights, too many to fill with random numbers; {way_out}")


def build_filled(source: Source, path: str | None) -> nn.Module:
    """Build the model with the weights of a file or a folder of shards; by default with its own initial weights."""
    if path is None and is_config(source.text):
        refuse_large(source.text, _size(source), "give --weights FILE, or take fewer layers in model and graph")
    model = source.build()
    if path is not None:
        _fill(model, path)
    return model


def _size(source: Source) -> int:
    """Count the weights of a model without allocating them."""
    from torch_ir.capture import meta_init

    with meta_init():
        return sum(weight.numel() for weight in source.build().parameters())


def _fill(model: nn.Module, path: str) -> None:
    """Load weights into a model; one of several tied weights is enough."""
    from torch_ir.run import load_weights

    weights = load_weights(path)
    for names in _ties(model):
        held = next((name for name in names if name in weights), None)
        weights.update({name: weights[held] for name in names if held is not None and name not in weights})
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:  # torch lists every mismatch, one per line
        raise WeightLoadError(f"{path} does not fit {type(model).__name__}: {str(error).partition(':')[2]}") from None


def _ties(model: nn.Module) -> list[list[str]]:
    """Return the groups of names that share one tensor."""
    groups: dict[int, list[str]] = {}
    tensors: dict[str, Tensor] = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        groups.setdefault(id(tensor), []).append(name)
    return [names for names in groups.values() if len(names) > 1]
