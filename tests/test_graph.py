"""The graph: tensors linked by name, uses counted, one way to rewire, views that are never stale."""

import pytest

from tests.graphs import chain, everything, mlp, tensor, weight
from torch_ir.errors import GraphError
from torch_ir.ir import IR, Branch, OpNode, Param, Slot, TensorData, TensorMeta


def square() -> tuple[IR, TensorMeta, OpNode]:
    """add(x, x) -> relu, with x and the add returned."""
    x, added, out = tensor("x", 2), tensor("add", 2), tensor("relu", 2)
    add = OpNode("add", "aten.add.Tensor", [x, x], [added], {"alpha": 1}, args=["self", "other"])
    return IR([add, OpNode("relu", "aten.relu.default", [added], [out], args=["self"])], [x], [out]), x, add


# -- joining ----------------------------------------------------------------------------------------------------------


def test_records_that_name_the_same_tensor_become_one_object() -> None:
    """Nodes may be created with separate TensorMeta objects per use; the IR links them to the one that is produced."""
    ir = IR(
        [
            OpNode("neg", "aten.neg.default", [tensor("x", 2)], [tensor("neg", 2)]),
            OpNode("relu", "aten.relu.default", [tensor("neg", 2)], [tensor("relu", 2)]),
        ],
        [tensor("x", 2)],
        [tensor("relu", 2)],
    ).check()
    neg, relu = ir.nodes
    assert neg.inputs[0] is ir.graph_inputs[0]
    assert relu.inputs[0] is neg.outputs[0]
    assert ir.graph_outputs[0] is relu.outputs[0]


def test_a_tensor_inside_a_graph_knows_its_producer() -> None:
    """`producer` and `index` are the node and the output; `producer_node` is the documented name of it."""
    best, where = tensor("max_0", 2), tensor("max_1", 2, dtype="int64")
    x = tensor("x", 2, 3)
    ir = IR([OpNode("max", "aten.max.dim", [x], [best, where], {"dim": 1}, args=["self"])], [x], [best, where])
    assert (where.producer, where.index) == (ir.nodes[0], 1)
    assert (where.producer_node, where.producer_output_idx) == ("max", 1)
    assert (x.producer, x.producer_node) == (None, None)


def test_joining_refuses_a_reader_that_restates_a_shape_wrongly() -> None:
    """A use must repeat the same shape and dtype."""
    with pytest.raises(GraphError, match=r"'neg' is made as float32\[2\], but read as float32\[3\]"):
        IR(
            [
                OpNode("neg", "aten.neg.default", [tensor("x", 2)], [tensor("neg", 2)]),
                OpNode("relu", "aten.relu.default", [tensor("neg", 3)], [tensor("relu", 3)]),
            ],
            [tensor("x", 2)],
            [tensor("relu", 3)],
        )


def test_joining_refuses_a_reader_that_restates_strides_or_producer_wrongly() -> None:
    """Strides and the producing output are facts, too, wherever a reader states them."""

    def reading(read: TensorMeta) -> IR:
        made = TensorMeta("neg", (2, 2), "float32", stride=(1, 2))
        x = tensor("x", 2, 2)
        out = tensor("relu", 2, 2)
        nodes = [
            OpNode("neg", "aten.neg.default", [x], [made]),
            OpNode("relu", "aten.relu.default", [read], [out]),
        ]
        return IR(nodes, [x], [out])

    assert reading(TensorMeta("neg", (2, 2), "float32", "neg", 0, stride=(1, 2))).check()
    assert reading(TensorMeta("neg", (2, 2), "float32")).check()
    with pytest.raises(GraphError, match=r"with strides \[1, 2\], but read as .* with strides \[2, 1\]"):
        reading(TensorMeta("neg", (2, 2), "float32", stride=(2, 1)))
    with pytest.raises(GraphError, match="'neg' is output 0 of 'neg', but a reader says output 1 of 'neg'"):
        reading(TensorMeta("neg", (2, 2), "float32", "neg", 1))
    with pytest.raises(GraphError, match="a reader says output 0 of 'abs'"):
        reading(TensorMeta("neg", (2, 2), "float32", "abs"))


def test_two_tensors_of_one_name_are_refused() -> None:
    """A name refers to one tensor in the whole graph."""
    with pytest.raises(GraphError, match="two tensors are called 'x'"):
        IR([OpNode("x", "aten.neg.default", [tensor("x", 2)], [tensor("x", 2)])], [tensor("x", 2)], [tensor("x", 2)])


def test_equality_is_identity() -> None:
    """Two tensors with equal fields are still two tensors."""
    assert tensor("x", 2) != tensor("x", 2)
    assert len({tensor("x", 2), tensor("x", 2)}) == 2


# -- readers ----------------------------------------------------------------------------------------------------------


def test_a_node_that_reads_twice_is_counted_twice() -> None:
    """add(x, x) reads x twice, and letting go of one use leaves the other."""
    _, x, add = square()
    assert x.consumers == [add, add]
    add.set_inputs([x], ["self"])
    assert x.consumers == [add]
    add.inputs = ()
    assert x.consumers == []


def test_readers_come_in_program_order_with_the_return_last() -> None:
    """Consumers are ordered, and a graph output is a use by the hidden return node."""
    x = tensor("x", 2)
    nodes = [OpNode(name, f"aten.{name}.default", [x], [tensor(name, 2)]) for name in ("neg", "abs", "exp")]
    ir = IR(nodes, [x], [x])
    assert x.consumers == [*nodes, ir.returns]


def test_a_node_keeps_its_place_among_readers_of_what_it_still_reads() -> None:
    """Rewiring one input does not shuffle the readers of the others."""
    x, y = tensor("x", 2), tensor("y", 2)
    add = OpNode("add", "aten.add.Tensor", [x, y], [tensor("add", 2)], args=["self", "other"])
    neg = OpNode("neg", "aten.neg.default", [x], [tensor("neg", 2)], args=["self"])
    add.inputs = (x, x)
    assert x.consumers == [add, add, neg]
    assert y.consumers == []


def test_assigning_inputs_is_the_one_rewiring_point() -> None:
    """Old uses are removed and new ones added, without further calls."""
    ir = chain("aten.neg.default", "aten.relu.default")
    neg, relu = ir.nodes
    x = ir.graph_inputs[0]
    relu.inputs = (x,)
    assert neg.output.consumers == []
    assert x.consumers == [neg, relu]
    ir.nodes.remove(neg)
    neg.inputs = ()
    assert ir.check() is ir
    assert x.consumers == [relu]


def test_inputs_that_cannot_be_listed_change_nothing() -> None:
    """If computing the new inputs fails, the node keeps its old ones."""
    _, x, add = square()
    with pytest.raises(ZeroDivisionError):
        add.inputs = (x for zero in (1, 0) if 1 // zero)
    assert add.inputs == (x, x)
    assert x.consumers == [add, add]


def test_assigning_outputs_tells_the_tensors() -> None:
    """A tensor that moves to another node has the new producer and index."""
    best, where = tensor("a", 2), tensor("b", 2)
    first = OpNode("first", "aten.neg.default", [], [best, where])
    second = OpNode("second", "aten.neg.default", [], [where, best])
    assert (best.producer, best.index) == (second, 1)
    first.outputs = (best,)
    assert (best.producer, best.index) == (first, 0)


# -- replace_all_uses_with --------------------------------------------------------------------------------------------


def test_replace_all_uses_reaches_every_reader_and_leaves_none() -> None:
    """Afterwards the old tensor has no uses, even by a node that read it twice."""
    ir, x, add = square()
    new = tensor("y", 2)
    ir.graph_inputs.append(new)
    x.replace_all_uses_with(new)
    assert add.inputs == (new, new)
    assert x.consumers == []
    assert new.consumers == [add, add]


def test_replace_all_uses_reaches_graph_outputs() -> None:
    """A graph output is a use like any other."""
    ir = chain("aten.neg.default", "aten.relu.default")
    neg, relu = ir.nodes
    relu.output.replace_all_uses_with(neg.output)
    assert ir.graph_outputs == [neg.output]
    assert relu.output.consumers == []


def test_replace_all_uses_reaches_new_values_of_mutated_tensors() -> None:
    """The new value of a buffer is a use as well; the buffer itself stays the target."""
    state, x = weight("b_state", 2, kind="buffer"), tensor("x", 2)
    add = OpNode("add", "aten.add.Tensor", [state, x], [tensor("add", 2)], args=["self", "other"])
    neg = OpNode("neg", "aten.neg.default", [add.output], [tensor("neg", 2)], args=["self"])
    ir = IR([add, neg], [x], [add.output], params=[state], mutations=[(state, add.output)])
    assert add.output.consumers == [neg, ir.returns, ir.returns]
    add.output.replace_all_uses_with(x)
    assert ir.mutations == [(state, x)]
    assert ir.graph_outputs == [x]
    assert neg.inputs == (x,)


def test_a_weight_and_a_value_may_replace_each_other() -> None:
    """Folding replaces a computed tensor by a weight; both are tensors."""
    ir = mlp()
    w = ir.params[0]
    ir.node("relu").output.replace_all_uses_with(w)
    assert ir.node("linear_1")["input"] is w
    assert w.consumers == [ir.node("linear"), ir.node("linear_1")]


# -- outputs and mutations --------------------------------------------------------------------------------------------


def test_outputs_and_mutations_share_the_return_node() -> None:
    """Assigning one of the two leaves the other as it was."""
    ir = everything()
    (state, new), outputs = ir.mutations[0], ir.graph_outputs
    ir.graph_outputs = outputs[:2]
    assert ir.mutations == [(state, new)]
    assert ir.returns.inputs == (*outputs[:2], new)
    ir.mutations = []
    assert ir.graph_outputs == outputs[:2]
    assert new.consumers == []
    ir.mutations = [(state, new)]
    assert new.consumers == [ir.returns]


def test_the_list_of_outputs_is_changed_by_assigning_it() -> None:
    """So that uses stay counted; changing the list itself is refused (see test_views_read_only)."""
    ir = chain("aten.neg.default")
    ir.graph_outputs = [*ir.graph_outputs, ir.nodes[0].output]
    assert ir.graph_outputs == [ir.nodes[0].output] * 2


def test_the_default_structure_is_a_plain_call_and_a_plain_tuple() -> None:
    """Without a structure, inputs are positional arguments and outputs a tuple."""
    ir = mlp()
    assert ir.input_tree == Branch("tuple", (Branch("tuple", (Slot(0),)), Branch("dict", ())))
    assert ir.output_tree == Branch("tuple", (Slot(0),))


# -- views ------------------------------------------------------------------------------------------------------------


def test_weights_and_mapping_are_views_of_params() -> None:
    """The documented tables are computed from the live tensors: renaming or removing one shows at once."""
    ir = mlp()
    assert [w.name for w in ir.weights] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert ir.weight_name_mapping["p_fc2_bias"] == "fc2.bias"
    ir.params[0].name = "renamed"
    ir.params[0].shape = (9, 4)
    del ir.params[1:]
    assert ir.weight_name_mapping == {"renamed": "fc1.weight"}
    assert [(w.name, w.shape) for w in ir.weights] == [("fc1.weight", (9, 4))]


def test_weights_keep_their_strides() -> None:
    """A channels-last weight is still one in the documented table."""
    (w,) = IR([], [tensor("x", 2)], [tensor("x", 2)], params=[_strided()]).weights
    assert (w.shape, w.stride) == ((2, 3), (1, 2))


def _strided() -> TensorMeta:
    return TensorMeta("p_w", (2, 3), "float32", stride=(1, 2), param=Param(("w",)))


def test_constants_are_a_view_of_the_values_that_params_hold() -> None:
    """Replacing the values of a param changes `constants`."""
    ir = everything()
    assert ir.constants["steps"].raw == b"\x01\x00\xff\xff"
    steps = ir.params[2]
    steps.param = Param(("steps",), "constant", TensorData((2,), "int16", bytes(4)))
    assert ir.constants["steps"].raw == bytes(4)
    steps.param = Param(("steps",), "constant")
    assert ir.constants == {}


def test_tied_weights_are_one_tensor_with_several_keys() -> None:
    """The first key is used for weights; the others are kept as a group."""
    ir = everything()
    assert ir.tied_weights == [("first.w", "second.w")]
    assert ir.params[0].key == "first.w"
    assert "second.w" not in ir.weight_name_mapping.values()


def test_param_kinds_say_what_a_state_dict_holds() -> None:
    """Parameters and buffers are in a state dict; temporaries and constants are not."""
    kinds = {kind: Param(("k",), kind).in_state_dict for kind in ("parameter", "buffer", "temporary", "constant")}
    assert kinds == {"parameter": True, "buffer": True, "temporary": False, "constant": False}


def test_tensors_lists_everything_in_the_order_of_definition() -> None:
    """Inputs, then weights, then the outputs of each node."""
    assert [t.name for t in mlp().tensors()] == [
        "x", "p_fc1_weight", "p_fc1_bias", "p_fc2_weight", "p_fc2_bias", "linear", "relu", "linear_1",
    ]  # fmt: skip
