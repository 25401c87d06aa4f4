"""Matching of nodes: in new versions of a model, after optimisation, in another order, and in random graphs."""

import json
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from tests.graphs import chain, everything, mlp, tensor
from tests.proof import captured
from tests.random_irs.draft import random_ir
from tests.test_blocks import pair
from torch_ir import IR, Diff, OpNode, diff, optimize
from torch_ir.analysis.graph_diff.diff_text import diff_lines
from torch_ir.errors import GraphError

X = torch.ones(2, 8)


def lines(one: IR, other: IR) -> list[str]:
    """Return the lines of the report, without empty ones."""
    return [line for line in diff_lines(diff(one, other)) if line]


def names(found: Diff, status: str) -> list[str]:
    return [row.node.name for row in found.nodes if row.status == status]


class Residual(nn.Module):
    """A block that names its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + inner


class Stack(nn.Module):
    """Blocks of a model that keep their names when others go."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): Residual() for number in numbers})
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        scores: torch.Tensor = self.head(x)
        return scores


def graph(model: nn.Module, x: torch.Tensor = X) -> IR:
    return captured(model.eval(), x)


def sequence(*layers: nn.Module) -> IR:
    return graph(nn.Sequential(*layers))


BASE = (nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_a_layer_is_inserted() -> None:
    """The following layers are the same, although their numbers and weight keys differ."""
    new = (nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    assert lines(sequence(*BASE), sequence(*new)) == [
        "2 added, 1 changed, 2 same",
        "@@ signature @@",
        "~ weight '2.weight': float32[4, 16] / float32[16, 16]",
        "~ weight '2.bias': float32[4] / float32[16]",
        "+ weight '4.weight'",
        "+ weight '4.bias'",
        "@@ 2 @@",
        "+ linear_1: float32[2, 16] = aten.linear.default(input=relu, weight=p_2_weight, bias=p_2_bias)",
        "@@ 3 @@",
        "+ relu_1: float32[2, 16] = aten.relu.default(self=linear_1)",
        "@@ 4 @@",
        "~ linear_1 -> linear_2, aten.linear.default: input is 'relu' / 'relu_1'; "
        "weight is 'p_2_weight' / 'p_4_weight'; bias is 'p_2_bias' / 'p_4_bias'",
    ]
    ignored = diff(sequence(*BASE), sequence(*new), ignore=["weights"])
    assert [row.details for row in ignored.nodes if row.status == "changed"] == [("input is 'relu' / 'relu_1'",)]


def test_a_layer_is_wider() -> None:
    """A layer with another output shape is changed; the layer after it is the same."""
    assert lines(sequence(*BASE), sequence(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))) == [
        "2 changed, 1 same",
        "@@ signature @@",
        "~ weight '0.weight': float32[16, 8] / float32[32, 8]",
        "~ weight '0.bias': float32[16] / float32[32]",
        "~ weight '2.weight': float32[4, 16] / float32[4, 32]",
        "@@ 0 @@",
        "~ linear, aten.linear.default: returns float32[2, 16] / float32[2, 32]",
        "@@ 1 @@",
        "~ relu, aten.relu.default: returns float32[2, 16] / float32[2, 32]",
    ]


def test_another_activation() -> None:
    assert lines(sequence(*BASE), sequence(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 4))) == [
        "1 added, 1 removed, 2 same",
        "@@ 1 @@",
        "- relu: float32[2, 16] = aten.relu.default(self=linear)",
        "+ sigmoid: float32[2, 16] = aten.sigmoid.default(self=linear)",
    ]


def test_blocks_go() -> None:
    """The blocks that went are removed whole, and nothing else is: those between them are the same."""
    found = diff(graph(Stack(range(6))), graph(Stack([0, 2, 3, 5])))
    gone = {row.node.origin.module.split(".")[1] for row in found.nodes if row.status == "removed"}
    assert gone == {"1", "4"}
    assert names(found, "added") == []
    assert len(names(found, "removed")) == 10
    assert {row.node.origin.module for row in found.nodes if row.status == "changed"} == {
        "layers.2.norm", "layers.2", "layers.5.norm", "layers.5"
    }  # fmt: skip


def test_other_sizes_and_a_block_less() -> None:
    """Shapes that differ everywhere do not hide which block went."""
    found = diff(graph(Stack(range(4))), graph(Stack([0, 1, 3]), torch.ones(5, 8)))
    assert {row.node.origin.module.split(".")[1] for row in found.nodes if row.status == "removed"} == {"2"}
    assert found.summary == {"added": 0, "removed": 5, "changed": 16, "renamed": 0, "same": 0}


def test_batch_norm_is_folded_and_an_activation_fused() -> None:
    """Nodes that passes created name the nodes that they replace; both sides are shown together."""
    ir = graph(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.ones(1, 3, 8, 8))
    better, _ = optimize(ir, "full")
    found = diff(ir, better)
    (group,) = found.replacements
    assert group.first == ("conv2d", "batch_norm", "relu")
    assert group.second == tuple(node.name for node in better.nodes)
    assert names(found, "removed") == ["conv2d", "batch_norm", "relu"]
    assert lines(ir, better)[1] == f"@@ 0, 1, 2: 3 -> {len(better.nodes)} nodes @@"
    assert "replaces conv2d, batch_norm" in found.nodes[-2].details[0]
    assert all("now in relu" in row.details[0] for row in found.nodes if row.node.name == "relu" and row.first)


class Attention(nn.Module):
    """One head, whose projections may come in any order."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.order = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: dict[str, torch.Tensor] = {name: getattr(self, name)(x) for name in self.order}
        return torch.softmax(made["q"] @ made["k"].T, -1) @ made["v"]


def test_whoever_reads_what_stands_for_several_nodes_is_the_same() -> None:
    """conv -> batch_norm -> relu  becomes  conv' -> relu: the input of relu is unchanged."""
    ir = graph(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.ones(1, 3, 8, 8))
    found = diff(ir, optimize(ir, passes=["fold-batch-norm"])[0])
    assert names(found, "changed") == ["conv2d_1"]
    assert names(found, "removed") == ["batch_norm"]
    assert names(found, "same") == ["relu"]


def test_projections_are_merged() -> None:
    ir = graph(Attention("qkv"))
    found = diff(ir, optimize(ir, "full")[0])
    merged = [group for group in found.replacements if len(group.first) >= 3]
    assert [group.first[:3] for group in merged] == [("linear", "linear_1", "linear_2")]


def test_reshapes_go() -> None:
    """A node that is left out is removed, and its reader reads past it."""
    ir = sequence(nn.Linear(8, 8), nn.Flatten(), nn.ReLU())
    assert lines(ir, optimize(ir, "clean")[0]) == [
        "1 removed, 1 changed, 1 same",
        "@@ 1 @@",
        "- flatten: float32[2, 8] = aten.flatten.using_ints(self=linear, start_dim=1, end_dim=-1)",
        "@@ 2 @@",
        "~ relu, aten.relu.default: self is 'flatten' / 'linear'",
    ]


def test_an_operator_is_decomposed() -> None:
    ir = sequence(nn.Linear(8, 8), nn.SiLU())
    found = diff(ir, optimize(ir, passes=["decompose"])[0])
    assert [group.first for group in found.replacements if "silu" in group.first]
    assert "linear" not in names(found, "added")


def test_the_order_of_nodes_that_do_not_depend_on_each_other() -> None:
    """All nodes are the same; that the order differs is one line, which can be ignored."""
    one, other = graph(Attention("qkv")), graph(Attention("vkq"))
    found = diff(one, other)
    assert {row.status for row in found.nodes} == {"same", "renamed"}
    assert [line for line in found.differences if "weights" not in line] == [
        "nodes come in another order: linear_2, linear_1"
    ]
    assert diff(one, other, ignore=["order"]).is_equal
    with pytest.raises(GraphError, match="cannot be ignored, only order, weights"):
        diff(one, other, ignore=["names"])


def test_the_order_and_an_attribute() -> None:
    """Nodes that moved are found even if something else differs."""
    one, other = graph(Attention("qkv")), graph(Attention("vkq"))
    other.node("softmax").attrs["dim"] = 0
    assert names(diff(one, other), "changed") == ["softmax"]


def test_a_call_of_a_function_that_differs_has_changed() -> None:
    one, other = pair().fold_blocks(), pair().fold_blocks()
    other.functions["Layer"].nodes[1].attrs["alpha"] = 2
    found = diff(one, other)
    assert [row.details for row in found.nodes] == [("function 'Layer' differs",)] * 2
    assert found.functions["Layer", "Layer"].marks()[0] == {"mul_0": "same", "add_0": "changed"}
    assert [line for line in diff_lines(found) if line][-3:] == [
        "function Layer: 1 changed, 1 same",
        "@@ (model) @@",
        "~ add_0, aten.add.Tensor: alpha 1 / 2",
    ]


def test_fused_operators_are_operators() -> None:
    """A graph with fused nodes is not equal to its original, although it computes the same."""
    ir = mlp()
    fused, _ = optimize(ir, "full")
    assert any(node.op_type.startswith("fused.") for node in fused.nodes)
    assert not diff(ir, fused).is_equal
    assert diff(fused, fused.clone()).is_equal


def test_names_and_counterparts() -> None:
    one, other = chain("aten.neg.default", "aten.exp.default"), chain("aten.neg.default", "aten.exp.default")
    other.nodes[1].name = "e"
    found = diff(one, other)
    assert found.is_equal
    assert found.marks() == ({"neg": "same", "exp": "renamed"}, {"neg": "same", "e": "renamed"})
    assert found.counterparts() == {"neg": "neg", "exp": "e"}


SEEDS = range(60)


def _renamed(ir: IR) -> IR:
    copy = ir.clone()
    for number, made in enumerate(copy.tensors()):
        made.name = f"other {number}"
    for number, node in enumerate(copy.nodes):
        node.name = f"other {number}"
    return copy


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(seed: int) -> None:
    """Against itself all is the same, under other names all is renamed; marks cover every node."""
    ir = random_ir(seed)
    found = diff(ir, ir.clone(), ignore_origins=False)
    assert found.is_equal
    assert {row.status for row in found.nodes} <= {"same"}
    found = diff(ir, _renamed(ir))
    assert found.is_equal
    assert {row.status for row in found.nodes} <= {"renamed"}
    assert [*found.marks()[0]] == [node.name for node in ir.nodes]
    assert len(found.marks()[1]) == len(ir.nodes)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_changed_node_of_a_random_graph(seed: int) -> None:
    """An attribute more is found at the very node, and nowhere else."""
    ir = random_ir(seed)
    changed = ir.clone()
    if not changed.nodes:
        return
    node = random.Random(seed).choice(changed.nodes)
    node.attrs["new"] = 1
    found = diff(ir, changed)
    assert names(found, "changed") == [node.name]
    assert names(found, "same") == [other.name for other in changed.nodes if other is not node]


@pytest.mark.parametrize("seed", SEEDS)
def test_one_node_more_in_a_random_graph(seed: int) -> None:
    """It is the only one that was added; its readers have changed; seen from the other side, it was removed."""
    ir = random_ir(seed)
    more = ir.clone()
    rng = random.Random(seed)
    made = [tensor for node in more.nodes for tensor in node.outputs]
    if not made:
        return
    given = rng.choice(made)
    readers = {node.name for node in given.consumers if node is not more.returns}
    new = given.copy("a new tensor")
    given.replace_all_uses_with(new)
    producer = given.producer
    assert producer is not None
    node = OpNode("a new node", "aten.sinh.default", [given], [new], args=["self"])
    more.nodes.insert(more.nodes.index(producer) + 1, node)
    found, back = diff(ir, more), diff(more, ir)
    assert names(found, "added") == names(back, "removed") == ["a new node"]
    assert names(found, "removed") == names(back, "added") == []
    assert set(names(found, "changed")) == set(names(back, "changed")) == readers


@pytest.mark.parametrize("seed", SEEDS)
def test_both_directions(seed: int) -> None:
    """Additions in one direction are removals in the other, however much differs."""
    one, other = random_ir(seed), random_ir(seed)
    rng = random.Random(seed)
    for ir in (one, other):
        for node in rng.sample(ir.nodes, len(ir.nodes) // 3):
            node.op_type = rng.choice(["aten.sinh.default", "aten.cosh.default", node.op_type])
            node.attrs["new"] = rng.randrange(3)
    found, back = diff(one, other), diff(other, one)
    assert set(names(found, "added")) == set(names(back, "removed"))
    assert set(names(found, "removed")) == set(names(back, "added"))
    assert found.is_equal == back.is_equal
    for marks, ir in zip(found.marks(), (found.first, found.second), strict=True):
        assert marks.keys() == {node.name for node in ir.nodes}


def test_a_long_row_of_equal_nodes() -> None:
    """One more equal node is one added node, and a different one is found at its position."""
    row = ["aten.relu.default"] * 2000

    def ir(kinds: list[str]) -> IR:
        last = x = tensor("x", 2, 3)
        nodes = []
        for number, kind in enumerate(kinds):
            nodes.append(OpNode(f"n{number}", kind, [last], [tensor(f"n{number}", 2, 3)], args=["self"]))
            last = nodes[-1].output
        return IR(nodes, [x], [last])

    assert diff(ir(row), ir([*row, row[0]])).summary["added"] == 1
    found = diff(ir(row), ir([*row[:700], "aten.neg.default", *row[700:]]))
    assert names(found, "added") == ["n700"]
    assert names(found, "changed") == ["n701"]
    kinds = ["aten.relu.default", "aten.neg.default", "aten.exp.default"]
    drawn = [random.Random(0).choice(kinds) for _ in row]
    kept = [kind for number, kind in enumerate(drawn) if number % 50]
    assert diff(ir(drawn), ir(kept)).summary["removed"] <= 60


@pytest.mark.parametrize("make", [mlp, everything, pair])
def test_everything_can_be_written_as_json(make: Callable[[], IR]) -> None:
    record = json.loads(json.dumps(diff(make(), make()).to_dict()))
    assert record["is_equal"]
    assert [node["status"] for node in record["nodes"]] == ["same"] * len(make().nodes)
