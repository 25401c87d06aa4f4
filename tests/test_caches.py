"""Caches: what they are keyed by cannot change, and they keep no graph alive."""

import ast
import gc
import re
import weakref

import torch
from torch import nn

from tests.command_line import ROOT
from tests.graphs import tensor
from tests.proof import captured
from torch_ir import OpNode, cost
from torch_ir.analysis.cost_model.flop_formulas import macs

# Types whose objects may change, or hold a graph or a model.
CHANGEABLE = {
    "IR", "OpNode", "TensorMeta", "Module", "Tensor", "dict", "list", "set", "Mapping", "Sequence", "Iterable", "Graph",
    "GraphModule", "Node", "Knowledge",
}  # fmt: skip


def _is_cache(decorator: ast.expr) -> bool:
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")) in ("lru_cache", "cache")


def test_no_cache_of_the_process_is_keyed_by_what_may_change() -> None:
    """`functools.cache` compares arguments, and nodes, graphs and modules are equal to themselves after any change."""
    wrong = []
    for path in sorted((ROOT / "torch_ir").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef) or not any(map(_is_cache, function.decorator_list)):
                continue
            arguments = function.args
            for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
                kind = ast.unparse(argument.annotation) if argument.annotation else ""
                words = set() if kind.startswith("type[") else set(re.findall(r"\w+", kind))
                if argument.arg == "self" or words & CHANGEABLE:
                    wrong.append(f"{path.name}:{function.lineno} {function.name}({argument.arg})")
    assert not wrong


def test_multiply_adds_follow_the_inputs_of_a_node() -> None:
    """A node that reads other tensors than before costs what it costs now."""
    x, w, made = tensor("x", 4, 4), tensor("w", 4, 4), tensor("mm", 4, 4)
    node = OpNode("mm", "aten.mm.default", [x, w], [made], args=["self", "mat2"])
    assert macs(node) == 4 * 4 * 4
    node.inputs = (tensor("y", 4, 100), tensor("v", 100, 4))
    assert macs(node) == 4 * 100 * 4


def test_a_graph_is_freed_after_its_cost_is_known() -> None:
    """No cache holds its nodes."""
    ir = captured(nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval(), torch.randn(2, 4))
    assert cost(ir).flops == 2 * 2 * 4 * 8
    held = weakref.ref(ir)
    del ir
    gc.collect()
    assert held() is None
