"""The graph: tensors joined by name, readers counted, one point of rewiring, views that cannot go stale."""

import pytest

from tests.graphs import chain, everything, mlp, tensor, weight
from torch_ir.errors import GraphError
from torch_ir.ir import IR, Branch, OpNode, Origin, Param, Slot, Symbol, TensorData, TensorMeta


def square() -> tuple[IR, TensorMeta, OpNode]:
    """add(x, x) -> relu, with x and the add at hand."""
    x, added, out = tensor("x", 2), tensor("add", 2), tensor("relu", 2)
    add = OpNode("add", "aten.add.Tensor", [x, x], [added], {"alpha": 1}, args=["self", "other"])
    return IR([add, OpNode("relu", "aten.relu.default", [added], [out], args=["self"])], [x], [out]), x, add


# -- joining ----------------------------------------------------------------------------------------------------------


def test_records_that_name_the_same_tensor_become_one_object() -> None:
    """Nodes may be written with a TensorMeta of their own for each use; the IR lets them share the one that is made."""
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
    """A record that restates what it reads must say the same."""
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
    """A name stands for one tensor in the whole graph."""
    with pytest.raises(GraphError, match="two tensors are called 'x'"):
        IR([OpNode("x", "aten.neg.default", [tensor("x", 2)], [tensor("x", 2)])], [tensor("x", 2)], [tensor("x", 2)])


def test_equality_is_identity() -> None:
    """Two tensors that say the same are still two tensors."""
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
    """Old readers go, new readers come, and nothing else needs to be told."""
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
    """If making the new inputs fails, the node still reads what it read."""
    _, x, add = square()
    with pytest.raises(ZeroDivisionError):
        add.inputs = (x for zero in (1, 0) if 1 // zero)
    assert add.inputs == (x, x)
    assert x.consumers == [add, add]


def test_assigning_outputs_tells_the_tensors() -> None:
    """A tensor that moves to another node knows its new producer and index."""
    best, where = tensor("a", 2), tensor("b", 2)
    first = OpNode("first", "aten.neg.default", [], [best, where])
    second = OpNode("second", "aten.neg.default", [], [where, best])
    assert (best.producer, best.index) == (second, 1)
    first.outputs = (best,)
    assert (best.producer, best.index) == (first, 0)


# -- replace_all_uses_with --------------------------------------------------------------------------------------------


def test_replace_all_uses_reaches_every_reader_and_leaves_none() -> None:
    """After it, nobody reads the old tensor, also not a node that read it twice."""
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
    """The value that a buffer takes is a use as well; the buffer itself stays the target."""
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


def test_the_lists_that_a_graph_hands_out_are_copies() -> None:
    """Outputs are changed by assigning them, so that uses stay counted; changing the list does nothing."""
    ir = chain("aten.neg.default")
    ir.graph_outputs.clear()
    assert ir.graph_outputs == [ir.nodes[0].output]


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


def test_changing_a_view_changes_nothing() -> None:
    """A view is a copy: what is not assigned to the live tensor is not said to the graph."""
    ir = mlp()
    ir.weights.clear()
    ir.weight_name_mapping.clear()
    ir.constants.clear()
    assert len(ir.weights) == len(ir.weight_name_mapping) == len(ir.params)


def test_weights_keep_their_strides() -> None:
    """A channels-last weight is still one in the documented table."""
    (w,) = IR([], [tensor("x", 2)], [tensor("x", 2)], params=[_strided()]).weights
    assert (w.shape, w.stride) == ((2, 3), (1, 2))


def _strided() -> TensorMeta:
    return TensorMeta("p_w", (2, 3), "float32", stride=(1, 2), param=Param(("w",)))


def test_constants_are_a_view_of_the_values_that_params_hold() -> None:
    """Replacing the values of a param is what changes `constants`."""
    ir = everything()
    assert ir.constants["steps"].raw == b"\x01\x00\xff\xff"
    steps = ir.params[2]
    steps.param = Param(("steps",), "constant", TensorData((2,), "int16", bytes(4)))
    assert ir.constants["steps"].raw == bytes(4)
    steps.param = Param(("steps",), "constant")
    assert ir.constants == {}


def test_tied_weights_are_one_tensor_with_several_keys() -> None:
    """The first key is the one that weights are asked for by; the others are kept as a group."""
    ir = everything()
    assert ir.tied_weights == [("first.w", "second.w")]
    assert ir.params[0].key == "first.w"
    assert "second.w" not in ir.weight_name_mapping.values()


def test_param_kinds_say_what_a_state_dict_holds() -> None:
    """Parameters and buffers are in a state dict; temporaries and constants are not."""
    kinds = {kind: Param(("k",), kind).in_state_dict for kind in ("parameter", "buffer", "temporary", "constant")}
    assert kinds == {"parameter": True, "buffer": True, "temporary": False, "constant": False}


def test_tensors_lists_everything_in_the_order_of_definition() -> None:
    """Inputs, then weights, then what each node makes."""
    assert [t.name for t in mlp().tensors()] == [
        "x", "p_fc1_weight", "p_fc1_bias", "p_fc2_weight", "p_fc2_bias", "linear", "relu", "linear_1",
    ]  # fmt: skip


# -- arguments --------------------------------------------------------------------------------------------------------


def test_arguments_are_asked_for_by_name() -> None:
    """node["weight"] is a tensor, node["stride"] an attribute; where it is kept does not matter."""
    x, w = tensor("x", 1, 3, 8, 8), weight("p_w", 4, 3, 1, 1)
    attrs = {"bias": None, "stride": [2, 2]}
    node = OpNode("conv", "aten.conv2d.default", [x, w], [tensor("conv", 1, 4, 4, 4)], attrs, args=["input", "weight"])
    assert node["weight"] is w
    assert node["stride"] == [2, 2]
    assert node["bias"] is None


def test_list_arguments_come_as_lists_with_none_where_one_is_absent() -> None:
    """`indices.0` absent and `indices.1` a tensor is the list [None, tensor]."""
    x, rows = tensor("x", 3, 4), tensor("rows", 2, dtype="int64")
    node = OpNode(
        "index", "aten.index.Tensor", [x, rows], [tensor("index", 3, 2)], {"indices.0": None},
        args=["self", "indices.1"],
    )  # fmt: skip
    assert node["indices"] == [None, rows]
    assert node["indices.1"] is rows


def test_the_order_of_a_long_list_is_by_number() -> None:
    """Element 10 comes after element 9, not after element 1."""
    parts = [tensor(f"t{index}", 2) for index in range(12)]
    args = [f"tensors.{index}" for index in range(12)]
    node = OpNode("cat", "aten.cat.default", parts[::-1], [tensor("cat", 24)], {"dim": 0}, args=args[::-1])
    assert node["tensors"] == parts


def test_lists_of_lists_keep_their_nesting() -> None:
    """An element of a list argument may be a list itself."""
    a, b = tensor("a", 2), tensor("b", 2)
    node = OpNode("op", "my.op.default", [a, b], [], {"pairs.0.1": 7}, args=["pairs.0.0", "pairs.1.0"])
    assert node["pairs"] == [[a, 7], [b]]


def test_an_unknown_argument_names_the_nearest() -> None:
    """A typing mistake is answered with the argument that was meant."""
    with pytest.raises(KeyError, match=r"OpNode\('linear', .*\) has no argument 'wieght'; did you mean 'weight'\?"):
        mlp().nodes[0]["wieght"]
    node = OpNode("cat", "aten.cat.default", [tensor("a", 2)], [], args=["tensors.0"])
    with pytest.raises(KeyError, match=r"no argument 'tensor'; did you mean 'tensors'\?"):
        node["tensor"]


def test_without_names_arguments_go_by_position() -> None:
    """The documented constructor has no argument names: positions stand in until a schema gives the names."""
    node = OpNode("relu", "aten.relu.default", [tensor("x", 2)], [tensor("relu", 2)])
    assert node.args == ("0",)
    assert not node.has_named_args
    assert node["0"].name == "x"
    node.set_inputs(node.inputs, ["self"])
    assert node.has_named_args
    assert node["self"].name == "x"


def test_argument_names_and_inputs_go_together() -> None:
    """As many names as tensors, or none."""
    node = OpNode("add", "aten.add.Tensor", [tensor("x", 2), tensor("y", 2)], [])
    with pytest.raises(GraphError, match=r"OpNode\('add', .*\) has 2 inputs, but 1 argument names"):
        node.set_inputs(node.inputs, ["self"])
    assert node.args == ("0", "1")


def test_the_only_output() -> None:
    """`output` is for nodes with one; for others it is an error that names the node."""
    assert mlp().nodes[0].output.name == "linear"
    with pytest.raises(GraphError, match=r"OpNode\('max_1', 'aten.max.dim'\) has 2 outputs, not one"):
        assert everything().node("max_1").output


def test_a_node_is_found_by_name() -> None:
    """An unknown name is answered with the nearest."""
    assert mlp().node("relu").op_type == "aten.relu.default"
    with pytest.raises(KeyError, match=r"no node is called 'linear_2'; did you mean 'linear_1'"):
        mlp().node("linear_2")


# -- the documented constructors --------------------------------------------------------------------------------------


def test_documented_tensor_meta() -> None:
    """TensorMeta(name, shape, dtype, producer_node=None, producer_output_idx=0), positional or by name."""
    plain = TensorMeta("x", (1, 4), "float32")
    assert (plain.name, plain.shape, plain.dtype) == ("x", (1, 4), "float32")
    assert (plain.producer_node, plain.producer_output_idx) == (None, 0)
    read = TensorMeta("split_1", [2, 4], "float32", "split", 1)
    assert (read.producer_node, read.producer_output_idx, read.shape) == ("split", 1, (2, 4))
    named = TensorMeta(name="a", shape=(), dtype="bool", producer_node="n", producer_output_idx=2)
    assert named.to_dict() == {
        "name": "a", "shape": [], "dtype": "bool", "producer_node": "n", "producer_output_idx": 2,
    }  # fmt: skip


def test_documented_tensor_meta_records() -> None:
    """to_dict leaves the producer out where there is none; from_dict reads both kinds back."""
    for record in (
        {"name": "x", "shape": [1, 4], "dtype": "float32"},
        {"name": "x", "shape": [1], "dtype": "int64", "producer_node": "n", "producer_output_idx": 1},
        {"name": "x", "shape": [2, 3], "dtype": "float32", "stride": [1, 2]},
    ):
        assert TensorMeta.from_dict(record).to_dict() == record


def test_documented_op_node() -> None:
    """OpNode(name, op_type, inputs, outputs, attrs={}); attrs are the node's own."""
    attrs = {"alpha": 1}
    x, y = tensor("x", 2), tensor("y", 2)
    node = OpNode("add", "aten.add.Tensor", [x, x], [y], attrs)
    assert (node.name, node.op_type, node.attrs) == ("add", "aten.add.Tensor", {"alpha": 1})
    assert (list(node.inputs), list(node.outputs)) == ([x, x], [y])
    attrs["alpha"] = 2
    assert node.attrs == {"alpha": 1}
    assert OpNode("r", "aten.relu.default", inputs=[x], outputs=[y]).attrs == {}


def test_documented_op_node_records() -> None:
    """to_dict has the documented keys in the documented order; from_dict gives the same node."""
    x, y = tensor("x", 2), tensor("y", 2)
    record = OpNode("y", "aten.softmax.int", [x], [y], {"dim": -1}).to_dict()
    assert list(record) == ["name", "op_type", "inputs", "outputs", "attrs"]
    assert record["inputs"] == [
        {"name": "x", "shape": [2], "dtype": "float32", "producer_node": "x", "producer_output_idx": 0}
    ]
    assert record["outputs"] == [{"name": "y", "shape": [2], "dtype": "float32"}]
    assert OpNode.from_dict(record).to_dict() == record


def test_node_records_keep_names_and_origin() -> None:
    """What the documented record lacks stands beside it, and only where there is something to say."""
    node = everything().nodes[0]
    record = node.to_dict()
    beside = {key: record[key] for key in ("args", "module", "module_class", "call", "source", "origins")}
    assert beside == {
        "args": ["self", "mat2"], "module": "first", "module_class": "Linear", "call": 1, "source": "model.py:3",
        "origins": ["mm", "t"],
    }  # fmt: skip
    again = OpNode.from_dict(record)
    assert (again.args, again.origin, again.origins) == (node.args, node.origin, node.origins)
    bare = OpNode("n", "aten.neg.default", [], [], origin=Origin("only.a.path"))
    assert OpNode.from_dict(bare.to_dict()).origin == Origin("only.a.path")


def test_documented_ir_by_position() -> None:
    """IR(nodes, graph_inputs, graph_outputs, weights, weight_name_mapping, constants, model_name, pytorch_version)."""
    x, y, k = tensor("x", 2), tensor("y", 2), TensorMeta("c_k", (2,), "float32")
    node = OpNode("y", "aten.mul.Tensor", [x, k], [y])
    data = TensorData.from_numbers([1.0, 2.0], "float32")
    ir = IR([node], [x], [y], [TensorMeta("k", (2,), "float32")], {"c_k": "k"}, {"k": data}, "Scale", "2.13.0").check()
    assert (ir.model_name, ir.pytorch_version) == ("Scale", "2.13.0")
    assert (ir.weights[0].name, ir.weight_name_mapping, ir.constants) == ("k", {"c_k": "k"}, {"k": data})
    assert ir.params[0] is node.inputs[1]
    assert ir.params[0].param == Param(("k",), "constant", data)


def test_documented_ir_defaults() -> None:
    """Only the first four are needed; a weight that no mapping names is read under its own key."""
    ir = IR([], [tensor("x", 2)], [tensor("x", 2)], [tensor("scale", 2)])
    assert (ir.weight_name_mapping, ir.constants, ir.model_name, ir.pytorch_version) == ({"scale": "scale"}, {}, "", "")


def test_a_mapping_to_an_unknown_weight_is_refused() -> None:
    """The message says which entry it is."""
    with pytest.raises(GraphError, match="weight_name_mapping sends 'p_w' to 'v', which is not among the weights"):
        IR([], [tensor("x", 2)], [tensor("x", 2)], [tensor("w", 2)], {"p_w": "v"})


def test_documented_repr() -> None:
    """The repr counts; the one of tensors and nodes names."""
    assert repr(mlp()) == "IR(model_name='SimpleMLP', nodes=3, inputs=1, outputs=1, weights=4)"
    assert repr(mlp().nodes[1]) == "OpNode('relu', 'aten.relu.default')"
    assert repr(tensor("x", 1, "batch")) == "TensorMeta('x', (1, 'batch'), 'float32')"


def test_documented_dict_round_trip() -> None:
    """from_dict(to_dict) is an equal graph; the dict that was given is left as it was."""
    record = everything().to_dict()
    before = repr(record)
    again = IR.from_dict(record)
    assert again.to_dict() == record
    assert str(again) == str(everything())
    assert repr(record) == before


# -- cloning ----------------------------------------------------------------------------------------------------------


def test_a_clone_says_the_same() -> None:
    """Text and file of a clone are those of the original, for every part that a graph can have."""
    ir = everything()
    copy = ir.clone()
    assert str(copy.check()) == str(ir)
    assert copy.to_json() == ir.to_json()


def test_a_clone_shares_nothing_that_can_be_changed() -> None:
    """Whatever is done to a clone, the original still says what it said."""
    ir = everything()
    before = ir.to_json()
    copy = ir.clone()
    copy.node("max_1").attrs["nested"][1].append("changed")
    copy.node("max_1").attrs["table"]["inner"].append(2)
    copy.extensions["tool"]["$kept"].append(2)
    copy.constraints.append("batch != 4")
    copy.symbols["batch"].max = 2
    copy.functions["body"].functions["inner"].nodes[0].op_type = "aten.exp.default"
    copy.functions["body"].nodes.clear()
    copy.graph_inputs[0].shape = (9, "batch")
    copy.params[0].name = "renamed"
    copy.mutations = []
    copy.graph_outputs = copy.graph_outputs[:1]
    for node in copy.nodes:
        node.inputs = ()
    assert ir.to_json() == before
    assert ir.check() is ir


def test_a_clone_of_a_broken_link_is_not_repaired() -> None:
    """Cloning copies, it does not judge: what reads nothing real still does."""
    ir = chain("aten.neg.default")
    ir.nodes[0].inputs = (tensor("nobody", 2, 3),)
    with pytest.raises(GraphError, match="reads 'nobody', which nothing before it makes"):
        ir.clone().check()


def test_symbols_of_a_clone_are_bound_to_the_tensors_of_the_clone() -> None:
    """A size is read off the clone's own input."""
    copy = everything().clone()
    assert copy.symbols["batch"].tensor is copy.graph_inputs[0]


def test_symbols_are_joined_by_name_like_everything_else() -> None:
    """A symbol may be bound to a record of the input; it ends up bound to the input itself."""
    x = tensor("x", "batch")
    ir = IR([], [x], [tensor("x", "batch")], symbols=[Symbol("batch", tensor=tensor("x", "batch"), dim=0)]).check()
    assert ir.symbols["batch"].tensor is x
    assert not ir.is_static
    assert mlp().is_static
