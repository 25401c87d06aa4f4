"""The back end `auto`: time the installed back ends on the first call, use the fastest, and cache the choice.

compiled = torch_ir.compile(ir, weights, backend="auto")
compiled(x)
print(compiled.why)
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from torch_ir.backends.choices import Choice, Choices, key_of
from torch_ir.backends.deviations import refusal
from torch_ir.backends.table import Backend, Run, installed_backends, register_backend
from torch_ir.backends.verifying import verify_unswept
from torch_ir.errors import TorchIRError
from torch_ir.ir import IR
from torch_ir.run.benchmark import Action, bench

_BASE = "torch"  # runs every graph, and is the reference for the others
_ROUNDS = 12  # at most: a race ends when it is decided, or took its seconds
_MARGIN = 1.1
_SECONDS = 3.0
_LAST = "inductor"  # its compiler takes longer than all others together
_SAME_KERNELS = "onednn"  # of convolutions and linear layers; inductor fuses what is between them
_FUSION = 1.6  # times as fast as `_SAME_KERNELS`: more than inductor was on any model of the latency benchmark
_log = logging.getLogger(__name__)


@register_backend(
    "auto", "the fastest installed back end, measured on the first call and cached", races=False, checks_guards=True
)
def prepare(ir: IR, weights: Mapping[str, Tensor]) -> Run:
    return Auto(ir, weights)


class Auto:
    """Chooses a back end on the first call, or uses the cached choice for the same graph, inputs and machine."""

    def __init__(self, ir: IR, weights: Mapping[str, Tensor]) -> None:
        self._ir = ir
        self._weights = weights
        self._run: Run | None = None
        self._choice = Choice("", {}, {})

    @property
    def chosen(self) -> str:
        """The chosen back end; empty before the first call."""
        return self._choice.backend

    @property
    def why(self) -> str:
        """The measurements in one sentence."""
        return str(self._choice)

    def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
        if self._run is None:
            choices, key = Choices(), key_of(self._ir, values)
            self._run = self._remembered(choices.get(key)) or self._measured(values)
            choices.keep(key, self._choice)
        return self._run(values)

    def _remembered(self, choice: Choice | None) -> Run | None:
        """Return the cached choice, prepared, if it still works."""
        found = installed_backends().get(choice.backend) if choice else None
        if choice is None or found is None or refusal(self._ir, choice.backend):
            return None
        try:
            run = found.compile(self._ir, self._weights)
        except TorchIRError:  # something changed that the key does not cover
            return None
        self._choice = choice
        return run

    def _measured(self, values: Sequence[Any]) -> Run:
        """Time each back end against the fastest so far, so that at most two hold the weights at a time."""
        racing = {name: found for name, found in installed_backends().items() if found.races}
        if _LAST in racing:
            racing[_LAST] = racing.pop(_LAST)
        best, run = _BASE, racing.pop(_BASE).compile(self._ir, self._weights)
        _on(run, values)()  # raises an error if the inputs violate a guard, before any choice is cached
        seconds: dict[str, float] = {}
        failed: dict[str, str] = {}
        for name, challenger in racing.items():
            if reason := refusal(self._ir, name):
                failed[name] = reason
                continue
            if reason := _cannot_win(name, best, seconds):
                failed[name] = reason
                continue
            _log.info("measuring %s", name)
            other = _Lazy(challenger, self._ir, self._weights)
            try:
                verify_unswept(name, other, self._ir, self._ir, self._weights)
            except TorchIRError as error:
                failed[name] = str(error)
                continue
            pair = {best: partial(_on, run, values), name: partial(_on, other, values)}
            found = bench(pair, _ROUNDS, margin=_MARGIN, budget=_SECONDS)
            theirs, ours = found[name], found[best]
            if isinstance(theirs, str) or isinstance(ours, str):
                failed[name] = str(theirs)
                continue
            seconds.setdefault(best, ours.time.median)
            seconds[name] = seconds[best] * theirs.ratio.median  # robust against a machine that slows down
            if theirs.ratio.median < 1:
                best, run = name, other.run
        self._choice = Choice(best, seconds, failed)
        return run


def _cannot_win(name: str, best: str, seconds: Mapping[str, float]) -> str:
    """Return why a back end need not be prepared; empty if it may be the fastest."""
    if name != _LAST or _SAME_KERNELS not in seconds:
        return ""
    lead = seconds[_SAME_KERNELS] / seconds[best]
    if lead < _FUSION:
        return ""
    return f"not measured: {_SAME_KERNELS}, which has the same kernels, takes {lead:.1f} times as long as {best}"


class _Lazy:
    """A back end that prepares the graph in its first run, so that the benchmark catches a failure."""

    def __init__(self, found: Backend, ir: IR, weights: Mapping[str, Tensor]) -> None:
        self._prepare = partial(found.compile, ir, weights)

    @cached_property
    def run(self) -> Run:
        return self._prepare()

    def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
        return self.run(values)


def _on(run: Run, values: Sequence[Any]) -> Action:
    """Return a call on its own copy of the inputs."""
    own = copy.deepcopy(list(values))
    return lambda: run(own)
