"""`from_fx`: convert a torch.fx GraphModule of `symbolic_trace`, `make_fx` or a back end of torch.compile."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.export import Dim

from torch_ir.capture.export.symbolic_sizes import SymbolNames, bounds, is_symbolic, shape_environment
from torch_ir.capture.extract_model import extract_ir
from torch_ir.errors import ExportError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.io_tree import call
from torch_ir.ops.torch_internals import FakeTensor, PyTreeCodeGen, codegen_of, pytree, tracing

_LOCAL = re.compile(r"^L\['\w+'\]\.?")  # torch.compile's name for the variable that holds the model
_SIZE = torch.ops.aten.sym_size.int


def from_fx(graph_module: fx.GraphModule, example_inputs: Sequence[Any] | None = None, *, model_name: str = "") -> IR:
    """Convert a graph module to an IR; its nodes may call modules, methods, functions or ATen operators.

    Example inputs are optional if placeholders have a `meta["val"]` or `meta["example_value"]`, as torch's tracers
    write them; sizes that vary there vary in the IR. Module paths and source lines are those of the nodes.
    A number that is the size of another input, as torch.compile passes them, becomes an unread input.
    """
    if not isinstance(graph_module, fx.GraphModule):
        raise ExportError(f"from_fx takes a torch.fx.GraphModule, not {graph_module!r:.80}")
    name = model_name or type(graph_module).__name__
    inputs = _inputs(graph_module, example_inputs, name)
    module, shown = _without_numbers(graph_module, inputs)
    left = [given for at, given in enumerate(inputs) if at not in shown]
    args, kwargs = _nested(module, [_sample(given.value) for given in left])
    dynamic_shapes = _dynamic_shapes(module, [given.known for given in left])
    try:
        with tracing(None):  # a back end of torch.compile runs inside a trace, whose guards must not change
            ir = extract_ir(module, args, kwargs=kwargs, strict=False, model_name=name, dynamic_shapes=dynamic_shapes)
    except ExportError as error:
        raise _of_numbers(module, error) from error
    _refuse_fixed_sizes(ir, left)
    for at, number in shown.items():
        ir.graph_inputs.insert(at, TensorMeta(number, (), "int64"))
        ir.input_tree = call(len(ir.graph_inputs))
    return _with_paths_of_model(ir).check()


class _Input(NamedTuple):
    """A placeholder: the value that its tracer recorded, and the value to capture with."""

    name: str
    known: Any
    value: Any


def _inputs(graph_module: fx.GraphModule, example_inputs: Sequence[Any] | None, name: str) -> list[_Input]:
    nodes = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    known = [node.meta.get("val", node.meta.get("example_value")) for node in nodes]
    values = known if example_inputs is None else pytree.tree_leaves(tuple(example_inputs))
    if len(values) != len(nodes):
        raise ExportError(f"{name} takes {len(nodes)} inputs, but example_inputs has {len(values)}")
    inputs = [_Input(*each) for each in zip((node.name for node in nodes), known, values, strict=True)]
    unknown = next((given.name for given in inputs if given.value is None and example_inputs is None), None)
    if unknown is not None:
        raise ExportError(f"the input {unknown!r} of {name} has no metadata; pass example_inputs")
    return inputs


def _without_numbers(graph_module: fx.GraphModule, inputs: Sequence[_Input]) -> tuple[fx.GraphModule, dict[int, str]]:
    """Return a module that reads sizes from tensors instead of number inputs, and the positions of those inputs.

    It is in training mode if a module that it calls is: the graph itself has no mode.
    """
    module = fx.GraphModule(graph_module, copy.deepcopy(graph_module.graph))
    module.training = any(
        module.get_submodule(str(node.target)).training for node in module.graph.nodes if node.op == "call_module"
    )
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    places = {
        str(size): (node, dim)
        for node, given in zip(placeholders, inputs, strict=True)
        if isinstance(given.known, Tensor)
        for dim, size in enumerate(given.known.shape)
        if _varies(size)
    }
    shown: dict[int, str] = {}
    for at, (node, given) in enumerate(zip(placeholders, inputs, strict=True)):
        if is_symbolic(given.known) and str(given.known) in places:
            with module.graph.inserting_after(placeholders[-1]):
                node.replace_all_uses_with(module.graph.call_function(_SIZE, places[str(given.known)]))
            module.graph.erase_node(node)
            shown[at] = given.name
    module.recompile()
    return module, shown


def _varies(size: Any) -> bool:
    """Whether a size is symbolic and its tracer did not specialise it."""
    return is_symbolic(size) and not size.node.expr.is_number


def _sample(value: Any) -> Any:
    """Return a value to capture with: a meta tensor if only the metadata is known."""
    if is_symbolic(value):
        return _hint(value)
    if isinstance(value, FakeTensor):
        sizes, strides = ([_hint(number) for number in numbers] for numbers in (value.shape, value.stride()))
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
    return value


def _hint(number: Any) -> Any:
    found = number.node.hint if is_symbolic(number) else number
    if found is None:
        raise ExportError(f"the size {number} depends on data outside the graph module; pass example_inputs")
    return found


def _nested(module: fx.GraphModule, values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `forward`; those of a torch.export module are nested."""
    codegen = codegen_of(module.graph)
    if not isinstance(codegen, PyTreeCodeGen):
        return tuple(values), {}
    args, kwargs = pytree.tree_unflatten(values, codegen.pytree_info.in_spec)
    return tuple(args), dict(kwargs)


def _dynamic_shapes(module: fx.GraphModule, known: Sequence[Any]) -> Any:
    """Return the sizes that vary, by name; None if none does."""
    environment = shape_environment(value for value in known if isinstance(value, Tensor))
    names = SymbolNames(environment)
    specs = [_spec(value, names, environment) for value in known]
    if not any(specs):
        return None
    args, kwargs = _nested(module, specs)
    if not isinstance(codegen_of(module.graph), PyTreeCodeGen):
        return args
    arguments = [name for name in codegen_of(module.graph).pytree_info.orig_args if name != "self"]
    return {**dict(zip(arguments, args, strict=False)), **kwargs}


def _spec(value: Any, names: SymbolNames, environment: Any) -> Any:
    """Return the dynamic_shapes entry of one input."""
    if _varies(value):
        return Dim.DYNAMIC
    if not isinstance(value, Tensor):
        return None
    return {dim: _dim(size, names, environment) for dim, size in enumerate(value.shape) if _varies(size)} or None


def _dim(size: Any, names: SymbolNames, environment: Any) -> Any:
    """Return a named dimension with its range if the user named it, else Dim.AUTO."""
    symbol = size.node.expr
    if str(symbol) not in names.names:
        return Dim.AUTO
    low, high = bounds(environment.var_to_range.get(symbol), None, is_input=True)
    return Dim(names.name(symbol), min=low, max=high)


def _refuse_fixed_sizes(ir: IR, inputs: Sequence[_Input]) -> None:
    """Raise if a size that varies in the graph module is fixed in the graph: its results would be wrong."""
    tensors = {tensor.name: tensor for tensor in ir.graph_inputs}
    for given in inputs:
        if given.name in tensors and isinstance(given.known, Tensor):
            for dim, size in enumerate(given.known.shape):
                if _varies(size) and isinstance(tensors[given.name].shape[dim], int):
                    fixed = tensors[given.name].shape[dim]
                    raise ExportError(
                        f"dimension {dim} of {given.name!r} varies in the graph module, but the graph is valid "
                        f"only for {fixed}; trace with fixed sizes"
                    )


def _of_numbers(module: fx.GraphModule, error: ExportError) -> ExportError:
    """Return the error, or an explanation: torch.compile passes Python floats as tensors if sizes vary."""
    asked = [node for node in module.graph.nodes if node.op == "call_method" and node.target == "item"]
    if not any(node.args[0].op == "placeholder" for node in asked):
        return error
    return ExportError(
        "torch.compile(dynamic=True) made inputs of Python floats, such as the eps of a layer, which operators need "
        "as numbers; set torch._dynamo.config.specialize_float = True",
        cause=error.cause,
    )


def _with_paths_of_model(ir: IR) -> IR:
    """Make module paths start at the model, not at the variable that held it."""
    for node in ir.all_nodes():
        outer = tuple(_LOCAL.sub("", text) for text in node.origin.outer)
        node.origin = node.origin._replace(module=_LOCAL.sub("", node.origin.module), outer=outer)
    ir.modules = {_LOCAL.sub("", path): kind for path, kind in ir.modules.items()}
    return ir
