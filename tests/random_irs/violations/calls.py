"""Violations that only torch's operator schemas reveal (R9 to R13)."""

from tests.random_irs.draws import Draw
from tests.random_irs.violations.kinds import violation
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.errors import ShapeError
from torch_ir.ir import IR, Dtype, MemoryFormat, OpNode
from torch_ir.ops.schema import arguments, find_operator

_UNKNOWN = (
    "aten.relu.nothing", "aten.add.default.__class__", "aten.add.Tensor.default", "aten.__class__.default",
    "higher_order.__init__", "aten.relu", "os system",
)  # fmt: skip
_FORBIDDEN = ("aten.from_file.default", "aten.set_.source_Tensor", "aten.resize_.default", "prim.Print.default",
              "aten.record_stream.default", "profiler._record_function_enter.default")  # fmt: skip


def _nodes(ir: IR) -> list[tuple[str, OpNode]]:
    """Calls of aten operators, with their paths; those in functions are left out."""
    return [(f"$.nodes[{index}]", node) for index, node in enumerate(ir.nodes) if node.op_type.startswith("aten.")]


def _typed(ir: IR, word: str) -> list[tuple[str, OpNode, str]]:
    """Return attributes of exactly this schema type."""
    found = []
    for path, node in _nodes(ir):
        operator = find_operator(node.op_type)
        assert operator is not None
        for argument in operator._schema.arguments:  # type: ignore[union-attr]
            if str(argument.real_type) == word and argument.name in node.attrs:
                found.append((path, node, argument.name))
    return found


def _set(draw: Draw, ir: IR, word: str, *values: object) -> str | None:
    """Set one attribute of that type to a value of another type."""
    if not (found := _typed(ir, word)):
        return None
    path, node, name = draw.choice(found)
    node.attrs[name] = draw.choice(values)
    return f"{path}.attrs.{name}"


@violation("R9", "graph")
def an_operator_that_is_none(draw: Draw, ir: IR) -> str | None:
    if not (found := _nodes(ir)):
        return None
    path, node = draw.choice(found)
    node.op_type = draw.choice(_UNKNOWN)
    return f"{path}.op_type"


@violation("R10", "graph")
def a_forbidden_operator(draw: Draw, ir: IR) -> str | None:
    if not (found := _nodes(ir)):
        return None
    path, node = draw.choice(found)
    node.op_type = draw.choice(_FORBIDDEN)
    return f"{path}.op_type"


@violation("R11", "graph")
def text_for_a_whole_number(draw: Draw, ir: IR) -> str | None:
    return _set(draw, ir, "int", "1", 0.5, True, None, [1], Dtype("int64"))


@violation("R11", "graph")
def text_for_a_flag(draw: Draw, ir: IR) -> str | None:
    return _set(draw, ir, "bool", "True", 1, 0.0, None, [True])


@violation("R11", "graph")
def text_for_a_number(draw: Draw, ir: IR) -> str | None:
    return _set(draw, ir, "float", "nan", None, [0.5], 1j)


@violation("R11", "graph")
def text_for_a_scalar(draw: Draw, ir: IR) -> str | None:
    return _set(draw, ir, "number", "1", None, [1])


@violation("R11", "graph")
def a_number_for_a_text(draw: Draw, ir: IR) -> str | None:
    return _set(draw, ir, "str", 1, None, ["a"])


@violation("R11", "graph")
def a_text_for_a_list(draw: Draw, ir: IR) -> str | None:
    return _set(draw, ir, "List[int]", "1, 2", ["1"], [0.5], [None], {"a": 1})


@violation("R11", "graph")
def a_text_for_a_dtype(draw: Draw, ir: IR) -> str | None:
    return _set(draw, ir, "Optional[ScalarType]", "float32", 6, MemoryFormat("channels_last"))


@violation("R11", "graph")
def a_text_for_a_device(draw: Draw, ir: IR) -> str | None:
    return _set(draw, ir, "Optional[Device]", "cpu", 0)


@violation("R11", "graph")
def a_value_for_a_generator(draw: Draw, ir: IR) -> str | None:
    return _set(draw, ir, "Optional[Generator]", 0, "state")


@violation("R11", "graph")
def an_argument_that_is_not_taken(draw: Draw, ir: IR) -> str | None:
    if not (found := _nodes(ir)):
        return None
    path, node = draw.choice(found)
    node.attrs["no_such_argument"] = 1
    return f"{path}.attrs.no_such_argument"


@violation("R11", "graph")
def an_argument_that_is_missing(draw: Draw, ir: IR) -> str | None:
    found = []
    for path, node in _nodes(ir):
        operator = find_operator(node.op_type)
        assert operator is not None
        needed = [argument.name for argument in arguments(operator) if not argument.has_default]
        found += [(path, node, name) for name in needed if name in node.attrs]
    if not found:
        return None
    path, node, name = draw.choice(found)
    del node.attrs[name]
    return f"{path}.attrs"


@violation("R11", "graph")
def a_tensor_for_a_value(draw: Draw, ir: IR) -> str | None:
    """An attribute becomes a tensor that the node reads already."""
    found = [found for word in ("int", "bool", "str", "List[bool]") for found in _typed(ir, word) if found[1].inputs]
    if not found:
        return None
    path, node, name = draw.choice(found)
    del node.attrs[name]
    node.set_inputs([*node.inputs, node.inputs[0]], [*node.args, name])
    return f"{path}.args[{len(node.args) - 1}]"


def _derived(ir: IR) -> list[tuple[str, OpNode]]:
    """Return nodes of known shapes whose results only the caller reads."""
    shapes = Shapes(ir)
    found = []
    for path, node in _nodes(ir):
        is_read = any(set(made.consumers) - {ir.returns} for made in node.outputs)
        is_open = not all(tensor.is_static and tensor.stride is None for tensor in (*node.inputs, *node.outputs))
        is_bound = any(value in node.outputs for _, value in ir.mutations)
        try:
            if node.outputs and not (is_read or is_open or is_bound) and shapes.of(node):
                found.append((path, node))
        except ShapeError:
            continue
    return found


@violation("R12", "graph")
def a_result_of_another_shape(draw: Draw, ir: IR) -> str | None:
    if not (found := _derived(ir)):
        return None
    path, node = draw.choice(found)
    index = draw.randrange(len(node.outputs))
    shape = node.outputs[index].shape
    node.outputs[index].shape = draw.choice(
        ((*shape, 1), (*shape, 7), (*map(_one_more, shape[:1]), *shape[1:], *(7,) * (not shape)))
    )
    return f"{path}.outputs[{index}].shape"


def _one_more(dim: object) -> int:
    assert isinstance(dim, int)
    return dim + 1


@violation("R12", "graph")
def a_result_of_another_dtype(draw: Draw, ir: IR) -> str | None:
    if not (found := _derived(ir)):
        return None
    path, node = draw.choice(found)
    index = draw.randrange(len(node.outputs))
    node.outputs[index].dtype = "int16" if node.outputs[index].dtype != "int16" else "int8"
    return f"{path}.outputs[{index}].dtype"


@violation("R12", "graph")
def a_result_too_many(draw: Draw, ir: IR) -> str | None:
    if not (found := _derived(ir)):
        return None
    path, node = draw.choice(found)
    node.outputs = [*node.outputs, node.outputs[0].copy("one_result_more")]
    return f"{path}.outputs"
