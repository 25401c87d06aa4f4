"""Branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch_ir.ir import OpNode
from torch_ir.targets.stablehlo.operations import Body, Kind, Value

if TYPE_CHECKING:
    from torch_ir.targets.stablehlo.graph_function import Writer


def _cond(writer: Writer, node: OpNode) -> list[Value]:
    condition = _truth(writer, writer.reads(node, "pred")[0])
    operands = writer.reads(node, "operands.")
    results = [Kind(tensor.shape, tensor.dtype) for tensor in node.outputs]

    def branch(name: str) -> Callable[[], Sequence[Value]]:
        return lambda: writer.inside(writer.ir.functions[str(node.attrs[name])], operands)

    regions: list[tuple[list[Kind], Body]] = [([], branch("true_fn")), ([], branch("false_fn"))]
    return writer.emit_all("if", [condition], results, "", regions)


def _while_loop(writer: Writer, node: OpNode) -> list[Value]:
    """Inputs that the loop reads and does not change are carried unchanged."""
    is_wanted, body = (writer.ir.functions[str(node.attrs[name])] for name in ("cond_fn", "body_fn"))
    start, others = writer.reads(node, "carried_inputs."), writer.reads(node, "additional_inputs.")
    operands = [*start, *others]
    kinds = [Kind(value.shape, value.dtype) for value in operands]

    def goes_on(*given: Value) -> list[Value]:
        return [_truth(writer, writer.inside(is_wanted, given)[0])]

    def step(*given: Value) -> list[Value]:
        return [*writer.inside(body, given), *given[len(start) :]]

    return writer.emit_all("while", operands, kinds, "", [(kinds, goes_on), (kinds, step)])[: len(start)]


WRITERS: dict[str, Callable[[Writer, OpNode], list[Value]]] = {
    "higher_order.cond": _cond,
    "higher_order.while_loop": _while_loop,
}


def _truth(writer: Writer, value: Value) -> Value:
    return writer.reshape(writer.convert(value, "bool"), ())
