"""Store tensors in a temporary file, so that many of them do not fill the memory."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import torch

from torch_ir.ir import TensorData
from torch_ir.ops.tensor_data import from_tensor, to_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES

_NAMED = frozenset(TORCH_DTYPES.values())


@dataclass(frozen=True)
class Place:
    """The location of one tensor in the file."""

    offset: int
    size: int
    shape: tuple[int, ...]
    dtype: str


class TensorFile:
    """Stores values and loads them one at a time; the file is deleted when the block ends."""

    def __enter__(self) -> TensorFile:
        self._file = tempfile.TemporaryFile(prefix="torch_ir.")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._file.seek(0, 2)

    def put(self, value: Any) -> Any:
        """Store a value and return its handle for `get`; anything but dense tensors is kept in memory."""
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout != torch.strided or value.is_quantized or value.dtype not in _NAMED:
            return value.detach().clone()
        data = from_tensor(value)
        place = Place(self.size, len(data.raw), data.shape, data.dtype)
        self._file.write(data.raw)
        return place

    def get(self, kept: Any) -> Any:
        if not isinstance(kept, Place):
            return kept
        self._file.seek(kept.offset)
        return to_tensor(TensorData(kept.shape, kept.dtype, self._file.read(kept.size)))


def described(value: Any) -> tuple[Any, ...]:
    """Return a key of shape and dtype that comparable values share."""
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else (type(value),)
