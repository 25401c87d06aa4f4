"""check(): one rule at a time is broken, and the message names the place."""

import re
from collections.abc import Callable

import pytest

from tests.graphs import chain, everything, mlp, tensor, weight
from torch_ir import validate_ir
from torch_ir.errors import GraphError, SerializationError
from torch_ir.ir import (
    IR,
    Branch,
    Device,
    Dtype,
    Expr,
    FunctionRef,
    Layout,
    MemoryFormat,
    OpNode,
    Param,
    Slot,
    Symbol,
    TensorData,
    TensorMeta,
)

Change = Callable[[IR], None]
CASES: list[tuple[Change, str]] = []


def breaks(message: str) -> Callable[[Change], Change]:
    """One rule: the decorated function breaks it in a graph that holds; `message` is what check() then says."""

    def listed(change: Change) -> Change:
        CASES.append((change, message))
        return change

    return listed


def test_a_graph_that_holds_is_given_back() -> None:
    """check() returns the graph, so that it can end a line; the documented validate_ir says True."""
    ir = mlp()
    assert ir.check() is ir
    assert validate_ir(ir) is True


def test_validate_says_what_check_says() -> None:
    """The documented function says the same sentence, as the documented error."""
    ir = mlp()
    ir.nodes.pop(1)
    with pytest.raises(SerializationError, match=r"OpNode\('linear_1', .*\) reads 'relu', which nothing before"):
        validate_ir(ir)


# -- names ------------------------------------------------------------------------------------------------------------


@breaks("two nodes are called 'max_1'")
def two_nodes_of_one_name(ir: IR) -> None:
    ir.nodes[0].name = "max_1"


@breaks("two tensors are called 'mm'")
def two_tensors_of_one_name(ir: IR) -> None:
    ir.graph_inputs[1].name = "mm"


@breaks("two tensors are called 'x'")
def one_tensor_listed_twice(ir: IR) -> None:
    ir.graph_inputs.append(ir.graph_inputs[0])


@breaks("'' cannot be the name of a node")
def a_node_without_a_name(ir: IR) -> None:
    ir.nodes[0].name = ""


@breaks(r"'a\nb' cannot be the name of a node")
def a_node_whose_name_breaks_the_line(ir: IR) -> None:
    ir.nodes[0].name = "a\nb"


@breaks("'<script>' cannot be the name of a tensor")
def a_tensor_whose_name_is_markup(ir: IR) -> None:
    ir.graph_inputs[0].name = "<script>"


@breaks("cannot be the name of a tensor")
def a_tensor_whose_name_is_endless(ir: IR) -> None:
    ir.graph_inputs[0].name = "x" * 1001


@breaks("7 cannot be the name of a node")
def a_node_whose_name_is_a_number(ir: IR) -> None:
    ir.nodes[0].name = 7  # type: ignore[assignment]


@breaks("'a`b' cannot be the name of a function")
def a_function_of_a_forbidden_name(ir: IR) -> None:
    ir.functions["a`b"] = chain("aten.neg.default")


@breaks("has an operator name that cannot be")
def an_operator_whose_name_breaks_the_line(ir: IR) -> None:
    ir.nodes[0].op_type = "aten.mm.default\naten.mm.default"


@breaks("OpNode('mm', 'return') has an operator name that cannot be")
def an_operator_that_is_called_return(ir: IR) -> None:
    ir.nodes[0].op_type = "return"


# -- links ------------------------------------------------------------------------------------------------------------


@breaks("OpNode('mm', 'aten.mm.default') reads 'cat', which nothing before it makes")
def a_read_before_it_is_made(ir: IR) -> None:
    ir.nodes[0].inputs = (ir.params[0], ir.node("cat").output)


@breaks("reads 'mask_', which nothing before it makes; did you mean 'mask'?")
def a_read_of_nothing(ir: IR) -> None:
    ir.nodes[0].inputs = (ir.params[0], tensor("mask_", 2))


@breaks("OpNode('mm', 'aten.mm.default') reads a 'x' that is not the one of this graph")
def a_read_of_a_stranger_with_a_known_name(ir: IR) -> None:
    ir.nodes[0].inputs = (ir.params[0], tensor("x", 2, "batch"))


@breaks("OpNode('return', 'return') reads 'nobody', which nothing before it makes")
def an_output_that_nobody_makes(ir: IR) -> None:
    ir.graph_outputs = [tensor("nobody", 2), *ir.graph_outputs[1:]]


@breaks("TensorMeta('mm', (3, 'batch'), 'float32') does not know that OpNode('max_1', 'aten.max.dim') reads it")
def a_reader_that_is_not_counted(ir: IR) -> None:
    ir.nodes[0].output._uses.pop(ir.node("max_1"))


@breaks("does not know that it is output 0 of OpNode('max_1', 'aten.max.dim')")
def an_output_that_another_node_claims(ir: IR) -> None:
    OpNode("thief", "aten.neg.default", [], [ir.node("max_1").outputs[0]])


@breaks("does not know that it is output 1 of OpNode('max_1', 'aten.max.dim')")
def an_output_with_a_wrong_index(ir: IR) -> None:
    ir.node("max_1").outputs[1].index = 0


@breaks("TensorMeta('x', (2, 'batch'), 'float32') is given to the graph, but 'thief' claims to make it")
def an_input_that_a_node_claims(ir: IR) -> None:
    OpNode("thief", "aten.neg.default", [], [ir.graph_inputs[0]])


@breaks("is given to the graph, but 'elsewhere' claims to make it")
def an_input_that_says_it_is_made(ir: IR) -> None:
    ir.graph_inputs.append(TensorMeta("y", (2,), "float32", "elsewhere"))


# -- tensors ----------------------------------------------------------------------------------------------------------


@breaks("TensorMeta('x', (2, 'batch'), 'float23') has an unknown dtype; did you mean 'float32'?")
def an_unknown_dtype(ir: IR) -> None:
    ir.graph_inputs[0].dtype = "float23"


@breaks("TensorMeta('mm', (-1, 'batch'), 'float32') has a dimension of -1")
def a_negative_dimension(ir: IR) -> None:
    ir.nodes[0].output.shape = (-1, "batch")


@breaks("has a dimension of True")
def a_dimension_that_is_no_number(ir: IR) -> None:
    ir.nodes[0].output.shape = (True, "batch")


@breaks("has a dimension of 9223372036854775808")
def a_dimension_beyond_64_bits(ir: IR) -> None:
    ir.nodes[0].output.shape = (1 << 63, "batch")


@breaks("TensorMeta('mm', (3, 'batch *'), 'float32'): bad expression 'batch *': it ends too early")
def a_dimension_that_does_not_parse(ir: IR) -> None:
    ir.nodes[0].output.shape = (3, "batch *")


@breaks("'2*bacth' speaks of an unknown symbol 'bacth'; did you mean 'batch'?")
def a_dimension_of_an_unknown_symbol(ir: IR) -> None:
    ir.nodes[0].output.shape = (3, "2*bacth")


@breaks("TensorMeta('mm', (3, 'batch'), 'float32') has 1 strides")
def strides_that_do_not_fit_the_shape(ir: IR) -> None:
    ir.nodes[0].output.stride = (1,)


@breaks("speaks of an unknown symbol 'q'")
def a_stride_of_an_unknown_symbol(ir: IR) -> None:
    ir.nodes[0].output.stride = ("q", 1)


# -- symbols ----------------------------------------------------------------------------------------------------------


@breaks("'1st' cannot be the name of a symbol")
def a_symbol_of_a_forbidden_name(ir: IR) -> None:
    ir.symbols["1st"] = Symbol("1st", 0, 9, ir.graph_inputs[0], 1)


@breaks("'max' cannot be the name of a symbol")
def a_symbol_called_like_a_function(ir: IR) -> None:
    ir.symbols["max"] = Symbol("max", 0, 9, ir.graph_inputs[0], 1)


@breaks("'other' cannot be the name of a symbol")
def a_symbol_filed_under_another_name(ir: IR) -> None:
    ir.symbols["other"] = ir.symbols["batch"]


@breaks("symbol 'batch' can have no value: 65 <= batch <= 64")
def a_symbol_with_an_empty_range(ir: IR) -> None:
    ir.symbols["batch"].min = 65


@breaks("symbol 'batch' can have no value")
def a_symbol_beyond_64_bits(ir: IR) -> None:
    ir.symbols["batch"].max = 1 << 63


@breaks("symbol 'batch' is bound to nothing")
def a_symbol_without_a_place(ir: IR) -> None:
    ir.symbols["batch"].tensor = None


@breaks("symbol 'batch' is bound to dimension 2 of TensorMeta('x', (2, 'batch'), 'float32')")
def a_symbol_bound_beyond_the_shape(ir: IR) -> None:
    ir.symbols["batch"].dim = 2


@breaks("symbol 'batch' is not in dimension 0 of TensorMeta('x', (2, 'batch'), 'float32')")
def a_symbol_bound_to_a_number(ir: IR) -> None:
    ir.symbols["batch"].dim = 0


@breaks("symbol 'batch' is bound to TensorMeta('y', ('batch',), 'float32'), which is not part of the graph")
def a_symbol_bound_outside_the_graph(ir: IR) -> None:
    ir.symbols["batch"].tensor = tensor("y", "batch")


@breaks("constraint: 'sequence > 0' speaks of an unknown symbol 'sequence'")
def a_constraint_on_an_unknown_symbol(ir: IR) -> None:
    ir.constraints.append("sequence > 0")


@breaks("constraint: bad expression 'batch = 4'")
def a_constraint_that_does_not_parse(ir: IR) -> None:
    ir.constraints.append("batch = 4")


# -- arguments --------------------------------------------------------------------------------------------------------


@breaks("OpNode('add', 'aten.add.Tensor') has the argument 'self' twice")
def an_argument_that_is_a_tensor_and_an_attribute(ir: IR) -> None:
    ir.node("add").attrs["self"] = 1


@breaks("OpNode('add', 'aten.add.Tensor') has 1 inputs, but 2 argument names")
def fewer_inputs_than_names(ir: IR) -> None:
    ir.node("add").inputs = (ir.params[1],)


@breaks("OpNode('cat', 'aten.cat.default') has elements 0, 1, 3 of 'tensors', which is no list from 0 on")
def a_list_with_a_gap(ir: IR) -> None:
    cat = ir.node("cat")
    cat.set_inputs(cat.inputs, ["tensors.0", "tensors.3"])


@breaks("OpNode('cat', 'aten.cat.default') has elements 0, 1, 2 of 'tensors', which is no list from 0 on")
def a_list_beside_its_elements(ir: IR) -> None:
    ir.node("cat").attrs["tensors"] = []


@breaks("has an argument whose name cannot be: ''")
def an_argument_without_a_name(ir: IR) -> None:
    ir.node("add").attrs[""] = 1


@breaks("OpNode('add', 'aten.add.Tensor'): '2*seq' speaks of an unknown symbol 'seq'")
def an_attribute_of_an_unknown_symbol(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = Expr("2*seq")


@breaks("OpNode('add', 'aten.add.Tensor'): 'seq' speaks of an unknown symbol 'seq'")
def an_unknown_symbol_deep_inside_an_attribute(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = [{"deep": [1, Expr("seq")]}]


@breaks("OpNode('call', 'call') calls 'boby', which is not a function; did you mean 'body'?")
def a_call_of_an_unknown_function(ir: IR) -> None:
    ir.node("call").attrs["function"] = FunctionRef("boby")


@breaks("has an attribute Dtype('float33'), which is unknown")
def an_attribute_of_an_unknown_dtype(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = Dtype("float33")


@breaks("has an attribute Device('gpu'), which is unknown")
def an_attribute_of_an_unknown_device(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = Device("gpu")


@breaks("has an attribute Layout('dense'), which is unknown")
def an_attribute_of_an_unknown_layout(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = [Layout("dense")]


@breaks("has an attribute MemoryFormat('nhwc'), which is unknown")
def an_attribute_of_an_unknown_memory_format(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = MemoryFormat("nhwc")


@breaks("has an attribute {1}, which no attribute can be")
def an_attribute_that_no_file_can_hold(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = {1}


@breaks("has an attribute Slot(0), which no attribute can be")
def an_attribute_that_belongs_into_a_structure(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = Slot(0)


# -- weights ----------------------------------------------------------------------------------------------------------


@breaks("weight TensorMeta('p_w', (3, 2), 'float32') has no key or an unknown kind")
def a_weight_that_is_none(ir: IR) -> None:
    ir.params[0].param = None


@breaks("has no key or an unknown kind")
def a_weight_without_a_key(ir: IR) -> None:
    ir.params[0].param = Param(())


@breaks("has no key or an unknown kind")
def a_weight_of_an_unknown_kind(ir: IR) -> None:
    ir.params[0].param = Param(("w",), "secret")


@breaks(
    "TensorMeta('b_state', (3,), 'float32') and TensorMeta('p_w', (3, 2), 'float32') both hold the weight 'second.w'"
)
def two_weights_of_one_key(ir: IR) -> None:
    ir.params[1].param = Param(("second.w",), "buffer")


@breaks(r"'a\x00' cannot be the key of a weight")
def a_weight_whose_key_has_control_characters(ir: IR) -> None:
    ir.params[0].param = Param(("a\0",))


@breaks("TensorMeta('c_steps', (2,), 'int16') holds values of uint8[4]")
def a_constant_whose_values_are_of_another_type(ir: IR) -> None:
    ir.params[2].param = Param(("steps",), "constant", TensorData((4,), "uint8", bytes(4)))


# -- returns ----------------------------------------------------------------------------------------------------------


@breaks("the graph changes TensorMeta('mm', (3, 'batch'), 'float32'), which is neither an input nor a weight")
def a_mutation_of_a_value(ir: IR) -> None:
    mm = ir.nodes[0].output
    ir.mutations = [(mm, mm)]


@breaks("the graph changes TensorMeta('stranger', (3,), 'float32'), which is neither an input nor a weight")
def a_mutation_of_a_stranger(ir: IR) -> None:
    ir.mutations = [(weight("stranger", 3), ir.node("add").output)]


@breaks("the graph changes TensorMeta('b_state', (3,), 'float32') twice")
def a_mutation_twice(ir: IR) -> None:
    ir.mutations = [*ir.mutations, *ir.mutations]


@breaks("cannot become TensorMeta('mm', (3, 'batch'), 'float32'): shape and dtype must stay")
def a_mutation_that_changes_the_shape(ir: IR) -> None:
    ir.mutations = [(ir.params[1], ir.nodes[0].output)]


@breaks("the graph returns nothing and changes nothing")
def a_graph_that_gives_nothing(ir: IR) -> None:
    ir.graph_outputs = []
    ir.mutations = []
    ir.output_tree = Branch("tuple", ())


# -- structures -------------------------------------------------------------------------------------------------------


@breaks("output_tree has slots [0, 1, 2] for 4 tensors")
def an_output_without_a_place(ir: IR) -> None:
    ir.output_tree = Branch("tuple", (Slot(0), Slot(1), Slot(2)))


@breaks("output_tree has slots [0, 1, 2, 2] for 4 tensors")
def an_output_with_two_places(ir: IR) -> None:
    ir.output_tree = Branch("tuple", (Slot(0), Slot(1), Slot(2), Slot(2)))


@breaks("output_tree['size']: 'seq' speaks of an unknown symbol 'seq'")
def a_returned_number_of_an_unknown_symbol(ir: IR) -> None:
    slots = Branch("tuple", tuple(map(Slot, range(4))))
    ir.output_tree = Branch("dict", (slots, Expr("seq")), ("all", "size"))


@breaks("input_tree has slots [0] for 2 tensors")
def an_input_without_a_place(ir: IR) -> None:
    ir.input_tree = Branch("tuple", (Branch("tuple", (Slot(0),)), Branch("dict", ())))


@breaks("input_tree is not a pair of arguments and keywords")
def inputs_that_are_no_call(ir: IR) -> None:
    ir.input_tree = Branch("tuple", (Slot(0), Slot(1)))


# -- functions --------------------------------------------------------------------------------------------------------


@breaks("function 'body': OpNode('call', 'call') reads 'neg', which nothing before it makes")
def a_broken_function(ir: IR) -> None:
    del ir.functions["body"].nodes[0]


@breaks("function 'body': function 'inner': TensorMeta('relu', ('seq',), 'float32'): 'seq' speaks of an unknown symbol")
def a_broken_function_of_a_function(ir: IR) -> None:
    ir.functions["body"].functions["inner"].nodes[0].output.shape = ("seq",)


@breaks("function 'body': OpNode('call', 'call') calls 'body', which is not a function")
def a_function_that_calls_itself(ir: IR) -> None:
    ir.functions["body"].node("call").attrs["function"] = FunctionRef("body")


@breaks("OpNode('call', 'call') does not give its function the argument")
def a_call_with_another_argument(ir: IR) -> None:
    body = ir.functions["body"]
    body.functions["inner"].graph_inputs[0].dtype = "float64"


@breaks("OpNode('call', 'call') does not have the outputs that its function gives")
def a_call_with_another_output(ir: IR) -> None:
    ir.functions["body"].functions["inner"].nodes[-1].output.dtype = "float64"


@breaks("cannot be the name of a model or a version: it cannot be printed")
def a_model_name_that_steers_the_terminal(ir: IR) -> None:
    ir.model_name = "net\x1b[31m"


@breaks("functions are nested deeper than 20 levels")
def a_function_that_holds_itself(ir: IR) -> None:
    ir.functions["body"].functions["inner"] = ir.functions["body"]


# -- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "message"), CASES, ids=[change.__name__ for change, _ in CASES])
def test_rule(change: Change, message: str) -> None:
    """A graph that holds, one thing changed: check() says which rule is broken, and where."""
    ir = everything()
    assert ir.check() is ir
    change(ir)
    with pytest.raises(GraphError, match=re.escape(message)):
        ir.check()


# -- what is allowed --------------------------------------------------------------------------------------------------


def test_a_function_may_speak_of_the_sizes_around_it() -> None:
    """Symbols of the outer graph are known inside; those of a function are not known outside."""
    ir = everything()
    inner = ir.functions["body"].functions["inner"]
    assert not inner.symbols
    assert inner.nodes[0].output.shape == ("batch",)
    ir.symbols.clear()
    with pytest.raises(GraphError, match="unknown symbol 'batch'"):
        ir.check()


def test_a_model_that_returns_none_and_changes_a_buffer_holds() -> None:
    """What must not be empty is the whole of results and changes."""
    ir = everything()
    ir.graph_outputs = []
    ir.output_tree = None
    assert ir.check() is ir
    assert ir.clone().output_tree is None


def test_a_branch_has_as_many_keys_as_items() -> None:
    """A structure that cannot be taken apart is refused where it is made."""
    with pytest.raises(GraphError, match="a dict of 2 items cannot have 1 keys"):
        Branch("dict", (1, 2), ("a",))
    with pytest.raises(GraphError, match="a list of 1 items cannot have 1 keys"):
        Branch("list", (1,), ("a",))
    with pytest.raises(GraphError, match="'set' is not one of tuple, list, dict, object"):
        Branch("set", ())
    assert Branch("object", (1, 2)).keys == ()


def test_constants_have_exactly_the_bytes_of_their_shape() -> None:
    """Raw values are as long as shape and dtype say, and of a known dtype."""
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
