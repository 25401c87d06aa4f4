"""What forward asks of the process, or sets there: settings that decide on its result and that no graph holds.

A question is answered once, at capture, and the graph holds what followed; the user is told by name and line. Whoever
seeds the random numbers inside of forward draws other ones in the graph, so that is refused.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from torch_ir.capture.instrument import Handler, all_intercepted
from torch_ir.capture.program.provenance import is_users, user_line
from torch_ir.errors import CaptureWarning, Cause, ConversionError
from torch_ir.ir import IR
from torch_ir.ops.effects import is_random

_QUESTIONS = (
    "is_grad_enabled", "is_inference_mode_enabled", "get_default_dtype", "get_default_device", "is_autocast_enabled",
    "get_autocast_dtype", "are_deterministic_algorithms_enabled", "get_float32_matmul_precision", "initial_seed",
)  # fmt: skip
_SEEDING = ("manual_seed", "seed", "set_rng_state")


class AmbientNotes:
    """The questions and seeds of one capture: lines with what was called there, each once."""

    def __init__(self) -> None:
        self.asked: dict[tuple[str, str], None] = {}
        self.seeded: dict[tuple[str, str], None] = {}

    def ask(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if line := _users_line():
            self.asked[line, f"torch.{name}(), which is {answer}"] = None
        return answer

    def seed(self, name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if line := _users_line():
            self.seeded[line, f"torch.{name}"] = None
        return original(*args, **kwargs)

    def check(self, ir: IR) -> None:
        """Refuse a graph whose random numbers would be others; warn of what else was decided at capture."""
        for line, name in self.seeded:
            if any(map(is_random, ir.all_nodes())):
                raise ConversionError(
                    f"{line}: forward sets the state of torch's random numbers with {name}, which no graph does; seed "
                    "before the call",
                    cause=Cause.SEEDED,
                )
            _warn(f"{line} sets the state of torch's random numbers with {name}; the graph does not")
        for line, told in self.asked:
            _warn(f"{line} asks for {told}: the graph holds what follows from that, whatever is set when it runs")


@contextmanager
def ambient_notes() -> Iterator[AmbientNotes]:
    """Note what the user's code asks and sets; afterwards torch's random numbers are where they were."""
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


def _users_line() -> str:
    """The line that called a patched function, if it is the user's."""
    frame = sys._getframe(3)
    if not is_users(frame.f_code.co_filename):
        return ""
    return user_line(f'File "{frame.f_code.co_filename}", line {frame.f_lineno}')


def _warn(text: str) -> None:
    warnings.warn(text, CaptureWarning, stacklevel=5)
