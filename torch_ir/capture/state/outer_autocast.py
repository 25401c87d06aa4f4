"""Capture inside the caller's `with torch.autocast(...)`: the region is moved into forward.

The capture steps disagree on a region that was entered before them: one records the casts, another only their dtypes.
A region that the model enters itself is captured the same way by all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from torch_ir.capture.instrument import set_attribute
from torch_ir.ops.neutral_state import AUTOCAST_DEVICES


@contextmanager
def autocast_inside(model: nn.Module) -> Iterator[None]:
    """Leave the caller's autocast regions, and let `forward` enter them; restore `forward` at the end."""
    dtypes = {
        device: torch.get_autocast_dtype(device) for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)
    }
    if not dtypes:
        yield
        return
    with set_attribute(model, "forward", _inside(model.forward, dtypes)), ExitStack() as left:
        for device in dtypes:
            left.enter_context(torch.autocast(device, enabled=False))
        yield


def _inside(forward: Callable[..., Any], dtypes: dict[str, torch.dtype]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def within(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as regions:
            for device, dtype in dtypes.items():  # without a cache, so that every cast is recorded
                regions.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
            return forward(*args, **kwargs)

    return within
