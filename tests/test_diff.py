"""Diff: graphs that differ only in names are equal, and every change is reported exactly."""

import random
from collections.abc import Callable

import pytest
import torch

from tests.adversarial.shapes import SHAPES
from tests.graphs import chain, everything, mlp, tensor, weight
from tests.proof import captured_entry
from tests.test_blocks import pair
from torch_ir import IR, OpNode, diff
from torch_ir.analysis.graph_diff.alignment import aligned
from torch_ir.ir import Expr, FunctionRef, Origin, Param, Slot, Symbol, TensorData
from torch_ir.ir.regroup.functions import outline


def renamed(ir: IR) -> IR:
    """The graph with a new name for every node, tensor and function."""
    copy = ir.clone()
    for number, made in enumerate(copy.tensors()):
        made.name = f"t{number}"
    for number, node in enumerate(copy.nodes):
        node.name = f"n{number}"
        node.attrs.update((key, FunctionRef(f"f_{v}")) for key, v in node.attrs.items() if isinstance(v, FunctionRef))
    copy.functions = {f"f_{name}": body for name, body in copy.functions.items()}
    copy.model_name = "Another"
    return copy.check()


@pytest.mark.parametrize("make", [mlp, everything, pair, lambda: pair().fold_blocks()])
def test_names_do_not_count(make: Callable[[], IR]) -> None:
    assert diff(make(), make(), ignore_origins=False).is_equal
    if make is not everything:  # one of its functions is an entry point, recognised by its name
        assert diff(make(), renamed(make())).differences == ()


def test_equal_graphs_say_so() -> None:
    assert str(diff(mlp(), mlp())) == "the graphs are equal"


CHANGES: dict[str, Callable[[IR], object]] = {
    "node 3, aten.add.Tensor: alpha 1 / 2": lambda ir: ir.nodes[3].attrs.update(alpha=2),
    "node 3, aten.add.Tensor: alpha 1 / 1.0": lambda ir: ir.nodes[3].attrs.update(alpha=1.0),
    "node 3, aten.add.Tensor: alpha 1 / True": lambda ir: ir.nodes[3].attrs.update(alpha=True),
    "node 3, aten.add.Tensor: alpha 1 / '1'": lambda ir: ir.nodes[3].attrs.update(alpha="1"),
    "node 3, aten.add.Tensor: alpha 1 / {1}": lambda ir: ir.nodes[3].attrs.update(alpha=Expr("1")),
    "node 3, aten.add.Tensor: alpha 1 / [1]": lambda ir: ir.nodes[3].attrs.update(alpha=[1]),
    "node 3, aten.add.Tensor: alpha 1 only in the first": lambda ir: ir.nodes[3].attrs.clear(),
    "node 3, aten.add.Tensor: out None only in the second": lambda ir: ir.nodes[3].attrs.update(out=None),
    "node 1, aten.add.Tensor: other is 'x' / 'mul_0'": lambda ir: setattr(
        ir.nodes[1], "inputs", [ir.nodes[0].output, ir.nodes[0].output]
    ),
    "node 0, aten.mul.Tensor: returns float32[2, 3] / float16[2, 3]": lambda ir: setattr(
        ir.nodes[0].output, "dtype", "float16"
    ),
    "node 0, aten.mul.Tensor: returns float32[2, 3] / float32[2, 3] with strides [1, 2]": lambda ir: setattr(
        ir.nodes[0].output, "stride", (1, 2)
    ),
    "input 0: float32[2, 3] / float32[2, 4]": lambda ir: setattr(ir.graph_inputs[0], "shape", (2, 4)),
    "output 0: 'add_1' / 'add_0'": lambda ir: setattr(ir, "graph_outputs", [ir.nodes[1].output]),
    "weight 'layers.1.w': a parameter / a buffer": lambda ir: setattr(
        ir.params[1], "param", Param(("layers.1.w",), "buffer")
    ),
    "weight 'layers.1.w': float32[3] / float32[1]": lambda ir: setattr(ir.params[1], "shape", (1,)),
    "weight 'layers.1.w': its values differ": lambda ir: setattr(
        ir.params[1], "param", Param(("layers.1.w",), "parameter", TensorData((3,), "float32", bytes(12)))
    ),
    "weights come in another order": lambda ir: ir.params.reverse(),
    "device: 'cpu' / 'cuda:0'": lambda ir: setattr(ir, "device", "cuda:0"),
    "constraints: [] / ['1 < 2']": lambda ir: ir.constraints.append("1 < 2"),
    "size batch '1 <= batch' only in the second": lambda ir: ir.symbols.update(
        batch=Symbol("batch", 1, None, ir.graph_inputs[0], 0)
    ),
    "function 'spare' only in the second": lambda ir: ir.functions.update(spare=mlp()),
    "0 / 1 tensors are changed": lambda ir: setattr(ir, "mutations", [(ir.graph_inputs[0], ir.nodes[1].output)]),
    "output_tree: Branch(kind='tuple', items=(Slot(0),), keys=(), type_name='') / Slot(0)": lambda ir: setattr(
        ir, "output_tree", Slot(0)
    ),
}


@pytest.mark.parametrize("line", CHANGES)
def test_one_change_is_one_line(line: str) -> None:
    """Each difference is reported, and nothing else."""
    changed = pair()
    CHANGES[line](changed)
    assert diff(pair(), changed).differences == (line,)
    assert len(diff(changed, pair()).differences) == 1


def test_a_node_more() -> None:
    """It is shown in full, and consumers that now read past it are named."""
    found = diff(
        chain("aten.neg.default", "aten.relu.default", "aten.exp.default"),
        chain("aten.neg.default", "aten.exp.default"),
    )
    assert found.differences == (
        "node 1: relu: float32[2, 3] = aten.relu.default(self=neg) only in the first",
        "node 2 / 1, aten.exp.default: self is 'relu' / 'neg'",
    )


def test_another_operator() -> None:
    """A replaced node is two lines; its consumers are not listed."""
    found = diff(
        *(chain("aten.neg.default", op, "aten.abs.default") for op in ("aten.exp.default", "aten.sin.default"))
    )
    assert found.differences == (
        "node 1: exp: float32[2, 3] = aten.exp.default(self=neg) only in the first",
        "node 1: sin: float32[2, 3] = aten.sin.default(self=neg) only in the second",
    )


def test_the_order_counts() -> None:
    one, other = (pair() for _ in range(2))
    other.nodes[1:1] = [
        free := OpNode("neg", "aten.neg.default", [other.graph_inputs[0]], [tensor("neg", 2, 3)], args=["self"])
    ]
    one.nodes.append(OpNode("neg", "aten.neg.default", [one.graph_inputs[0]], [tensor("neg", 2, 3)], args=["self"]))
    assert free in other.check().nodes
    assert not diff(one.check(), other).is_equal


def test_weights_are_told_by_their_keys() -> None:
    """The same shapes, but the layers have changed places."""
    swapped = pair()
    first, second = (node for node in swapped.nodes if node.op_type == "aten.mul.Tensor")
    first.inputs, second.inputs = (first.inputs[0], second.inputs[1]), (second.inputs[0], first.inputs[1])
    assert diff(pair(), swapped).differences == (
        "node 0, aten.mul.Tensor: other is 'w0' / 'w1'",
        "node 2, aten.mul.Tensor: other is 'w1' / 'w0'",
    )
    more = pair()
    more.params.append(weight("w2", 3))
    assert diff(pair(), more).differences == ("weight 'w2' only in the second",)


def test_origins_count_only_if_asked() -> None:
    moved = pair()
    moved.nodes[0].origin = Origin("layers.0.norm", 0, "Norm")
    moved.modules["layers.0.norm"] = "mylib.Norm"
    assert diff(pair(), moved).is_equal
    assert diff(pair(), moved, ignore_origins=False).differences == (
        "module layers.0.norm 'mylib.Norm' only in the second",
        "node 0, aten.mul.Tensor: comes from another module 'layers.0' / 'layers.0.norm', "
        "module_class 'Layer' / 'Norm'",
    )


def test_functions_are_compared_once_and_calls_without_a_look_inside() -> None:
    """Two calls of a body that differs in one node are one line, and a call with another argument is one."""
    one, other = pair().fold_blocks(), pair().fold_blocks()
    other.functions["Layer"].nodes[1].attrs["alpha"] = 2
    assert diff(one, other).differences == ("function 'Layer': node 1, aten.add.Tensor: alpha 1 / 2",)
    other = pair().fold_blocks()
    other.nodes[1].inputs = (other.graph_inputs[0], other.nodes[1].inputs[1])
    assert diff(one, other).differences == ("node 1, mylib.Layer: argument 0 is 'add_0' / 'x'",)


def test_branches_are_told_apart() -> None:
    """Two branches that are one function on one side, and two on the other, are compared both."""

    def steered(branches: list[str]) -> IR:
        x, made = tensor("x", 2, 3), tensor("made", 2, 3)
        functions = {name: chain(f"aten.{name}.default") for name in ("neg", "exp")}
        attrs = {"true_fn": FunctionRef(branches[0]), "false_fn": FunctionRef(branches[1])}
        node = OpNode("made", "higher_order.cond", [x], [made], attrs, args=["operands.0"])
        return IR([node], [x], [made], functions={name: functions[name] for name in set(branches)})

    assert diff(steered(["neg", "exp"]), steered(["neg", "exp"])).is_equal
    assert diff(steered(["neg", "neg"]), steered(["neg", "exp"])).differences == (
        "function 'neg' / 'exp': node 0: neg: float32[2, 3] = aten.neg.default(self=x) only in the first",
        "function 'neg' / 'exp': node 0: exp: float32[2, 3] = aten.exp.default(self=x) only in the second",
    )


def test_one_side_with_calls_is_put_inline() -> None:
    assert diff(pair(), pair().fold_blocks()).is_equal
    changed = pair()
    changed.nodes[3].attrs["alpha"] = 2
    assert diff(pair().fold_blocks(), changed).differences == ("node 3, aten.add.Tensor: alpha 1 / 2",)


def test_towers_of_different_heights() -> None:
    """Inlined if small; beyond that, calls are compared with calls, and each function once."""
    few, more = (diff(SHAPES["wide tower"](size), SHAPES["wide tower"](size - 2)) for size in (20, 400))
    assert (len(few.nodes), len(few.functions)) == (100, 0)
    assert (len(more.nodes), len(more.functions)) == (200, 1)
    assert few.differences
    assert more.differences


def test_arguments_of_functions_may_have_other_names() -> None:
    one, other = (chain("aten.neg.default", "aten.relu.default", "aten.exp.default") for _ in range(2))
    for ir in (one, other):
        outline(ir, ir.nodes[1:], "tail")
    body = other.functions["tail"]
    body.graph_inputs[0].name = "given"
    other.nodes[1].set_inputs(other.nodes[1].inputs, ["given"])
    assert diff(one, other.check()).is_equal


@pytest.mark.parametrize("name", ["control_flow", "gpt", "lstm"])
def test_any_single_change_of_a_real_graph_is_found(name: str) -> None:
    """A seeded sample: an operator, a wire, an attribute or a shape of one node, in the graph or in a body."""
    flat = captured_entry(name)
    assert diff(flat, IR.from_json(flat.to_json()), ignore_origins=False).is_equal
    rng = random.Random(0)
    for _ in range(30):
        changed = flat.clone()
        node = rng.choice([node for node in changed.all_nodes() if node.outputs])
        change = rng.choice([_operator, _shape, _attribute])
        change(node)
        assert len(diff(flat, changed).differences) >= 1


def _operator(node: OpNode) -> None:
    node.op_type += "_"


def _shape(node: OpNode) -> None:
    node.outputs[-1].shape = (*node.outputs[-1].shape, 1)


def _attribute(node: OpNode) -> None:
    node.attrs["new"] = torch.nan


@pytest.mark.parametrize(
    ("one", "other", "pairs"),
    [
        ("", "abc", []),
        ("abc", "abc", [(0, 0), (1, 1), (2, 2)]),
        ("axbyc", "abzc", [(0, 0), (2, 1), (4, 3)]),
        ("aaab", "ab", [(0, 0), (3, 1)]),
        ("xaybzc", "aabbcc", [(1, 0), (3, 2), (5, 5)]),
    ],
)
def test_sequences_side_by_side(one: str, other: str, pairs: list[tuple[int, int]]) -> None:
    found = aligned(one, other)
    assert all(one[left] == other[right] for left, right in found)
    assert found == sorted(set(found))
    assert len(found) == len(pairs)


def test_long_sequences_that_differ_in_places_far_apart() -> None:
    """All but the changed places are paired."""
    one = [f"{index % 60} {index // 60 if index % 5 == 0 else ''}" for index in range(6000)]
    other = one.copy()
    del other[4000], other[100]
    other[3000] = "new"
    assert len(aligned(one, other)) == 5997
