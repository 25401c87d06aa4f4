"""A graph on another device: what it makes on the device of its capture is made there."""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.errors import ExecutionError, first_line
from torch_ir.ir import IR, Device
from torch_ir.ops.calling import mapped


def find_device(device: str | torch.device) -> torch.device:
    """A device that is there, with its number."""
    try:
        return torch.empty((), device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch asserts that it was built for CUDA
        raise ExecutionError(f"nothing can be computed on {str(device)!r:.60}: {first_line(error)}") from None


def placed(ir: IR, device: torch.device) -> IR:
    """A copy whose operators make tensors on that device where they made them on that of the capture."""

    def there(value: Any) -> Any:
        return Device(device) if isinstance(value, Device) and value == ir.device else value

    copy = ir.clone()
    for node in copy.all_nodes():
        node.attrs = {name: mapped(value, there) for name, value in node.attrs.items()}
    graphs = [copy]
    while graphs:
        graph = graphs.pop()
        graph.device = str(device)
        graphs += graph.functions.values()
    return copy.check()
