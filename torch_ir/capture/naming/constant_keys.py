"""Keys of constants: the attribute that holds the tensor, else the module that reads it first."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from torch_ir.capture.walk import walk


class ConstantKeys:
    """Assigns the keys of torch.export to constants; call `key` in the order in which forward reads them."""

    def __init__(self, model: nn.Module) -> None:
        self._attributes: Any = WeakTensorKeyDictionary()
        self._numbers = itertools.count()
        for path, module in walk(model):
            for name, value in vars(module).items():
                if isinstance(value, torch.Tensor) and value not in self._attributes:
                    self._attributes[value] = f"{path}.{name}".lstrip(".")

    def key(self, tensor: torch.Tensor, module: str) -> str:
        """Return the key of a constant that the module at this path reads first."""
        held: str | None = self._attributes.get(tensor)
        return held or f"{module}.lifted_tensor_{next(self._numbers)}".lstrip(".")
