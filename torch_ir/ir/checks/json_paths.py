"""JSON paths of the parts of a graph in its document, for error messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_ir.ir.json.encode import shared_weights

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR
    from torch_ir.ir.graph.tensor import TensorMeta


def given_path(ir: IR, number: int, path: str, outer: IR | None = None) -> str:
    """Return the path of an input or weight, by its index among both; `path` is one within its record."""
    tail = path.removeprefix("$")
    if number < len(ir.graph_inputs):
        return f"$.graph_inputs[{number}]{tail}"
    number -= len(ir.graph_inputs)
    if tail == ".name":  # the name in a weight's record is its key
        return f"$.weight_name_mapping.{ir.params[number].name!s:.200}"
    return f"{weight_path(ir, number, outer)}{tail}"


def weight_path(ir: IR, number: int, outer: IR | None) -> str:
    """Return the path of a weight; a function lists the weights it shares with the enclosing graph separately."""
    around = {} if outer is None else {tensor.name: tensor for tensor in outer.params}
    shared = len(shared_weights(around, ir))
    return f"$.shared_weights[{number}]" if number < shared else f"$.weights[{number - shared}]"


def returned_path(ir: IR, number: int) -> str:
    """Return the path of an output, or of the new value of a mutated tensor."""
    outputs = len(ir.graph_outputs)
    return f"$.graph_outputs[{number}]" if number < outputs else f"$.mutations[{number - outputs}].value"


def tensor_path(ir: IR, tensor: TensorMeta, outer: IR | None) -> str:
    """Return the path of a tensor's definition."""
    for number, given in enumerate([*ir.graph_inputs, *ir.params]):
        if given is tensor:
            return given_path(ir, number, "$", outer)
    for number, node in enumerate(ir.nodes):
        for index, made in enumerate(node.outputs):
            if made is tensor:
                return f"$.nodes[{number}].outputs[{index}]"
    return "$"
