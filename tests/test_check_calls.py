"""check(): violations in calls, weights, results and functions, one at a time, and the place in the error."""

import pytest

from tests.breaking import Case, Cases
from tests.graphs import weight
from torch_ir.ir import (
    IR,
    Branch,
    Device,
    Dtype,
    Expr,
    FunctionRef,
    Layout,
    MemoryFormat,
    Param,
    Slot,
    TensorData,
)

CASES = Cases()
breaks = CASES.breaks


# -- arguments --------------------------------------------------------------------------------------------------------


@breaks("OpNode('add', 'aten.add.Tensor') has the argument 'self' twice", "R8", "$.nodes[2].attrs.self", node="add")
def an_argument_that_is_a_tensor_and_an_attribute(ir: IR) -> None:
    ir.node("add").attrs["self"] = 1


@breaks("OpNode('add', 'aten.add.Tensor') has 1 inputs, but 2 argument names", "R7", "$.nodes[2].args", node="add")
def fewer_inputs_than_names(ir: IR) -> None:
    ir.node("add").inputs = (ir.params[1],)


@breaks(
    "OpNode('cat', 'aten.cat.default') has elements 0, 1, 3 of 'tensors'; expected consecutive numbers from 0",
    "R11",
    "$.nodes[4].args",
    node="cat",
)
def a_list_with_a_gap(ir: IR) -> None:
    cat = ir.node("cat")
    cat.set_inputs(cat.inputs, ["tensors.0", "tensors.3"])


@breaks(
    "OpNode('cat', 'aten.cat.default') has elements 0, 1, 2 of 'tensors'; expected consecutive numbers from 0",
    "R11",
    "$.nodes[4].args",
    node="cat",
)
def a_list_beside_its_elements(ir: IR) -> None:
    ir.node("cat").attrs["tensors"] = []


@breaks("has an invalid argument name ''", "R6", "$.nodes[2].attrs.", node="add")
def an_argument_without_a_name(ir: IR) -> None:
    ir.node("add").attrs[""] = 1


@breaks(
    "OpNode('add', 'aten.add.Tensor'): '2*seq' reads an undefined symbol 'seq'",
    "R8",
    "$.nodes[2].attrs.alpha.$expr",
    node="add",
)
def an_attribute_of_an_unknown_symbol(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = Expr("2*seq")


@breaks(
    "OpNode('add', 'aten.add.Tensor'): 'seq' reads an undefined symbol 'seq'",
    "R8",
    "$.nodes[2].attrs.alpha[0].deep[1].$expr",
    node="add",
)
def an_unknown_symbol_deep_inside_an_attribute(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = [{"deep": [1, Expr("seq")]}]


@breaks(
    "OpNode('call', 'call') calls 'boby', which is not a function; did you mean 'body'?",
    "R8",
    "$.nodes[3].attrs.function.$function",
    node="call",
)
def a_call_of_an_unknown_function(ir: IR) -> None:
    ir.node("call").attrs["function"] = FunctionRef("boby")


@breaks("has an unknown attribute value Dtype('float33')", "R5", "$.nodes[2].attrs.alpha.$dtype", node="add")
def an_attribute_of_an_unknown_dtype(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = Dtype("float33")


@breaks("has an unknown attribute value Device('gpu')", "R5", "$.nodes[2].attrs.alpha.$device", node="add")
def an_attribute_of_an_unknown_device(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = Device("gpu")


@breaks("has an unknown attribute value Layout('dense')", "R5", "$.nodes[2].attrs.alpha[0].$layout", node="add")
def an_attribute_of_an_unknown_layout(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = [Layout("dense")]


@breaks(
    "has an unknown attribute value MemoryFormat('nhwc')", "R5", "$.nodes[2].attrs.alpha.$memory_format", node="add"
)
def an_attribute_of_an_unknown_memory_format(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = MemoryFormat("nhwc")


@breaks("has an attribute {1} of type set", "R11", "$.nodes[2].attrs.alpha", node="add")
def an_attribute_that_no_file_can_hold(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = {1}


@breaks("has an attribute Slot(0) of type Slot", "R11", "$.nodes[2].attrs.alpha", node="add")
def an_attribute_that_belongs_into_a_structure(ir: IR) -> None:
    ir.node("add").attrs["alpha"] = Slot(0)


# -- weights ----------------------------------------------------------------------------------------------------------


@breaks("weight TensorMeta('p_w', (3, 2), 'float32') has no key or an unknown kind", "R5", "$.params.p_w.kind")
def a_weight_that_is_none(ir: IR) -> None:
    ir.params[0].param = None


@breaks("has no key or an unknown kind", "R5", "$.params.p_w.kind")
def a_weight_without_a_key(ir: IR) -> None:
    ir.params[0].param = Param(())


@breaks("has no key or an unknown kind", "R5", "$.params.p_w.kind")
def a_weight_of_an_unknown_kind(ir: IR) -> None:
    ir.params[0].param = Param(("w",), "secret")


@breaks(
    "TensorMeta('b_state', (3,), 'float32') and TensorMeta('p_w', (3, 2), 'float32') both hold the weight 'second.w'",
    "R8",
    "$.weights[1].name",
)
def two_weights_of_one_key(ir: IR) -> None:
    ir.params[1].param = Param(("second.w",), "buffer")


@breaks(r"invalid weight key 'a\x00'", "R6", "$.weights[0].name")
def a_weight_whose_key_has_control_characters(ir: IR) -> None:
    ir.params[0].param = Param(("a\0",))


@breaks("TensorMeta('c_steps', (2,), 'int16') holds values of uint8[4]", "R7", "$.constants.steps")
def a_constant_whose_values_are_of_another_type(ir: IR) -> None:
    ir.params[2].param = Param(("steps",), "constant", TensorData((4,), "uint8", bytes(4)))


# -- returns ----------------------------------------------------------------------------------------------------------


@breaks(
    "the graph changes TensorMeta('mm', (3, 'batch'), 'float32'), which is neither an input nor a weight",
    "R8",
    "$.mutations[0].target",
)
def a_mutation_of_a_value(ir: IR) -> None:
    mm = ir.nodes[0].output
    ir.mutations = [(mm, mm)]


@breaks(
    "the graph changes TensorMeta('stranger', (3,), 'float32'), which is neither an input nor a weight",
    "R8",
    "$.mutations[0].target",
)
def a_mutation_of_a_stranger(ir: IR) -> None:
    ir.mutations = [(weight("stranger", 3), ir.node("add").output)]


@breaks("the graph changes TensorMeta('b_state', (3,), 'float32') twice", "R8", "$.mutations[1].target")
def a_mutation_twice(ir: IR) -> None:
    ir.mutations = [*ir.mutations, *ir.mutations]


@breaks(
    "cannot become TensorMeta('mm', (3, 'batch'), 'float32'): shape and dtype must stay", "R7", "$.mutations[0].value"
)
def a_mutation_that_changes_the_shape(ir: IR) -> None:
    ir.mutations = [(ir.params[1], ir.nodes[0].output)]


@breaks("the graph returns nothing and changes nothing", "R8", "$.graph_outputs")
def a_graph_that_gives_nothing(ir: IR) -> None:
    ir.graph_outputs = []
    ir.mutations = []
    ir.output_tree = Branch("tuple", ())


# -- structures -------------------------------------------------------------------------------------------------------


@breaks("output_tree has slots [0, 1, 2] for 4 tensors", "R7", "$.output_tree.tree")
def an_output_without_a_place(ir: IR) -> None:
    ir.output_tree = Branch("tuple", (Slot(0), Slot(1), Slot(2)))


@breaks("output_tree has slots [0, 1, 2, 2] for 4 tensors", "R7", "$.output_tree.tree")
def an_output_with_two_places(ir: IR) -> None:
    ir.output_tree = Branch("tuple", (Slot(0), Slot(1), Slot(2), Slot(2)))


@breaks("output_tree: 'seq' reads an undefined symbol 'seq'", "R8", "$.output_tree.tree.items[1].$expr")
def a_returned_number_of_an_unknown_symbol(ir: IR) -> None:
    slots = Branch("tuple", tuple(map(Slot, range(4))))
    ir.output_tree = Branch("dict", (slots, Expr("seq")), ("all", "size"))


@breaks("input_tree has slots [0] for 2 tensors", "R7", "$.input_tree")
def an_input_without_a_place(ir: IR) -> None:
    ir.input_tree = Branch("tuple", (Branch("tuple", (Slot(0),)), Branch("dict", ())))


@breaks("input_tree is not a pair of arguments and keywords", "R4", "$.input_tree")
def inputs_that_are_no_call(ir: IR) -> None:
    ir.input_tree = Branch("tuple", (Slot(0), Slot(1)))


# -- functions --------------------------------------------------------------------------------------------------------


@breaks(
    "function 'body': OpNode('call', 'call') reads 'neg', which nothing before it makes",
    "R8",
    "$.functions.body.nodes[0].inputs[0]",
    node="call",
)
def a_broken_function(ir: IR) -> None:
    del ir.functions["body"].nodes[0]


@breaks(
    "function 'body': function 'inner': TensorMeta('relu', ('seq',), 'float32'): 'seq' reads an undefined symbol",
    "R8",
    "$.functions.body.functions.inner.nodes[0].outputs[0].shape[0]",
    node="relu",
)
def a_broken_function_of_a_function(ir: IR) -> None:
    ir.functions["body"].functions["inner"].nodes[0].output.shape = ("seq",)


@breaks(
    "function 'body': OpNode('call', 'call') calls 'body', which is not a function",
    "R8",
    "$.functions.body.nodes[1].attrs.function.$function",
    node="call",
)
def a_function_that_calls_itself(ir: IR) -> None:
    ir.functions["body"].node("call").attrs["function"] = FunctionRef("body")


@breaks(
    "OpNode('call', 'call') does not match input",
    "R7",
    "$.functions.body.nodes[1].inputs[0]",
    node="call",
)
def a_call_with_another_argument(ir: IR) -> None:
    body = ir.functions["body"]
    body.functions["inner"].graph_inputs[0].dtype = "float64"


@breaks(
    "OpNode('call', 'call') does not match the outputs of its function",
    "R7",
    "$.functions.body.nodes[1].outputs",
    node="call",
)
def a_call_with_another_output(ir: IR) -> None:
    ir.functions["body"].functions["inner"].nodes[-1].output.dtype = "float64"


@breaks("is not printable", "R6", "$.model_name")
def a_model_name_that_steers_the_terminal(ir: IR) -> None:
    ir.model_name = "net\x1b[31m"


@breaks("functions are nested deeper than 20 levels", "R2", "$.functions.body" + 20 * ".functions.inner")
def a_function_that_holds_itself(ir: IR) -> None:
    ir.functions["body"].functions["inner"] = ir.functions["body"]


# -- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=[case.change.__name__ for case in CASES])
def test_rule(case: Case) -> None:
    """A valid graph with one change: check() names the violated rule and its place."""
    case.run()
