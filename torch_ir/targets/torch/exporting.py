"""Export a module that computes a graph with torch.export, keeping all symbolic sizes dynamic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from torch_ir.analysis.shapes.open_sizes import points_of
from torch_ir.errors import ConversionError, first_line
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.sizes.expressions import Number, evaluate
from torch_ir.ops.shared_by_threads import tracing

Make = Callable[[TensorMeta, Callable[[int | str], int]], Tensor]


def exported(ir: IR, module: nn.Module, given: Sequence[TensorMeta], make: Make, *, as_one: bool) -> ExportedProgram:
    """Export a module that takes these tensors of a graph; `as_one` if its signature is `*args`.

    `make` returns an example of a tensor; its second argument evaluates sizes.
    """
    points, model = points_of(ir), ir.model_name or "the graph"
    if ir.symbols and not points:
        raise ConversionError(f"found no sizes that {model} admits")
    sizes: dict[str, Number] = dict(points[0]) if points else {}
    numbers = {symbol.tensor: symbol.name for symbol in ir.symbols.values() if symbol.dim is None}
    values = [
        sizes[numbers[tensor]] if tensor in numbers else make(tensor, lambda dim: int(evaluate(dim, sizes)))
        for tensor in given
    ]
    varying: Any = tuple(
        Dim.DYNAMIC
        if tensor in numbers
        else {at: Dim.AUTO for at, dim in enumerate(tensor.shape) if isinstance(dim, str)}
        for tensor in given
    )
    shapes = (varying,) if as_one else varying
    try:
        with tracing():
            program = torch.export.export(module, tuple(values), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # any error of torch.export
        raise ConversionError(f"torch.export rejects {model}: {first_line(error)}") from None
    _check_sizes(given, program)
    return program


def _check_sizes(given: Sequence[TensorMeta], program: ExportedProgram) -> None:
    """Raise ConversionError if torch.export specialised a symbolic size."""
    shown = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    for tensor, name in zip(given, program.graph_signature.user_inputs, strict=True):
        for dim, found in zip(tensor.shape, getattr(shown[str(name)], "shape", ()), strict=False):  # a number has none
            if isinstance(dim, str) and isinstance(found, int):
                raise ConversionError(
                    f"torch.export fixed the size {dim!r} of {tensor.name!r} at {found}; specialize it"
                )
