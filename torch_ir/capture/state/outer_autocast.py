"""Capture under somebody's `with torch.autocast(...)`: the region becomes one of the model's own.

The ways to capture a model disagree on a region that was entered before they began: the one records the casts, the
other the dtypes without the casts. A region that the model enters itself is captured alike by all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from torch_ir.ops.neutral_state import AUTOCAST_DEVICES

_FORWARD = "forward"
_ABSENT = object()


@contextmanager
def autocast_inside(model: nn.Module) -> Iterator[None]:
    """Leave the regions of autocast that the caller is in, and let `forward` enter them; put it back on leaving."""
    dtypes = {
        device: torch.get_autocast_dtype(device) for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)
    }
    if not dtypes:
        yield
        return
    attributes = vars(model)
    before = attributes.get(_FORWARD, _ABSENT)
    attributes[_FORWARD] = _inside(model.forward, dtypes)
    try:
        with ExitStack() as left:
            for device in dtypes:
                left.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        if before is _ABSENT:
            del attributes[_FORWARD]
        else:
            attributes[_FORWARD] = before


def _inside(forward: Callable[..., Any], dtypes: dict[str, torch.dtype]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def within(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as regions:
            for device, dtype in dtypes.items():  # without a cache: every cast is to be seen
                regions.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
            return forward(*args, **kwargs)

    return within
