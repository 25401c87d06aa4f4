"""Optimise several graphs over one checkpoint and bind them to its weights, of which each is in memory once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from torch_ir.backends.placement import placed
from torch_ir.ir import IR
from torch_ir.passes import optimize
from torch_ir.passes.optimize_levels import LEVELS
from torch_ir.run.binding import SharedWeights
from torch_ir.run.stored import Weight

_MERGES = "merge-projections"  # merged weights are copies, and save a launch, which costs little on a CPU


def bind_together(
    graphs: Iterable[IR], weights: Mapping[str, Weight], device: torch.device, level: str | None
) -> list[tuple[IR, dict[str, Tensor]]]:
    """Return graphs to compile with `level=None`, and their weights, which share memory where graphs read the same."""
    shared = SharedWeights(device)
    found = []
    for graph in graphs:
        better = graph if level is None else optimize(graph, level, passes=_passes(level, device))[0]
        kept = {key for param in better.params for key in (str(param.key), *param.stored_keys)}
        read = {key: value for key, value in weights.items() if key in kept}
        found.append(shared.bind(placed(better, device), read))
    return found


def _passes(level: str, device: torch.device) -> list[str] | None:
    """Return the passes of a level for a device; None takes all of them."""
    known = device.type == "cpu" and level in LEVELS
    return [name for name in LEVELS[level] if name != _MERGES] if known else None
