"""Where the parts of a graph stand in its document, as JSON paths; asked only for errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_ir.ir.json.encode import shared_weights

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR
    from torch_ir.ir.graph.tensor import TensorMeta


def given_path(ir: IR, number: int, path: str = "$", outer: IR | None = None) -> str:
    """The path of an input, or else a weight, by its number among both; `path` is one within its record."""
    tail = path.removeprefix("$")
    if number < len(ir.graph_inputs):
        return f"$.graph_inputs[{number}]{tail}"
    number -= len(ir.graph_inputs)
    if tail == ".name":  # the name in a weight's record is its key
        return f"$.weight_name_mapping.{ir.params[number].name!s:.200}"
    return f"{weight_path(ir, number, outer)}{tail}"


def weight_path(ir: IR, number: int, outer: IR | None = None) -> str:
    """The path of a weight, by its number; a function does not list those that the graph around it has, too."""
    shared = 0 if outer is None else len(shared_weights(outer, ir))
    return f"$.shared_weights[{number}]" if number < shared else f"$.weights[{number - shared}]"


def returned_path(ir: IR, number: int) -> str:
    """The path of an output, or else of the new value of something that the graph changes."""
    outputs = len(ir.graph_outputs)
    return f"$.graph_outputs[{number}]" if number < outputs else f"$.mutations[{number - outputs}].value"


def tensor_path(ir: IR, tensor: TensorMeta, outer: IR | None = None) -> str:
    """The path of the place that defines a tensor."""
    for number, given in enumerate([*ir.graph_inputs, *ir.params]):
        if given is tensor:
            return given_path(ir, number, "$", outer)
    for number, node in enumerate(ir.nodes):
        for index, made in enumerate(node.outputs):
            if made is tensor:
                return f"$.nodes[{number}].outputs[{index}]"
    return "$"
