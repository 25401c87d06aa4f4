"""Helpers for tests of fusions: build a graph from a few lines of Python."""

from collections.abc import Callable
from typing import Any

import torch

from torch_ir import IR, extract_ir


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def captured(
    function: Callable[..., Any],
    *shapes: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    open_dim: int | None = None,
) -> IR:
    """The graph of a function of tensors of these shapes; the size of one dimension of all of them may be open."""
    given = tuple(torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)
    if open_dim is None:
        return extract_ir(_Function(function).eval(), given)
    size = torch.export.Dim("size", min=2, max=64)
    return extract_ir(_Function(function).eval(), given, dynamic_shapes=(tuple({open_dim: size} for _ in shapes),))


def kinds(ir: IR) -> list[str]:
    """The operators of a graph, in order."""
    return [node.op_type for node in ir.nodes]
