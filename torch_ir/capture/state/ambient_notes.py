"""Process-wide settings that forward reads or sets, such as the default dtype and the random seed.

The graph is specialised to the settings at capture; a warning names each line that reads one. A forward that seeds the
random numbers and then draws some is refused, because the graph would draw others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from torch_ir.capture.instrument import Handler, all_intercepted
from torch_ir.capture.program.provenance import calling_line
from torch_ir.errors import CaptureWarning, Cause, ConversionError
from torch_ir.ir import IR
from torch_ir.ops.effects import is_random

_QUESTIONS = (
    "is_grad_enabled", "is_inference_mode_enabled", "get_default_dtype", "get_default_device", "is_autocast_enabled",
    "get_autocast_dtype", "are_deterministic_algorithms_enabled", "get_float32_matmul_precision", "initial_seed",
    "get_num_threads", "get_num_interop_threads", "is_anomaly_enabled", "is_warn_always_enabled",
)  # fmt: skip
_SEEDING = ("manual_seed", "seed", "set_rng_state")


class AmbientNotes:
    """The reads and seeds of one capture: each line, with the function that it calls, once."""

    def __init__(self) -> None:
        self.asked: dict[tuple[str, str], None] = {}
        self.seeded: dict[tuple[str, str], None] = {}

    def ask(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if line := calling_line():
            self.asked[line, f"torch.{name}(), which is {answer}"] = None
        return answer

    def seed(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if line := calling_line():
            self.seeded[line, f"torch.{name}"] = None
        return original(*args, **kwargs)

    def check(self, ir: IR) -> None:
        """Refuse a graph whose random numbers would differ; warn about settings that were read at capture."""
        for line, name in self.seeded:
            if any(map(is_random, ir.all_nodes())):
                raise ConversionError(
                    f"{line}: forward sets torch's random state with {name}, which a graph cannot do; seed before "
                    "the call",
                    cause=Cause.SEEDED,
                )
            _warn(f"{line} sets torch's random state with {name}; the graph does not")
        for line, setting in self.asked:
            _warn(f"{line} reads {setting}: the graph is specialised to that value, whatever is set when it runs")


@contextmanager
def ambient_notes() -> Iterator[AmbientNotes]:
    """Note which settings the user's code reads and sets; restore torch's random state afterwards."""
    notes, before = AmbientNotes(), torch.get_rng_state()
    handlers: dict[tuple[Any, str], Handler] = {(torch, name): partial(notes.ask, name) for name in _QUESTIONS}
    handlers |= {(owner, name): partial(notes.seed, name) for owner in (torch, torch.random) for name in _SEEDING}
    handlers[torch.random, "fork_rng"] = partial(notes.seed, "random.fork_rng")
    try:
        with all_intercepted(handlers):
            yield notes
    finally:
        if notes.seeded:
            torch.set_rng_state(before)


def _warn(text: str) -> None:
    warnings.warn(text, CaptureWarning, stacklevel=5)
