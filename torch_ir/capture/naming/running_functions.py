"""The running torch function, numbered by its calls: `torch.nn.functional.gelu@1` for the second call of `gelu`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_ir.capture.program.provenance import function_name


class FunctionCalls:
    """Tracks which torch function the model's code calls; `running` is empty between calls."""

    def __init__(self) -> None:
        self.running = ""
        self._calls: Counter[str] = Counter()

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function; attributes and operators are not tracked."""
        name = function_name(function)
        if not name:
            return function(*args, **kwargs)
        self.running = f"{name}@{self._calls[name]}"
        self._calls[name] += 1
        try:
            return function(*args, **kwargs)
        finally:
            self.running = ""
