"""Send values between processes through torch.distributed: kind and shape first, then the bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from torch_ir.errors import ExecutionError
from torch_ir.ir import TensorMeta
from torch_ir.ops.torch_types import TORCH_DTYPES

_TENSOR, _INT, _FLOAT, _BOOL = range(4)
_NUMBERS = {int: (_INT, torch.int64), float: (_FLOAT, torch.float64), bool: (_BOOL, torch.bool)}


class Wire:
    """The connection to the other stages of a group; sending overlaps with computation."""

    def __init__(self, group: distributed.ProcessGroup, device: torch.device | None) -> None:
        self._group = group
        self._device = device or torch.device("cpu")
        # gloo supports CPU memory only
        self._carrier = torch.device("cpu") if distributed.get_backend(group) == "gloo" else self._device
        self._under_way: list[tuple[Any, torch.Tensor]] = []  # keep tensors alive until they have arrived

    def send(self, value: Any, target: int) -> None:
        """Start sending a value; `finish` waits until all have arrived."""
        kind, dtype = _NUMBERS.get(type(value), (_TENSOR, None))
        tensor = torch.as_tensor(value, dtype=dtype).to(self._carrier).contiguous()
        for part in (torch.tensor([kind, *tensor.shape], device=self._carrier), _bytes_of(tensor)):
            if part.numel():
                self._under_way.append((distributed.isend(part, group=self._group, group_dst=target), part))

    def receive(self, tensor: TensorMeta, source: int) -> Any:
        """Receive the value of a tensor from a stage."""
        header = torch.empty(1 + len(tensor.shape), dtype=torch.int64, device=self._carrier)
        distributed.recv(header, group=self._group, group_src=source)
        kind, *shape = header.tolist()
        numbers = dict(_NUMBERS.values())
        if any(isinstance(dim, int) and dim != size for dim, size in zip(tensor.shape, shape, strict=True)):
            raise ExecutionError(f"stage {source} sends {tensor.name!r} as {shape}, not as {list(tensor.shape)}")
        value = torch.empty(shape, dtype=numbers.get(kind) or TORCH_DTYPES[tensor.dtype], device=self._carrier)
        if value.numel():
            distributed.recv(_bytes_of(value), group=self._group, group_src=source)
        return value.to(self._device) if kind == _TENSOR else value.item()

    def finish(self) -> None:
        """Wait until everything sent has arrived."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of any dtype as bytes; torch does not show those of a conjugate view."""
    return tensor.resolve_conj().reshape(-1).view(torch.uint8)
