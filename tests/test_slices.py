"""Dependencies: orders, slices, and subgraphs that compute the same as the whole."""

import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import catalogue
from tests.graphs import chain, mlp, tensor
from tests.proof import captured, captured_entry, module
from torch_ir import IR, GraphError, IRExecutor, OpNode
from torch_ir.analysis import ancestors, descendants, slice_between, subgraph, topological_order
from torch_ir.ir.regroup.functions import outline


def diamond() -> IR:
    """x -> a -> (b, c) -> d, and y -> e beside it; d reads e."""
    names = {"a": ["x"], "b": ["a"], "c": ["a"], "e": ["y"], "d": ["b", "c", "e"]}
    made = {name: tensor(name, 2) for name in ("x", "y", *names)}
    nodes = [OpNode(name, "my.op", [made[read] for read in reads], [made[name]]) for name, reads in names.items()]
    return IR(nodes, [made["x"], made["y"]], [made["d"]])


def names(nodes: list[OpNode]) -> str:
    return "".join(node.name for node in nodes)


# -- asking -----------------------------------------------------------------------------------------------------------


def test_what_a_tensor_depends_on() -> None:
    """All the way back, or as far as the tensors at which it stops."""
    ir = diamond()
    assert names(ancestors(ir, ["d"])) == "abced"
    assert names(ancestors(ir, ["b", ir.node("c").output])) == "abc"
    assert names(ancestors(ir, ["d"], stop=["a", "e"])) == "bcd"
    assert ancestors(ir, ["x"]) == []


def test_what_depends_on_a_tensor() -> None:
    ir = diamond()
    assert names(descendants(ir, ["a"])) == "bcd"
    assert names(descendants(ir, ["y"])) == "ed"
    assert descendants(ir, ["d"]) == []


def test_what_lies_between() -> None:
    """Nodes on a path from an input to an output; nodes that only join it are not included."""
    ir = diamond()
    assert names(slice_between(ir, ["x"], ["d"])) == "abcd"
    assert names(slice_between(ir, ["a"], ["b"])) == "b"
    assert slice_between(ir, ["y"], ["b"]) == []
    assert names(slice_between(ir, ["x", "a"], ["d"])) == "bcd"  # existing inputs need not be created


def test_a_call_is_one_node() -> None:
    ir = mlp()
    outline(ir, ir.nodes[:2], "front")
    assert [node.op_type for node in ancestors(ir, ["linear_1"])] == ["call", "aten.linear.default"]


def test_a_tensor_that_is_not_there() -> None:
    with pytest.raises(GraphError, match="unknown tensor 'reluu'; did you mean 'relu'"):
        ancestors(mlp(), ["reluu"])


# -- orders -----------------------------------------------------------------------------------------------------------


def test_an_order_that_is_one_stays() -> None:
    """And of nodes in any order, each moves no further than it must."""
    a, b, c, e, d = diamond().nodes
    assert topological_order([a, b, c, e, d]) == [a, b, c, e, d]
    assert topological_order([d, c, e, b, a]) == [e, a, c, b, d]
    assert topological_order([d, b, b]) == [b, d]  # each once; others already exist


@pytest.mark.parametrize("name", ["gpt", "inception", "resnet18"])
def test_every_node_comes_after_those_it_reads(name: str) -> None:
    ir = captured_entry(name)
    shuffled = random.Random(0).sample(ir.nodes, len(ir.nodes))
    assert shuffled != ir.nodes
    ir.nodes = topological_order(shuffled)
    ir.check()


def test_a_circle_is_named() -> None:
    ir = chain("aten.relu.default", "aten.neg.default", "aten.abs.default")
    ir.nodes[0].inputs = [ir.nodes[2].output]
    with pytest.raises(GraphError, match="cycle: 'relu' -> 'neg' -> 'abs' -> 'relu'"):
        topological_order(ir.nodes)


# -- cutting ----------------------------------------------------------------------------------------------------------


def values_of(ir: IR, weights: Any, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Every value of a run, by name."""
    seen = {tensor.name: value for tensor, value in zip(ir.graph_inputs, inputs, strict=True)}
    IRExecutor(ir, weights, watch=lambda tensor, value, sizes: seen.update({tensor.name: value}))(*inputs)
    return seen


@pytest.mark.parametrize("name", ["convnext", "gpt", "mobilenet_v2"])
def test_a_part_computes_what_the_whole_computes(name: str) -> None:
    """Cut at a third and at two thirds; the state dict is that of the whole."""
    entry = catalogue.find(name)
    model = entry.build().eval()
    ir = captured(model, *entry.inputs(), kwargs=entry.kwargs())
    values = values_of(ir, model.state_dict(), tuple(entry.inputs()))
    last = ir.nodes[len(ir.nodes) * 2 // 3].outputs[0]
    made_first = {tensor for node in ir.nodes[: len(ir.nodes) // 3] for tensor in node.outputs}
    rest = [node for node in ancestors(ir, [last]) if node.outputs[0] not in made_first]
    cut = [t for t in dict.fromkeys(t for node in rest for t in node.inputs) if t in {*made_first, *ir.graph_inputs}]
    part = subgraph(ir, cut, [last])
    assert 0 < len(part.nodes) < len(ir.nodes)
    assert {param.key for param in part.params} < {param.key for param in ir.params}
    used = {key: value for key, value in model.state_dict().items() if key in {p.key for p in part.params}}
    (result,) = IRExecutor(IR.from_json(part.to_json()), used).execute(tuple(values[t.name] for t in cut))
    assert torch.equal(result, values[last.name])


def test_sizes_come_along() -> None:
    """A size is read from an input of the part; unused sizes are dropped."""
    model = module(lambda self, x, y: (self.a(x).relu() * 2, y + 1), a=nn.Linear(4, 3))
    shapes = ({0: Dim("batch", max=9)}, {0: Dim("other")})
    ir = captured(model, torch.randn(5, 4), torch.randn(6), dynamic_shapes=shapes)
    part = subgraph(ir, ["relu"], [ir.graph_outputs[0]])
    assert list(part.symbols) == ["batch"]
    assert (part.symbols["batch"].tensor, part.symbols["batch"].max) == (part.graph_inputs[0], 9)
    (result,) = IRExecutor(part, {}).execute((torch.ones(7, 3),))
    assert result.equal(torch.full((7, 3), 2.0))


def test_functions_come_along() -> None:
    ir = mlp()
    outline(ir, ir.nodes[:2], "front")
    part = subgraph(ir, ["x"], ["relu"])
    assert list(part.functions) == ["front"]
    assert len(part.nodes) == 1
    assert len(ir.functions) == len(ir.nodes) - 1 == 1  # the whole is as it was


def test_a_part_needs_all_that_it_reads() -> None:
    with pytest.raises(GraphError, match="the outputs also depend on 'y', which is not among the inputs"):
        subgraph(diamond(), ["x"], ["d"])
    model = module(lambda self, x, y: torch.ones(x.shape[0]) * y)
    ir = captured(model, torch.randn(5), torch.randn(()), dynamic_shapes=({0: Dim("batch")}, None))
    with pytest.raises(GraphError, match="no input of the subgraph determines the size 'batch'; choose inputs that do"):
        subgraph(ir, ["y"], ir.graph_outputs)


def test_a_weight_can_become_an_input() -> None:
    part = subgraph(mlp(), ["x", "p_fc1_weight"], ["linear"])
    assert [tensor.name for tensor in part.graph_inputs] == ["x", "p_fc1_weight"]
    assert [param.name for param in part.params] == ["p_fc1_bias"]
    assert part.graph_inputs[1].param is None


def test_no_torch_is_needed() -> None:
    program = (
        "import sys; from torch_ir.analysis import subgraph, topological_order; from tests.graphs import mlp; "
        "topological_order(subgraph(mlp(), ['relu'], ['linear_1']).nodes); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
