"""Helpers for tests of the text form: a graph without the facts that the text omits, and a round trip."""

from collections.abc import Iterator
from typing import Any

from torch_ir.analysis import diff
from torch_ir.ir import IR, Origin
from torch_ir.ir.text.text_constants import LEFT_OUT, print_data


def without_provenance(ir: IR) -> IR:
    """Return a copy with only the facts of the text form."""
    copy = ir.clone()
    for graph in graphs_in(copy):
        graph.pytorch_version, graph.modules = "", {}
        for node in graph.nodes:
            node.origin, node.origins = Origin(), (node.name,)
            if node.args == tuple(map(str, range(len(node.inputs)))):
                node.set_inputs(node.inputs, ())
    return copy


def graphs_in(ir: IR) -> Iterator[IR]:
    """The graph and all its functions."""
    yield ir
    for body in ir.functions.values():
        yield from graphs_in(body)


def left_out(ir: IR) -> dict[str, Any]:
    """The constants whose values `print(ir)` leaves out."""
    found = [item for graph in graphs_in(ir) for item in graph.constants.items()]
    return {key: data for key, data in found if print_data(data) == LEFT_OUT}


def fault_of_reading(ir: IR) -> str:
    """Return the difference between a graph and its parsed text; nothing if they are equal."""
    wanted = without_provenance(ir).to_json()
    for text, constants in ((str(ir), left_out(ir)), (ir.to_text(), {})):
        again = IR.parse(text, constants=constants)
        if again.to_json() != wanted:
            return f"document: not the same\n{text}"
        if (str(again), again.to_text()) != (str(ir), ir.to_text()):
            return f"print: not the same text\n{text}"
        if not (found := diff(ir, again)).is_equal:
            return f"diff: {found}"
    return ""
