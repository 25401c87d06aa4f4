"""Regions of autocast in forward: torch casts the operands, and the casts are recorded like other calls.

A composite operator that torch does not cast itself, such as `einsum`, is recorded as the operators that it calls if
some of these are cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from torch_ir.capture.fast.rule_answers import FixedFakes, Key
from torch_ir.capture.fast.shape_tensors import NotCoveredError, form_of
from torch_ir.capture.instrument import all_intercepted, outside_modes
from torch_ir.ops.neutral_state import AUTOCAST_DEVICES
from torch_ir.ops.torch_internals import DispatchKey, OpOverload, call_kernel, pytree

_is_enabled = torch.is_autocast_enabled  # the original, not its patch


class AutocastRegions:
    """The devices for which autocast is on at this point of a run."""

    def __init__(self, *, has_open_sizes: bool) -> None:
        self.devices: tuple[str, ...] = ()
        self._has_open_sizes = has_open_sizes
        self._known: dict[Any, bool] = {}
        self._fakes = FixedFakes()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Follow what this thread enables; without a cache, so that every cast is recorded where it is used."""
        is_caching = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        handlers = {(torch, "set_autocast_enabled"): self._set, (torch, "set_autocast_cache_enabled"): lambda *_: None}
        try:
            with all_intercepted(handlers):
                yield
        finally:
            torch.set_autocast_cache_enabled(is_caching)
            for device in self.devices:  # after an error in `__enter__`
                torch.set_autocast_enabled(device, False)

    def _set(self, original: Callable[..., Any], *args: Any) -> None:
        original(*args)
        self.devices = tuple(filter(_is_enabled, AUTOCAST_DEVICES))
        if self.devices and self._has_open_sizes:
            raise NotCoveredError("a region of autocast, with dynamic sizes")

    def opened(self, recorder: Any, key: Key, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record the operators of a composite one if some are cast, and it is not; else return NotImplemented."""
        from torch_ir.capture.program.autocast_calls import casts_inside, may_cast_inside  # slow to import

        outer = self.devices
        try:
            for device in outer:  # for which autocast is off below its own dispatch key, where this is called
                if not may_cast_inside(func, device):
                    continue
                place = key, device, torch.get_autocast_dtype(device)
                region = partial(torch.autocast, *place[1:], cache_enabled=False)
                if place not in self._known:
                    with outside_modes():
                        given, words = pytree.tree_map_only(torch.Tensor, self._fake, (tuple(args), dict(kwargs)))
                        self._known[place] = casts_inside(func, given, words, region)
                if self._known[place]:
                    with recorder, region():
                        return call_kernel(func, DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
            return NotImplemented
        finally:
            self.devices = outer

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._fakes.fake(form_of(tensor))
