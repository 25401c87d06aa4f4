"""References that are undefined, ambiguous or inconsistent."""

from typing import Any

from tests.hostile_files.case import Family
from tests.hostile_files.documents import Document, changed, edited, flat, node, read, typed, written

FAMILY = Family("references")

_CHANGED: list[tuple[str, str, Any, str, str]] = [
    ("undefined input", "nodes[1].inputs[0].name", "nobody", "R8", r"\$\.nodes\[1\].*"),
    ("undefined output", "graph_outputs[0].name", "nobody", "R8", r"\$(\.graph_outputs.*)?"),
    ("duplicate node name", "nodes[4].name", "linear", "R8", r"\$\.nodes\[4\].*"),
    ("duplicate tensor name", "nodes[4].outputs[0].name", "linear", "R8", r"\$\.nodes\[4\].*"),
    ("tensor with the name of an input", "nodes[4].outputs[0].name", "x", "R8", r"\$\.nodes\[4\].*"),
    ("tensor with the name of a weight", "nodes[4].outputs[0].name", "p_fc_bias", "R8", r"\$\.nodes\[4\].*"),
    ("shape that contradicts the producer", "nodes[1].inputs[0].shape", ["batch", 9], "R7", r"\$\.nodes\[1\].*"),
    ("dtype that contradicts the producer", "nodes[1].inputs[0].dtype", "int8", "R7", r"\$\.nodes\[1\].*"),
    ("wrong producer", "nodes[1].inputs[0].producer_node", "call", "R7", r"\$\.nodes\[1\].*"),
    ("wrong output index of the producer", "nodes[1].inputs[0].producer_output_idx", 1, "R7", r"\$\.nodes\[1\].*"),
    ("negative output index", "nodes[1].inputs[0].producer_output_idx", -1, "R7", r"\$\.nodes\[1\].*"),
    ("output shape that contradicts its node", "graph_outputs[0].shape", ["batch", 9], "R7", r"\$(\.graph_outputs.*)?"),
    ("input that claims a producer", "graph_inputs[0].producer_node", "linear", "R7", r"\$(\.graph_inputs.*)?"),
    ("weight with another key", "weight_name_mapping.p_fc_weight", "fc.bias", "R7", r"\$\.weight_name_mapping.*"),
    ("constant without weight", "constants.ghost", {"dtype": "float32", "shape": [0], "base64": ""},
     "R8", r"\$\.constants.*"),
    ("constant with another shape", "weights[3].shape", [9], "R7", r"\$.*"),
    ("constant with another length", "constants.steps.shape", [7], "R15", r"\$\.constants\.steps.*"),
    ("constant with another dtype", "constants.steps.dtype", "float16", "R15", r"\$\.constants\.steps.*"),
    ("constant that is not base64", "constants.steps.base64", "%%%%", "R15", r"\$\.constants\.steps.*"),
    ("bool constant with other bytes", "constants.steps", {"dtype": "bool", "shape": [2], "base64": "AgM="},
     "R15", r"\$\.constants\.steps.*"),
    ("details of an unknown weight", "params.ghost", {"kind": "buffer"}, "R7", r"\$.*"),
    ("two weights under one key", "params.p_fc_weight.tied", ["fc.bias"], "R8", r"\$.*"),
    ("mutation of a tensor that is not an input", "mutations[0].target", "linear", "R8", r"\$(\.mutations.*)?"),
    ("mutation by an undefined tensor", "mutations[0].value", "ghost", "R8", r"\$\.mutations\[0\].*"),
    ("mutation with another shape", "mutations[0].value", "add", "R7", r"\$(\.mutations.*)?"),
    ("duplicate mutation", "mutations[1]", {"target": "b_state", "value": "mul"}, "R8", r"\$(\.mutations.*)?"),
    ("symbol of an undefined tensor", "symbols.batch.tensor", "ghost", "R8", r"\$\.symbols\.batch.*"),
    ("symbol of a missing dimension", "symbols.batch.dim", 7, "R8", r"\$(\.symbols.*)?"),
    ("symbol of the wrong dimension", "symbols.batch.dim", 1, "R7", r"\$(\.symbols.*)?"),
    ("symbol bound to nothing", "symbols.ghost", {"min": 1}, "R8", r"\$(\.symbols.*)?"),
    ("symbol without a value", "symbols.batch.min", 99, "R8", r"\$(\.symbols.*)?"),
    ("symbol with a reserved name", "symbols.where", {"tensor": "x", "dim": 1}, "R6", r"\$(\.symbols.*)?"),
    ("unknown symbol in a shape", "nodes[4].outputs[0].shape", ["ghost", 8], "R8", r"\$\.nodes\[4\].*"),
    ("unknown symbol in a constraint", "constraints[0]", "ghost > 1", "R8", r"\$(\.constraints.*)?"),
    ("constraint that calls a function", "constraints[0]", "open('x')", "R1", r"\$\.constraints\[0\]"),
    ("undefined function", "nodes[2].attrs.function", {"$function": "ghost"}, "R8", r"\$\.nodes\[2\].*"),
    ("call with a wrong argument", "nodes[2].args", ["other"], "R7", r"\$\.nodes\[2\].*"),
    ("call with a wrong result", "functions.body.graph_outputs[0].name", "value", "R8", ""),
    ("function that calls itself", "functions.body.nodes[0].attrs", {"function": {"$function": "body"}},
     "R8", r"\$\.functions\.body.*"),
    ("function with undefined weights", "functions.body.shared_weights", ["ghost"],
     "R8", r"\$\.functions\.body\.shared_weights.*"),
    ("function that shares an inner weight", "functions.body.shared_weights", ["fc.weight"],
     "R8", r"\$\.functions\.body\.shared_weights.*"),
    ("argument twice", "nodes[1].args", ["self", "self"], "R8", r"\$\.nodes\[1\].*"),
    ("argument that is also an attribute", "nodes[1].attrs.self", 1, "R8", r"\$\.nodes\[1\].*"),
    ("fewer names than inputs", "nodes[1].args", ["self"], "R7", r"\$\.nodes\[1\].*"),
    ("list without its first element", "nodes[1].args", ["self", "tensors.1"], "R11", r"\$\.nodes\[1\].*"),
    ("an operator named return", "nodes[1].op_type", "return", "R6", r"\$\.nodes\[1\].*"),
    ("mesh of size 0", "mesh", {"tp": 0}, "R4", r"\$(\.mesh.*)?"),
    ("placement without a mesh", "graph_inputs[0].placement", ["replicate"], "R7", r"\$(\.graph_inputs.*)?"),
]  # fmt: skip
for name, path, value, rule, place in _CHANGED:
    if name != "call with a wrong result":
        FAMILY.refused(name, changed(path, value), rule, place)


def _swap(found: Document) -> None:
    found["nodes"][0], found["nodes"][1] = found["nodes"][1], found["nodes"][0]


def _give_other(found: Document) -> None:
    found["functions"]["body"]["graph_outputs"][0]["shape"] = ["batch", 9]
    found["functions"]["body"]["nodes"][0]["outputs"][0]["shape"] = ["batch", 9]


FAMILY.refused("read before definition", edited(_swap), "R8", r"\$\.nodes\[0\].*")
FAMILY.refused("call with a wrong result", edited(_give_other), "R7", r"\$\.nodes\[2\].*")
_ITSELF = node("a", "aten.neg.default", [read("a", 2)], [typed("a", 2)], ["self"])
FAMILY.refused(
    "node that reads itself", written(flat([_ITSELF], [typed("x", 2)], [typed("a", 2)])), "R8", r"\$\.nodes\[0\].*"
)
_CYCLE = [
    node("a", "aten.neg.default", [read("b", 2)], [typed("a", 2)], ["self"]),
    node("b", "aten.neg.default", [read("a", 2)], [typed("b", 2)], ["self"]),
]
FAMILY.refused(
    "two nodes that read each other",
    written(flat(_CYCLE, [typed("x", 2)], [typed("b", 2)])),
    "R8",
    r"\$\.nodes\[0\].*",
)
