"""Move a graph to another device: tensors created on the capture device are created there."""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.errors import ExecutionError, first_line
from torch_ir.ir import IR, Device
from torch_ir.ops.calling import mapped


def find_device(device: str | torch.device) -> torch.device:
    """Return an available device with its index."""
    try:
        return torch.empty((), device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch asserts that it was built for CUDA
        raise ExecutionError(f"device {str(device)!r:.60} is not available: {first_line(error)}") from None


def placed(ir: IR, device: torch.device) -> IR:
    """Return a copy that creates tensors on this device instead of the capture device."""

    def there(value: Any) -> Any:
        return Device(device) if isinstance(value, Device) and value == ir.device else value

    copy = ir.clone()
    for graph in copy.all_graphs():
        graph.device = str(device)
        for node in graph.nodes:
            node.attrs = {name: mapped(value, there) for name, value in node.attrs.items()}
    return copy.check()
