"""Fuse convolutions and linear layers with the sum and activation that follow, and gated layers.

fused.conv2d_relu    fused.conv2d_add_relu    fused.linear_gelu    fused.silu_mul    fused.silu_mlp
"""

from __future__ import annotations

from functools import partial

from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import CONVOLUTIONS, base_name
from torch_ir.passes.clamp_bounds import bounds_of
from torch_ir.passes.fuse.fused_calls import Group, fuse
from torch_ir.passes.fuse.match_variants import between, maker, orders
from torch_ir.passes.pass_registry import named_pass

_CONVOLUTIONS = tuple(name.removesuffix(".default") for name in CONVOLUTIONS)
LAYERS = (*_CONVOLUTIONS, "aten.linear", "aten.addmm")
ACTIVATIONS = tuple(
    f"aten.{name}"
    for name in (
        "relu", "relu6", "hardtanh", "clamp", "clamp_min", "leaky_relu", "elu", "silu", "gelu", "mish",
        "hardswish", "hardsigmoid", "sigmoid", "tanh",
    )
)  # fmt: skip
GATES = ("aten.silu", "aten.gelu", "aten.relu")


@named_pass("fuse-gates", fuses=True, may_raise=["peak"])
def fuse_gates(ir: IR, whole: bool = False) -> int:
    """Fuse an activation and the product with its gate; with `whole`, also the linear layers around them.

    before   silu(gate) * up                      linear(silu(linear(x, a)) * linear(x, b), c)
    after    fused.silu_mul(gate=gate, up=up)     fused.silu_mlp(input=x, gate=a, up=b, down=c)
    """
    return fuse(ir, [_gated_mlp, _gated] if whole else [_gated])


@named_pass("fuse-activations", fuses=True, may_raise=["peak"])
def fuse_activations(ir: IR) -> int:
    """Fuse a convolution or linear layer with its activation, and a convolution with a following sum too.

    before   relu(conv2d(x, weight, bias))                        relu(conv2d(x, weight, bias) + other)
    after    fused.conv2d_relu(input=x, weight=weight, ...)       fused.conv2d_add_relu(input=x, ..., other=other)
    """
    return fuse(ir, [_activated, partial(_summed, activation=None)])


def _gated(node: OpNode) -> Group | None:
    """activation(gate) * up"""
    if base_name(node.op_type) != "aten.mul":
        return None
    for active, up in orders(node):
        activation = maker(active, *GATES)
        if activation is None or not isinstance(up, TensorMeta) or up is active:
            continue
        if up.shape == active.shape == node.output.shape:
            reads = {"gate": activation["self"], "up": up}
            return Group(f"{_name(activation)}_mul", between(node, reads.values()), reads)
    return None


def _gated_mlp(node: OpNode) -> Group | None:
    """linear(activation(linear(x, a)) * linear(x, b), c)"""
    is_linear = base_name(node.op_type) == "aten.linear" and node["input"].producer is not None
    product = _gated(node["input"].producer) if is_linear else None
    if product is None:
        return None
    gate, up = (maker(tensor, "aten.linear") for tensor in product.reads.values())
    if gate is None or up is None or gate["input"] is not up["input"]:
        return None
    reads = {"input": gate["input"]}
    for name, layer in (("gate", gate), ("up", up), ("down", node)):
        reads |= {name: layer["weight"]} | ({f"{name}_bias": layer["bias"]} if layer["bias"] is not None else {})
    return Group(product.name.replace("_mul", "_mlp"), between(node, reads.values()), reads)


def _activated(node: OpNode) -> Group | None:
    """activation(layer) or activation(convolution + other)"""
    if base_name(node.op_type) not in ACTIVATIONS or len(node.inputs) != 1:
        return None
    made = node["self"]
    layer = maker(made, *LAYERS)
    if layer is not None:
        reads = _reads(layer)
        return Group(f"{_plain_name(layer)}_{_name(node)}", between(node, reads.values()), reads)
    return _summed(made.producer, node) if maker(made, "aten.add") is not None else None


def _summed(node: OpNode, activation: OpNode | None) -> Group | None:
    """convolution + other, and the activation of the sum if there is one"""
    if base_name(node.op_type) != "aten.add":
        return None
    for made, other in orders(node):
        layer = maker(made, *_CONVOLUTIONS)
        is_alone = layer is not None and len(made._uses) == 1 and made is not other
        if layer is not None and is_alone and isinstance(other, TensorMeta) and other.shape == made.shape:
            reads = {**_reads(layer), "other": other}
            name = f"{_plain_name(layer)}_add"
            name = name if activation is None else f"{name}_{_name(activation)}"
            return Group(name, between(activation or node, reads.values()), reads)
    return None


def _reads(layer: OpNode) -> dict[str, TensorMeta]:
    return dict(zip(layer.args, layer.inputs, strict=True))


def _plain_name(node: OpNode) -> str:
    return base_name(node.op_type).removeprefix("aten.")


def _name(activation: OpNode) -> str:
    """Return `gelu` and so on; a clamp at 0 is `relu`, one between 0 and 6 `relu6`."""
    bounds = bounds_of(activation)
    return "relu6" if bounds == (0, 6) else "relu" if bounds == (0, None) else _plain_name(activation)
