"""Kernels that torch's own layers take instead of the operators that they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_attention() -> Iterator[None]:
    """Without the fused kernels that torch's transformer layers take in eager mode and that no capture sees."""
    is_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(is_enabled)
