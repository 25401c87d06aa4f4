"""Optimisers by name, for the command line: one call of `torch.optim` each, or two where one takes only matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torch_ir.errors import ExportError, did_you_mean

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
    "muon": torch.optim.Muon,
}


def named_optimizer(name: str, model: nn.Module, **options: Any) -> list[Optimizer]:
    """Return the optimisers of this name over a model's parameters; options that are None keep torch's defaults."""
    if name not in OPTIMIZERS:
        raise ExportError(
            f"unknown optimiser {name!r}; expected one of {', '.join(OPTIMIZERS)}{did_you_mean(name, OPTIMIZERS)}"
        )
    given = {key: value for key, value in options.items() if value is not None}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        return _muon(model, trained, given) if name == "muon" else [OPTIMIZERS[name](trained, **given)]
    except (TypeError, ValueError) as error:
        raise ExportError(f"torch.optim cannot make {name} with {given}: {error}") from None


def _muon(model: nn.Module, trained: list[nn.Parameter], options: dict[str, Any]) -> list[Optimizer]:
    """Muon for matrices of hidden layers, AdamW for embeddings and for all other parameters, as torch recommends."""
    tables = {id(each.weight) for each in model.modules() if isinstance(each, (nn.Embedding, nn.EmbeddingBag))}
    matrices = [each for each in trained if each.dim() == 2 and id(each) not in tables]
    held = {id(each) for each in matrices}
    others = [each for each in trained if id(each) not in held]
    made: list[Optimizer] = [torch.optim.Muon(matrices, **options)] if matrices else []
    shared = {key: value for key, value in options.items() if key in ("lr", "weight_decay")}
    return made + ([torch.optim.AdamW(others, **shared)] if others else [])
