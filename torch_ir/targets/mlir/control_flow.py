"""Constructs of the dialect that are not operators: branches, loops and assertions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch_ir.errors import ConversionError
from torch_ir.escaping import in_mlir
from torch_ir.ir import Expr, OpNode
from torch_ir.targets.mlir.numbers import BOOL, INT, Value
from torch_ir.targets.mlir.syntax import torch_type

if TYPE_CHECKING:
    from torch_ir.targets.mlir.torch_dialect import Writer

_FOR_EVER = 2**63 - 1  # trip count limit of a loop


def _cond(writer: Writer, node: OpNode) -> list[Value]:
    condition = _truth(writer, writer.reads(node, "pred")[0])
    operands = writer.reads(node, "operands.")
    made = [writer.new(tensor) for tensor in node.outputs]
    types = ", ".join(value.type for value in made)
    writer.open(f"{', '.join(value.name for value in made)} = torch.prim.If {condition.name} -> ({types}) {{")
    for function, end in (("true_fn", "} else {"), ("false_fn", "}")):
        given = _like(writer, writer.inside(writer.ir.functions[node.attrs[function]], operands), made)
        writer.write(f"torch.prim.If.yield {', '.join(value.name for value in given)} : {types}")
        writer.close(end)
    return made


def _while_loop(writer: Writer, node: OpNode) -> list[Value]:
    is_wanted, body = (writer.ir.functions[node.attrs[name]] for name in ("cond_fn", "body_fn"))
    start, others = writer.reads(node, "carried_inputs."), writer.reads(node, "additional_inputs.")
    first = _truth(writer, writer.inside(is_wanted, [*start, *others])[0])
    made = [writer.new(tensor) for tensor in node.outputs]
    carried = [Value(writer.name(f"{tensor.name}.carried"), torch_type(tensor)) for tensor in node.outputs]
    types = ", ".join(value.type for value in made)
    begun = ", ".join(value.name for value in _like(writer, start, made))
    left = ", ".join(value.name for value in made)
    most = writer.constant(_FOR_EVER).name
    label = ", ".join(f"{value.name}: {value.type}" for value in [Value(writer.name("round"), INT), *carried])
    writer.open(f"{left} = torch.prim.Loop {most}, {first.name}, init({begun}) {{", [f"^bb0({label}):"])
    given = _like(writer, writer.inside(body, [*carried, *others]), made)
    again = _truth(writer, writer.inside(is_wanted, [*given, *others])[0])
    names = ", ".join(value.name for value in given)
    writer.write(f"torch.prim.Loop.condition {again.name}, iter({names} : {types})")
    writer.close(f"}} : ({INT}, {BOOL}, {types}) -> ({types})")
    return made


def _assertion(writer: Writer, node: OpNode) -> list[Value]:
    condition = node.attrs["self"]
    if isinstance(condition, Expr):
        holds = writer.sizes.of(condition)
        writer.write(f"torch.runtime.assert {holds.name}, {in_mlir(node.attrs['assert_msg'])}")
    elif not condition:
        raise ConversionError(f"{node!r} asserts a condition that is always false")
    return []


WRITERS: dict[str, Callable[[Writer, OpNode], list[Value]]] = {
    "higher_order.cond": _cond,
    "higher_order.while_loop": _while_loop,
    "aten._assert_scalar.default": _assertion,
}


def _truth(writer: Writer, value: Value) -> Value:
    """Convert a tensor of one element to a bool."""
    return value if value.type == BOOL else writer.compute("torch.aten.Bool.Tensor", [value], BOOL)


def _like(writer: Writer, values: Sequence[Value], wanted: Sequence[Value]) -> list[Value]:
    """Cast values to types with the same static sizes as others."""
    return [_cast(writer, *pair) for pair in zip(values, wanted, strict=True)]


def _cast(writer: Writer, value: Value, wanted: Value) -> Value:
    if value.type == wanted.type:
        return value
    made = Value(writer.name("cast"), wanted.type)
    writer.write(f"{made.name} = torch.tensor_static_info_cast {value.name} : {value.type} to {made.type}")
    return made
