"""Limits of a child process that runs torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torch_ir.processes.resource_limits import limit_resources

_PARALLEL = 1 << 20  # elements from which torch uses several threads


def limit(memory: int, others: Mapping[str, int]) -> None:
    """Start torch's threads with their stacks, then limit memory and other resources as `limit_resources` does."""
    torch.ones(_PARALLEL).add_(1)
    limit_resources(memory, others)
