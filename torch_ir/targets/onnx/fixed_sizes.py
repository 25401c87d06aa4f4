"""Find symbolic sizes that torch's ONNX exporter replaces by the number that they have in the example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from torch_ir.analysis.shapes.open_sizes import points_of
from torch_ir.ir import IR, TensorMeta, evaluate


class SizeConditions:
    """The conditions on sizes that decompositions of a program add from now on."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._known = len(self._conditions())

    def _conditions(self) -> list[Any]:
        modes = (getattr(node.meta.get("val"), "fake_mode", None) for node in self._program.graph.nodes)
        environment = next((mode.shape_env for mode in modes if mode is not None), None)
        return [guard.expr for guard in getattr(environment, "guards", ())]

    def fix_a_size(self, ir: IR, given: Sequence[TensorMeta]) -> bool:
        """Whether one of them, `size = number`, holds only for the example.

        A decomposition that needs a size as a number, such as the window of an adaptive pool, gets that of the example.
        The condition then holds at no other choice of the sizes but perhaps the second, which is near the first.
        """
        others = [dict(_values(point, given, self._program)) for point in points_of(ir)[2:]]
        for condition in self._conditions()[self._known :]:
            if not isinstance(condition, sympy.Eq) or not condition.rhs.is_Integer:
                continue
            seen = [condition.xreplace(sizes) for sizes in others if condition.free_symbols <= sizes.keys()]
            if seen and not any(map(bool, seen)):
                return True
        return False


def _values(
    point: Mapping[str, int], given: Sequence[TensorMeta], program: ExportedProgram
) -> Iterator[tuple[sympy.Symbol, sympy.Integer]]:
    """Yield the symbols of a program's inputs, with their values at a choice of the graph's sizes."""
    shown: dict[str, Any] = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    for tensor, name in zip(given, program.graph_signature.user_inputs, strict=True):
        for dim, found in zip(tensor.shape, getattr(shown[str(name)], "shape", ()), strict=False):  # a number has none
            if isinstance(found, torch.SymInt) and found.node.expr.is_Symbol:
                yield found.node.expr, sympy.Integer(int(evaluate(dim, point)))
