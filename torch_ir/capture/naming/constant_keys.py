"""Keys of tensors that are neither weights nor inputs: the attribute that holds them, else where they are read."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from torch_ir.capture.walk import walk


class ConstantKeys:
    """Gives each constant the key that torch.export gives it; ask in the order in which forward reads them."""

    def __init__(self, model: nn.Module) -> None:
        self._attributes: Any = WeakTensorKeyDictionary()
        self._numbers = itertools.count()
        for path, module in walk(model):
            for name, value in vars(module).items():
                if isinstance(value, torch.Tensor) and value not in self._attributes:
                    self._attributes[value] = f"{path}.{name}".lstrip(".")

    def key(self, tensor: torch.Tensor, module: str) -> str:
        """Return the key of a constant that is read first in the module of this path."""
        held: str | None = self._attributes.get(tensor)
        return held or f"{module}.lifted_tensor_{next(self._numbers)}".lstrip(".")
