"""Layers of a graph for simulators of accelerators: convolutions and matrix products, each as a nest of loops.

A convolution has the loops B (batch), G (groups), K (output channels of a group), C (input channels of a group), OY,
OX, FY and FX; a matrix product has G (independent products), B (rows), K (columns) and C (the contracted dimension).
Attention is two products. Other operators with multiply-adds, such as recurrent layers and transposed convolutions,
have no nest and are listed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_ir.analysis import cost
from torch_ir.errors import INVALID_ARGUMENTS, GraphError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.regroup.functions import inline_all
from torch_ir.ir.sizes.expressions import names_in


@dataclass(frozen=True)
class Layer:
    """A convolution (`is_conv`) or a matrix product; the sources are the numbers of layers that its operands come from.

    A source is None for weights and inputs of the model. `bits` are those of an element of input, weight and output.
    """

    name: str
    loops: Mapping[str, int]
    bits: tuple[int, int, int]
    sources: tuple[int | None, int | None] = (None, None)  # of input and weight
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)

    @property
    def is_conv(self) -> bool:
        return "FX" in self.loops

    @property
    def macs(self) -> int:
        return math.prod(self.loops.values())

    def padded_input(self, axis: int) -> int:
        """Return the height (axis 0) or width of the input with its padding, as far as the filter reads it."""
        outputs, taps = self.loops[("OY", "OX")[axis]], self.loops[("FY", "FX")[axis]]
        return (outputs - 1) * self.stride[axis] + self.dilation[axis] * (taps - 1) + 1


@dataclass(frozen=True)
class LayerTable:
    """The layers in the order in which they run, and the operators with multiply-adds that are not among them."""

    layers: tuple[Layer, ...]
    left_out: Mapping[str, int]


def layers_of(ir: IR, sizes: Mapping[str, int] | None) -> LayerTable:
    """Return the layers of a graph at these sizes; calls are inlined, those of fused operators too."""
    flat = ir.clone()
    inline_all(flat)
    layers: list[Layer] = []
    left_out: dict[str, int] = {}
    made_by: dict[str, int] = {}  # tensor -> the last layer that it depends on
    for row in cost(flat, sizes).per_run.nodes:
        node = row.node
        before = max((made_by[tensor.name] for tensor in node.inputs if tensor.name in made_by), default=None)
        if row.macs != 0:
            nests = _nests(node, made_by, len(layers))
            if sum(layer.macs for layer in nests) == row.macs:
                layers += nests
                before = len(layers) - 1
            else:
                left_out[node.op_type] = left_out.get(node.op_type, 0) + 1
        if before is not None:
            made_by.update((tensor.name, before) for tensor in node.outputs)
    return LayerTable(tuple(layers), left_out)


def _shape(node: OpNode, tensor: TensorMeta) -> list[int]:
    found = [dim for dim in tensor.shape if isinstance(dim, int)]
    if len(found) < len(tensor.shape):
        sizes = ", ".join(sorted({name for dim in tensor.shape for name in names_in(dim)}))
        raise GraphError(f"the loops of {node.name!r:.80} depend on {sizes}; a layer needs numbers (sizes=, or --dim)")
    return found


def _nests(node: OpNode, made_by: Mapping[str, int], number: int) -> list[Layer]:
    """Return the layers of a node; none if its operator has no nest here."""
    make = _MAKERS.get(base_name(node.op_type))
    if make is None or node.attrs.get("transposed") is True:
        return []
    try:
        return list(make(node, made_by, number))
    except INVALID_ARGUMENTS:
        raise GraphError(f"{node!r} does not match the arguments of its operator, so it has no loops") from None


def _convolution(node: OpNode, made_by: Mapping[str, int], number: int) -> Iterator[Layer]:
    weight, output = _shape(node, node["weight"]), _shape(node, node.outputs[0])
    spatial = len(weight) - 2
    if spatial > 2:
        return
    batch = math.prod(output[: -spatial - 1])
    groups = node["groups"]
    places, taps = ([1] * (2 - spatial) + list(shape[-spatial:]) for shape in (output, weight))
    loops = {"B": batch, "G": groups, "K": weight[0] // groups, "C": weight[1]}
    loops |= {"OY": places[0], "OX": places[1], "FY": taps[0], "FX": taps[1]}
    yield Layer(
        node.name,
        loops,
        _bits(node, "input", "weight"),
        _sources(node, made_by, "input", "weight"),
        _pair(node["stride"], spatial),
        _pair(node["dilation"], spatial),
    )


def _pair(values: int | Sequence[int], spatial: int) -> tuple[int, int]:
    """Return a value for each of two axes; torch repeats a single one."""
    listed = [values] if isinstance(values, int) else list(values)
    full = listed * spatial if len(listed) == 1 else listed
    first, second = [1] * (2 - len(full)) + full
    return first, second


def _product(left: str, right: str, *, is_transposed: bool = False) -> Callable[..., Iterator[Layer]]:
    """Return the maker for `left @ right`; with `is_transposed`, the right operand has its columns as rows."""

    def make(node: OpNode, made_by: Mapping[str, int], number: int) -> Iterator[Layer]:
        rows, columns, output = (_shape(node, each) for each in (node[left], node[right], node.outputs[0]))
        depth = rows[-1]
        width = 1 if len(columns) == 1 else columns[0 if is_transposed else -1]
        count = math.prod(output[:-2]) if len(columns) > 2 and len(rows) > 1 else 1
        height = math.prod(output) // max(count * width, 1)
        bits, sources = _bits(node, left, right), _sources(node, made_by, left, right)
        yield Layer(node.name, {"G": count, "B": height, "K": width, "C": depth}, bits, sources)

    return make


def _attention(node: OpNode, made_by: Mapping[str, int], number: int) -> Iterator[Layer]:
    query, key, value = (_shape(node, node[name]) for name in ("query", "key", "value"))
    count = math.prod(query[:-2])
    scores = {"G": count, "B": query[-2], "K": key[-2], "C": query[-1]}
    sources = _sources(node, made_by, "query", "key")
    yield Layer(f"{node.name}_scores", scores, _bits(node, "query", "key"), sources)
    mix = {"G": count, "B": query[-2], "K": value[-1], "C": key[-2]}
    sources = number, made_by.get(node["value"].name)
    yield Layer(f"{node.name}_values", mix, _bits(node, "query", "value"), sources)


def _bits(node: OpNode, left: str, right: str) -> tuple[int, int, int]:
    first, second, third = (8 * DTYPES[each.dtype] for each in (node[left], node[right], node.outputs[0]))
    return first, second, third


def _sources(node: OpNode, made_by: Mapping[str, int], left: str, right: str) -> tuple[int | None, int | None]:
    return made_by.get(node[left].name), made_by.get(node[right].name)


_MAKERS: dict[str, Callable[[OpNode, Mapping[str, int], int], Iterator[Layer]]] = {
    "aten.conv1d": _convolution,
    "aten.conv2d": _convolution,
    "aten.convolution": _convolution,
    "aten.linear": _product("input", "weight", is_transposed=True),
    "aten.mm": _product("self", "mat2"),
    "aten.bmm": _product("self", "mat2"),
    "aten.matmul": _product("self", "other"),
    "aten.addmm": _product("mat1", "mat2"),
    "aten.baddbmm": _product("batch1", "batch2"),
    "aten.scaled_dot_product_attention": _attention,
}


def checked_layers(ir: IR, sizes: Mapping[str, int] | None) -> LayerTable:
    """Return the layers; raise GraphError if there are none."""
    table = layers_of(ir, sizes)
    if not table.layers:
        raise GraphError("the graph has no convolution or matrix product, so there is no layer to write")
    return table


def record_of(table: LayerTable) -> dict[str, Any]:
    """Return what was written, as JSON values."""
    macs = sum(layer.macs for layer in table.layers)
    return {"layers": len(table.layers), "macs": macs, "left_out": dict(table.left_out)}
