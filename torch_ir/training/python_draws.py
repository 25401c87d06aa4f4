"""Random numbers that Python and NumPy draw while a step is captured: a graph keeps them as constants.

If they decide what is computed, the graph would train with one draw for ever, so such a step is refused.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.ir import IR


def captured_without_draws(capture: Callable[[], IR]) -> IR:
    """Capture; if forward draws numbers outside of torch, capture with other numbers and compare the graphs."""
    before = _states()
    try:
        ir = capture()
        if _states() == before:
            return ir
        _reseed(before)
        again = capture()
    finally:
        _restore(before)
    if again.to_json() != ir.to_json():
        raise ConversionError(
            "forward draws random numbers from NumPy or Python that decide what is computed, such as masks of "
            "spectrograms or layer drop; a graph would keep one draw for ever, so turn this off in the model"
        )
    return ir


def _numpy() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)


def _states() -> tuple[Any, Any]:
    """Return the states of the generators of Python and NumPy, in a form that can be compared."""
    numpy = _numpy()
    if numpy is None:
        return random.getstate(), None
    kind, keys, *rest = numpy.get_state()
    return random.getstate(), (kind, tuple(keys.tolist()), *rest)


def _reseed(before: tuple[Any, Any]) -> None:
    number = hash(before) & 0xFFFF_FFFF
    random.seed(number)
    if (numpy := _numpy()) is not None:
        numpy.seed(number)


def _restore(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    if states[1] is not None:
        _numpy().set_state(states[1])
