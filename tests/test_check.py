"""check(): violations in names, links, tensors and sizes, one at a time, and the place in the error."""

import pytest

from tests.breaking import Case, Cases
from tests.graphs import chain, everything, mlp, tensor
from torch_ir import validate_ir
from torch_ir.errors import GraphError, SerializationError
from torch_ir.ir import IR, Branch, OpNode, Symbol, TensorData, TensorMeta

CASES = Cases()
breaks = CASES.breaks


def test_a_graph_that_holds_is_given_back() -> None:
    """check() returns the graph, for chaining; the documented validate_ir returns True."""
    ir = mlp()
    assert ir.check() is ir
    assert validate_ir(ir) is True


def test_validate_says_what_check_says() -> None:
    """The documented function raises the same message as the documented error."""
    ir = mlp()
    ir.nodes.pop(1)
    with pytest.raises(SerializationError, match=r"OpNode\('linear_1', .*\) reads 'relu', which nothing before"):
        validate_ir(ir)


# -- names ------------------------------------------------------------------------------------------------------------


@breaks("two nodes are called 'max_1'", "R8", "$.nodes[1].name", node="max_1")
def two_nodes_of_one_name(ir: IR) -> None:
    ir.nodes[0].name = "max_1"


@breaks("two tensors are called 'mm'", "R8", "$.nodes[0].outputs[0].name", node="mm")
def two_tensors_of_one_name(ir: IR) -> None:
    ir.graph_inputs[1].name = "mm"


@breaks("two tensors are called 'x'", "R8", "$.graph_inputs[2].name")
def one_tensor_listed_twice(ir: IR) -> None:
    ir.graph_inputs.append(ir.graph_inputs[0])


@breaks("invalid node name ''", "R6", "$.nodes[0].name")
def a_node_without_a_name(ir: IR) -> None:
    ir.nodes[0].name = ""


@breaks(r"invalid node name 'a\nb'", "R6", "$.nodes[0].name", node="a\nb")
def a_node_whose_name_breaks_the_line(ir: IR) -> None:
    ir.nodes[0].name = "a\nb"


@breaks("invalid tensor name '<script>'", "R6", "$.graph_inputs[0].name")
def a_tensor_whose_name_is_markup(ir: IR) -> None:
    ir.graph_inputs[0].name = "<script>"


@breaks("invalid node name 7", "R6", "$.nodes[0].name", node="7")
def a_node_whose_name_is_a_number(ir: IR) -> None:
    ir.nodes[0].name = 7  # type: ignore[assignment]


@breaks("invalid function name 'a`b'", "R6", "$.functions.a`b")
def a_function_of_a_forbidden_name(ir: IR) -> None:
    ir.functions["a`b"] = chain("aten.neg.default")


@breaks("has an invalid operator name", "R6", "$.nodes[0].op_type", node="mm")
def an_operator_whose_name_breaks_the_line(ir: IR) -> None:
    ir.nodes[0].op_type = "aten.mm.default\naten.mm.default"


@breaks("OpNode('mm', 'return') has an invalid operator name", "R6", "$.nodes[0].op_type", node="mm")
def an_operator_that_is_called_return(ir: IR) -> None:
    ir.nodes[0].op_type = "return"


# -- links ------------------------------------------------------------------------------------------------------------


@breaks(
    "OpNode('mm', 'aten.mm.default') reads 'cat', which nothing before it makes",
    "R8",
    "$.nodes[0].inputs[1]",
    node="mm",
)
def a_read_before_it_is_made(ir: IR) -> None:
    ir.nodes[0].inputs = (ir.params[0], ir.node("cat").output)


@breaks("reads 'mask_', which nothing before it makes; did you mean 'mask'?", "R8", "$.nodes[0].inputs[1]", node="mm")
def a_read_of_nothing(ir: IR) -> None:
    ir.nodes[0].inputs = (ir.params[0], tensor("mask_", 2))


@breaks(
    "OpNode('mm', 'aten.mm.default') reads another tensor 'x' than the one of this graph",
    "R8",
    "$.nodes[0].inputs[1]",
    node="mm",
)
def a_read_of_a_stranger_with_a_known_name(ir: IR) -> None:
    ir.nodes[0].inputs = (ir.params[0], tensor("x", 2, "batch"))


@breaks("OpNode('return', 'return') reads 'nobody', which nothing before it makes", "R8", "$.graph_outputs[0]")
def an_output_that_nobody_makes(ir: IR) -> None:
    ir.graph_outputs = [tensor("nobody", 2), *ir.graph_outputs[1:]]


@breaks(
    "TensorMeta('mm', (3, 'batch'), 'float32') does not list OpNode('max_1', 'aten.max.dim') as a consumer",
    "R7",
    "$.nodes[1].inputs[0]",
    node="max_1",
)
def a_reader_that_is_not_counted(ir: IR) -> None:
    ir.nodes[0].output._uses.pop(ir.node("max_1"))


@breaks("is not linked as output 0 of OpNode('max_1', 'aten.max.dim')", "R7", "$.nodes[1].outputs[0]", node="max_1")
def an_output_that_another_node_claims(ir: IR) -> None:
    OpNode("thief", "aten.neg.default", [], [ir.node("max_1").outputs[0]])


@breaks("is not linked as output 1 of OpNode('max_1', 'aten.max.dim')", "R7", "$.nodes[1].outputs[1]", node="max_1")
def an_output_with_a_wrong_index(ir: IR) -> None:
    ir.node("max_1").outputs[1].index = 0


@breaks(
    "TensorMeta('x', (2, 'batch'), 'float32') is an input or weight, but has the producer 'thief'",
    "R7",
    "$.graph_inputs[0].producer_node",
)
def an_input_that_a_node_claims(ir: IR) -> None:
    OpNode("thief", "aten.neg.default", [], [ir.graph_inputs[0]])


@breaks("is an input or weight, but has the producer 'elsewhere'", "R7", "$.graph_inputs[2].producer_node")
def an_input_that_says_it_is_made(ir: IR) -> None:
    ir.graph_inputs.append(TensorMeta("y", (2,), "float32", "elsewhere"))


# -- tensors ----------------------------------------------------------------------------------------------------------


@breaks(
    "TensorMeta('x', (2, 'batch'), 'float23') has an unknown dtype; did you mean 'float32'?",
    "R5",
    "$.graph_inputs[0].dtype",
)
def an_unknown_dtype(ir: IR) -> None:
    ir.graph_inputs[0].dtype = "float23"


@breaks(
    "TensorMeta('mm', (-1, 'batch'), 'float32') has a dimension of -1",
    "R4",
    "$.nodes[0].outputs[0].shape[0]",
    node="mm",
)
def a_negative_dimension(ir: IR) -> None:
    ir.nodes[0].output.shape = (-1, "batch")


@breaks("has a dimension of True", "R4", "$.nodes[0].outputs[0].shape[0]", node="mm")
def a_dimension_that_is_no_number(ir: IR) -> None:
    ir.nodes[0].output.shape = (True, "batch")


@breaks("has a dimension of 9223372036854775808", "R4", "$.nodes[0].outputs[0].shape[0]", node="mm")
def a_dimension_beyond_64_bits(ir: IR) -> None:
    ir.nodes[0].output.shape = (1 << 63, "batch")


@breaks(
    "TensorMeta('mm', (3, 'batch *'), 'float32'): bad expression 'batch *': unexpected end",
    "R1",
    "$.nodes[0].outputs[0].shape[1]",
    node="mm",
)
def a_dimension_that_does_not_parse(ir: IR) -> None:
    ir.nodes[0].output.shape = (3, "batch *")


@breaks(
    "'2*bacth' reads an undefined symbol 'bacth'; did you mean 'batch'?",
    "R8",
    "$.nodes[0].outputs[0].shape[1]",
    node="mm",
)
def a_dimension_of_an_unknown_symbol(ir: IR) -> None:
    ir.nodes[0].output.shape = (3, "2*bacth")


@breaks("TensorMeta('mm', (3, 'batch'), 'float32') has 1 strides", "R7", "$.nodes[0].outputs[0].stride", node="mm")
def strides_that_do_not_fit_the_shape(ir: IR) -> None:
    ir.nodes[0].output.stride = (1,)


@breaks("reads an undefined symbol 'q'", "R8", "$.nodes[0].outputs[0].stride[0]", node="mm")
def a_stride_of_an_unknown_symbol(ir: IR) -> None:
    ir.nodes[0].output.stride = ("q", 1)


# -- symbols ----------------------------------------------------------------------------------------------------------


@breaks("invalid symbol name '1st'", "R6", "$.symbols.1st")
def a_symbol_of_a_forbidden_name(ir: IR) -> None:
    ir.symbols["1st"] = Symbol("1st", 0, 9, ir.graph_inputs[0], 1)


@breaks("invalid symbol name 'max'", "R6", "$.symbols.max")
def a_symbol_called_like_a_function(ir: IR) -> None:
    ir.symbols["max"] = Symbol("max", 0, 9, ir.graph_inputs[0], 1)


@breaks("invalid symbol name 'other'", "R6", "$.symbols.other")
def a_symbol_filed_under_another_name(ir: IR) -> None:
    ir.symbols["other"] = ir.symbols["batch"]


@breaks("symbol 'batch' has an empty range: 65 <= batch <= 64", "R8", "$.symbols.batch")
def a_symbol_with_an_empty_range(ir: IR) -> None:
    ir.symbols["batch"].min = 65


@breaks("symbol 'batch' has an empty range", "R8", "$.symbols.batch")
def a_symbol_beyond_64_bits(ir: IR) -> None:
    ir.symbols["batch"].max = 1 << 63


@breaks("symbol 'batch' is not bound to a tensor", "R8", "$.symbols.batch")
def a_symbol_without_a_place(ir: IR) -> None:
    ir.symbols["batch"].tensor = None


@breaks(
    "symbol 'batch' is bound to dimension 2 of TensorMeta('x', (2, 'batch'), 'float32')", "R8", "$.symbols.batch.dim"
)
def a_symbol_bound_beyond_the_shape(ir: IR) -> None:
    ir.symbols["batch"].dim = 2


@breaks("symbol 'batch' is not in dimension 0 of TensorMeta('x', (2, 'batch'), 'float32')", "R7", "$.symbols.batch.dim")
def a_symbol_bound_to_a_number(ir: IR) -> None:
    ir.symbols["batch"].dim = 0


@breaks(
    "symbol 'batch' is bound to TensorMeta('y', ('batch',), 'float32'), which is not part of the graph",
    "R8",
    "$.symbols.batch.tensor",
)
def a_symbol_bound_outside_the_graph(ir: IR) -> None:
    ir.symbols["batch"].tensor = tensor("y", "batch")


@breaks("constraint: 'sequence > 0' reads an undefined symbol 'sequence'", "R8", "$.constraints[1]")
def a_constraint_on_an_unknown_symbol(ir: IR) -> None:
    ir.constraints.append("sequence > 0")


@breaks("constraint: bad expression 'batch = 4'", "R1", "$.constraints[1]")
def a_constraint_that_does_not_parse(ir: IR) -> None:
    ir.constraints.append("batch = 4")


# -- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=[case.change.__name__ for case in CASES])
def test_rule(case: Case) -> None:
    """A valid graph with one change: check() names the violated rule and its place."""
    case.run()


# -- what is allowed --------------------------------------------------------------------------------------------------


def test_a_function_may_speak_of_the_sizes_around_it() -> None:
    """Symbols of the outer graph are known inside; those of a function are not known outside."""
    ir = everything()
    inner = ir.functions["body"].functions["inner"]
    assert not inner.symbols
    assert inner.nodes[0].output.shape == ("batch",)
    ir.symbols.clear()
    with pytest.raises(GraphError, match="undefined symbol 'batch'"):
        ir.check()


def test_a_model_that_returns_none_and_changes_a_buffer_holds() -> None:
    """Outputs and mutations must not both be empty."""
    ir = everything()
    ir.graph_outputs = []
    ir.output_tree = None
    assert ir.check() is ir
    assert ir.clone().output_tree is None


def test_a_branch_has_as_many_keys_as_items() -> None:
    """A structure that cannot be flattened is rejected at construction."""
    with pytest.raises(GraphError, match="a dict of 2 items cannot have 1 keys"):
        Branch("dict", (1, 2), ("a",))
    with pytest.raises(GraphError, match="a list of 1 items cannot have 1 keys"):
        Branch("list", (1,), ("a",))
    with pytest.raises(GraphError, match="'set' is not one of tuple, list, dict, object"):
        Branch("set", ())
    assert Branch("object", (1, 2)).keys == ()


def test_constants_have_exactly_the_bytes_of_their_shape() -> None:
    """Raw values have the length of shape and dtype, and a known dtype."""
    with pytest.raises(GraphError, match=r"float32\[2\] takes 8 bytes, but 7 were given"):
        TensorData((2,), "float32", bytes(7))
    with pytest.raises(GraphError, match="unknown dtype 'float23'; did you mean 'float32'"):
        TensorData((2,), "float23", bytes(8))
    with pytest.raises(GraphError, match=r"a constant cannot have the shape \[-1\]"):
        TensorData((-1,), "float32", b"")
    with pytest.raises(GraphError, match="neither 0 nor 1"):
        TensorData((3,), "bool", b"\x00\x02\x01")
    assert TensorData((3,), "bool", b"\x00\x01\x01").raw == b"\x00\x01\x01"
    assert TensorData((2, 0), "float32", b"").raw == b""
