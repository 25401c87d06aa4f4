"""Helpers for tests of targets: models as graphs, and targets with chosen handlers."""

import functools
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, nn

import catalogue
from torch_ir import IR, Lowered, Target, extract_ir, meta_init


def capture(model: nn.Module, *inputs: Tensor, **kwargs: Any) -> IR:
    return extract_ir(model.to("meta").eval(), tuple(x.to("meta") for x in inputs), kwargs=kwargs)


def accepting(*what: Any) -> Target:
    """Return a target that accepts all of these, and whose layers name their nodes."""
    target = Target("npu")
    target.lowers(*what)(lambda node: node.op_type)
    return target


def kinds(lowered: Lowered) -> list[str]:
    return [layer.kind for layer in lowered]


def graph_of(name: str) -> IR:
    return IR.from_json(_text_of(name))


@functools.cache
def _text_of(name: str) -> str:
    entry = catalogue.find(name)
    with meta_init():
        model = entry.build()
    given = pytree.tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, (entry.inputs(), entry.kwargs()))
    return extract_ir(model, given[0], kwargs=given[1]).to_json()


def assert_joined(lowered: Lowered) -> None:
    """Assert that every layer reads earlier values, no value is defined twice, and all outputs are defined."""
    made = {tensor.name for tensor in lowered.ir.graph_inputs}
    for layer in lowered:
        assert made.issuperset(layer.inputs)
        assert made.isdisjoint(layer.outputs)
        made.update(layer.outputs)
    assert made.issuperset(tensor.name for tensor in lowered.ir.graph_outputs if tensor.param is None)
