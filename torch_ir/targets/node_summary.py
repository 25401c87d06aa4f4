"""Describe a node in one short line: `Conv2d C3 N64 K7x7 S2x2 P3x3 D1x1 G1`."""

from __future__ import annotations

import re
from typing import Any

from torch_ir.ir import FunctionRef, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.text.printer import print_value, shape_text

# `{stride}` is an attribute, `{weight[0]}` and `{weight[2:]}` are sizes, `{input#}` is the number of spatial dimensions
_CONV = "K{weight[2:]} S{stride} P{padding} D{dilation} G{groups}"
_POOL = "K{kernel_size} S{stride} P{padding}"
_LINES = {
    **{f"aten.conv{n}d": f"Conv{n}d C{{input[{-1 - n}]}} N{{weight[0]}} {_CONV}" for n in (1, 2, 3)},
    **{
        f"aten.conv_transpose{n}d": f"ConvTranspose{n}d C{{weight[0]}} N{{output[{-1 - n}]}} {_CONV}" for n in (1, 2, 3)
    },
    **{f"aten.max_pool{n}d": f"MaxPool{n}d {_POOL} D{{dilation}}" for n in (1, 2, 3)},
    **{f"aten.avg_pool{n}d": f"AvgPool{n}d {_POOL}" for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d": f"AdaptiveAvgPool{n}d O{{output_size}}" for n in (1, 2, 3)},
    "aten.batch_norm": "BatchNorm{input#}d N{input[1]} eps {eps} momentum {momentum}",
    "aten.layer_norm": "LayerNorm N{normalized_shape} eps {eps}",
    "aten.group_norm": "GroupNorm N{input[1]} G{num_groups} eps {eps}",
    "aten.rms_norm": "RMSNorm N{normalized_shape} eps {eps}",
    "aten.linear": "Linear C{weight[1]} N{weight[0]}",
    "aten.embedding": "Embedding V{weight[0]} N{weight[1]}",
    "aten.relu": "ReLU",
    "aten.gelu": "GELU",
    "aten.silu": "SiLU",
    "aten.sigmoid": "Sigmoid",
    "aten.tanh": "Tanh",
    "aten.softmax": "Softmax dim {dim}",
    "aten.dropout": "Dropout p {p}",
}
_FIELD = re.compile(r"\{(\w+)(#|\[(-?\d+)(:?)\])?\}")


def describe(node: OpNode) -> str:
    """Return the layer and its sizes for common operators; else operator, attributes and shapes.

    Attributes that are None, False or empty are omitted.
    """
    base = base_name(node.op_type)
    try:
        return _FIELD.sub(lambda found: _field(node, found), _LINES[base])
    except (KeyError, IndexError):  # no template, or the call lacks an argument of it
        return _plain(node)


def _field(node: OpNode, found: re.Match[str]) -> str:
    name, part, index, rest = found.groups()
    value = node.outputs[0] if name == "output" else node[name]
    if not part:
        # the default stride of a pool is its kernel size
        return _sizes(node["kernel_size"] if name == "stride" and value == [] else value)
    if not isinstance(value, TensorMeta):
        raise KeyError(name)
    if part == "#":
        return str(max(1, len(value.shape) - 2))
    return _sizes(value.shape[int(index) :] if rest else value.shape[int(index)])


def _sizes(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _plain(node: OpNode) -> str:
    attrs = [
        f"{name} {print_value(value)}"
        for name, value in node.attrs.items()
        if value is not None and value is not False and value != [] and not isinstance(value, FunctionRef)
    ]
    data = [tensor for tensor in node.inputs if tensor.param is None]
    return " ".join([node.op_type, *attrs, *map(shape_text, data), "->", *map(shape_text, node.outputs)])
