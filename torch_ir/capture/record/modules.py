"""Which module is running, told by torch's hooks for all modules, and which tensors modules hold beside their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from torch_ir.capture.instrument import module_hooks
from torch_ir.capture.program.provenance import class_name


class ModuleStack:
    """The modules whose forward is running, outermost first, written as torch.export writes them."""

    def __init__(self, model: nn.Module) -> None:
        self._paths = {module: path for path, module in reversed(list(model.named_modules()))}
        self._calls: Counter[str] = Counter()
        self._running: list[tuple[nn.Module, str, tuple[str, str]]] = []

    @property
    def entries(self) -> dict[str, tuple[str, str]]:
        return {key: entry for _, key, entry in self._running}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with module_hooks(self._enter, self._leave):
            yield

    def _enter(self, module: nn.Module, args: Any) -> None:
        path = self._paths.get(module)
        if path is not None:  # else forward has made it, and it has no name
            call = self._calls[path]
            self._calls[path] += 1
            key = f"{path}@{call}" if call else path
            self._running.append((module, key, (path, class_name(type(module)))))

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        if module in (running for running, _, _ in self._running):
            while self._running.pop()[0] is not module:
                pass  # ended by an error that the model caught


def plain_attributes(model: nn.Module) -> Any:
    """Tensors that modules hold as plain attributes, with their paths."""
    found: Any = WeakTensorKeyDictionary()
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                found[value] = f"{path}.{name}".lstrip(".")
    return found
