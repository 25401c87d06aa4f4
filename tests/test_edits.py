"""Edits of a graph's nodes are atomic, and `ir.node` finds the current nodes."""

import pickle
import random
from collections.abc import Callable

import pytest

from tests.graphs import chain, everything, mlp, tensor
from tests.random_irs.draft import random_ir
from torch_ir.errors import GraphError
from torch_ir.ir import IR, OpNode, Symbol, TensorMeta


def relu(name: str, x: TensorMeta) -> OpNode:
    return OpNode(name, "aten.relu.default", [x], [TensorMeta(name, x.shape, x.dtype)], args=["self"])


# -- node(name) -------------------------------------------------------------------------------------------------------


def test_a_node_is_found_after_every_kind_of_edit() -> None:
    """Renamed, inserted, removed, reordered, replaced: the index follows."""
    ir = chain("aten.neg.default", "aten.relu.default", "aten.exp.default")
    assert [ir.node(name).name for name in ("exp", "neg", "relu")] == ["exp", "neg", "relu"]
    neg, last = ir.node("neg"), ir.node("exp")
    ir.nodes.insert(0, relu("first", ir.graph_inputs[0]))
    assert (ir.node("first"), ir.node("neg"), ir.node("exp")) == (ir.nodes[0], neg, last)
    neg.name = "negative"
    assert ir.node("negative") is neg
    with pytest.raises(KeyError, match="no node is called 'neg'"):
        ir.node("neg")
    ir.nodes.remove(ir.node("first"))
    with pytest.raises(KeyError):
        ir.node("first")
    ir.nodes = ir.nodes[::-1]
    assert ir.node("exp") is last is ir.nodes[0]
    ir.nodes = []
    with pytest.raises(KeyError):
        ir.node("exp")


def test_copies_have_an_index_of_their_own() -> None:
    ir = mlp()
    found = ir.node("relu")
    for copy in (ir.clone(), pickle.loads(pickle.dumps(ir))):
        assert copy.node("relu") is copy.nodes[1] is not found


def test_a_node_is_found_in_constant_time() -> None:
    """After the first call, the list of nodes is not searched."""

    class Counting(list[OpNode]):
        iterations = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            Counting.iterations += 1
            return super().__iter__()

    ir = mlp()
    ir.nodes = Counting(ir.nodes)
    ir.node("relu")
    before = Counting.iterations
    for _ in range(10):
        assert ir.node("linear_1") is ir.nodes[2]
    assert Counting.iterations == before


# -- erase ------------------------------------------------------------------------------------------------------------


def test_erased_nodes_let_go_of_what_they_read() -> None:
    ir = mlp()
    x, out = ir.graph_inputs[0], ir.node("linear")
    ir.node("relu").output.replace_all_uses_with(out.output)
    ir.erase(ir.node("relu"))
    assert [node.name for node in ir.check().nodes] == ["linear", "linear_1"]
    ir.graph_outputs = [x]
    ir.erase(ir.nodes)
    assert ir.check().nodes == []
    assert x.consumers == [ir.returns]
    assert not any(param.consumers for param in ir.params)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["linear"], r"cannot erase 'linear': OpNode\('relu', .*\) reads it; give its readers another tensor first"),
        (["relu", "linear_1"], "cannot erase 'linear_1': the graph returns it"),
    ],
)
def test_what_is_read_cannot_be_erased(names: list[str], told: str) -> None:
    ir = mlp()
    text = ir.to_json()
    with pytest.raises(GraphError, match=told):
        ir.erase([ir.node(name) for name in names])
    assert ir.check().to_json() == text


def test_what_a_size_is_read_from_cannot_be_erased() -> None:
    x, found = tensor("x", 3), tensor("nonzero", "found", 1, dtype="int64")
    node = OpNode("nonzero", "aten.nonzero.default", [x], [found], args=["self"])
    ir = IR([node], [x], [x], symbols=[Symbol("found", 0, 3, found, 0)]).check()
    with pytest.raises(GraphError, match="the size 'found' is read from it"):
        ir.erase(node)
    assert ir.check().nodes == [node]


def test_a_node_of_another_graph_cannot_be_erased() -> None:
    with pytest.raises(GraphError, match="is not in the graph"):
        mlp().erase(mlp().nodes[-1])


# -- insert -----------------------------------------------------------------------------------------------------------


def test_new_nodes_before_and_after() -> None:
    """Several at once may read each other; the list of nodes stays the same object."""
    ir = mlp()
    nodes, linear = ir.nodes, ir.node("linear")
    first = relu("first", linear.output)
    ir.insert_after(linear, [first, relu("second", first.output)])
    ir.insert_before(linear, relu("zeroth", ir.graph_inputs[0]))
    assert [node.name for node in ir.check().nodes] == ["zeroth", "linear", "first", "second", "relu", "linear_1"]
    assert ir.nodes is nodes
    assert ir.node("second").inputs == first.outputs


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda ir: relu("new", ir.node("relu").output), "reads 'relu', which is made after it"),
        (lambda ir: relu("new", tensor("liner", 2)), "reads 'liner', which is not in the graph; did you mean 'linear'"),
        (lambda ir: relu("new", tensor("x", 1, 4)), "reads 'x', but another tensor of that name is in the graph"),
        (lambda ir: relu("relu", ir.graph_inputs[0]), "two nodes would be called 'relu'"),
        (lambda ir: OpNode("new", "my.op", [], [tensor("p_fc1_bias")]), "two tensors would be called 'p_fc1_bias'"),
        (lambda ir: OpNode("new", "my.op", [], [tensor("a\\nb")]), "invalid tensor name"),
        (lambda ir: OpNode("a\\nb", "my.op", [], []), "invalid node name"),
        (lambda ir: ir.node("relu"), "is in the graph already"),
        (lambda ir: OpNode("new", "my.op", [], ir.node("relu").outputs), r"two tensors would be called 'relu'"),
        (lambda ir: [relu("new", ir.graph_inputs[0])] * 2, "is in the graph already"),
        (lambda ir: ["relu"], "expected an OpNode, found 'relu'"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[IR], OpNode], told: str) -> None:
    ir = mlp()
    before = list(ir.nodes)
    new = make(ir)
    with pytest.raises(GraphError, match=told):
        ir.insert_after(ir.node("linear"), new)
    assert ir.nodes == before


def test_a_tensor_of_another_producer_is_refused() -> None:
    """A tensor has exactly one producer."""
    ir = mlp()
    made = tensor("made")
    one = OpNode("one", "my.op", [], [made])
    OpNode("other", "my.op", [], [made])
    with pytest.raises(GraphError, match=r"is the output of OpNode\('other', 'my.op'\), not output 0 of"):
        ir.insert_before(ir.nodes[0], one)


def test_the_anchor_must_be_in_the_graph() -> None:
    ir = mlp()
    with pytest.raises(GraphError, match="is not in the graph"):
        ir.insert_before(mlp().nodes[0], relu("new", ir.graph_inputs[0]))


# -- random edits -----------------------------------------------------------------------------------------------------


def edit(ir: IR, draw: random.Random, number: int) -> None:
    """One edit, most of them sound."""
    node = draw.choice(ir.nodes) if ir.nodes else None
    tensors = list(ir.tensors())
    kind = draw.randrange(4)
    if node is None:
        return
    if kind == 0:
        ir.erase(draw.sample(ir.nodes, draw.randint(1, min(3, len(ir.nodes)))))
    elif kind == 1:
        alike = (
            [t for t in tensors[: tensors.index(node.inputs[0])] if _is_alike(t, node.inputs[0])] if node.inputs else []
        )
        if alike and not node.is_call:
            node.replace_input(node.inputs[0], draw.choice(alike))
    else:
        name = draw.choice((f"new_{number}", node.name, "x"))
        new = relu(name, draw.choice(tensors))
        try:
            (ir.insert_before if kind == 2 else ir.insert_after)(node, new)
        except GraphError:
            new.inputs = ()  # it never was part of the graph
            raise


def _is_alike(one: TensorMeta, other: TensorMeta) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def test_random_edits_keep_the_graph_sound_or_leave_it_as_it_was() -> None:
    done = refused = 0
    for seed, ir in enumerate([mlp(), everything(), *(random_ir(seed) for seed in range(1, 17, 2))]):
        draw = random.Random(seed)
        for number in range(40):
            before = ir.to_json()
            try:
                edit(ir, draw, number)
                done += 1
            except GraphError:
                assert ir.to_json() == before
                refused += 1
            ir.check()
            for node in ir.nodes:
                assert ir.node(node.name) is node
    assert min(done, refused) > 50
