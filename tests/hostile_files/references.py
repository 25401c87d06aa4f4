"""References that are undefined, ambiguous or inconsistent."""

from typing import Any

from tests.hostile_files.case import Family
from tests.hostile_files.documents import Document, changed, edited, flat, node, read, typed, written

FAMILY = Family("references")

_CHANGED: list[tuple[str, str, Any, str, str]] = [
    ("input that nothing makes", "nodes[1].inputs[0].name", "nobody", "R8", r"\$\.nodes\[1\].*"),
    ("output that nothing makes", "graph_outputs[0].name", "nobody", "R8", r"\$(\.graph_outputs.*)?"),
    ("node called as another", "nodes[4].name", "linear", "R8", r"\$\.nodes\[4\].*"),
    ("tensor called as another", "nodes[4].outputs[0].name", "linear", "R8", r"\$\.nodes\[4\].*"),
    ("tensor called as an input", "nodes[4].outputs[0].name", "x", "R8", r"\$\.nodes\[4\].*"),
    ("tensor called as a weight", "nodes[4].outputs[0].name", "p_fc_bias", "R8", r"\$\.nodes\[4\].*"),
    ("shape restated otherwise", "nodes[1].inputs[0].shape", ["batch", 9], "R7", r"\$\.nodes\[1\].*"),
    ("dtype restated otherwise", "nodes[1].inputs[0].dtype", "int8", "R7", r"\$\.nodes\[1\].*"),
    ("producer restated otherwise", "nodes[1].inputs[0].producer_node", "call", "R7", r"\$\.nodes\[1\].*"),
    ("producer's output restated otherwise", "nodes[1].inputs[0].producer_output_idx", 1, "R7", r"\$\.nodes\[1\].*"),
    ("negative output index", "nodes[1].inputs[0].producer_output_idx", -1, "R7", r"\$\.nodes\[1\].*"),
    ("output's shape restated otherwise", "graph_outputs[0].shape", ["batch", 9], "R7", r"\$(\.graph_outputs.*)?"),
    ("input that claims a producer", "graph_inputs[0].producer_node", "linear", "R7", r"\$(\.graph_inputs.*)?"),
    ("weight of another key", "weight_name_mapping.p_fc_weight", "fc.bias", "R7", r"\$\.weight_name_mapping.*"),
    ("constant without weight", "constants.ghost", {"dtype": "float32", "shape": [0], "base64": ""},
     "R8", r"\$\.constants.*"),
    ("constant of another shape", "weights[3].shape", [9], "R7", r"\$.*"),
    ("constant of another length", "constants.steps.shape", [7], "R15", r"\$\.constants\.steps.*"),
    ("constant of another dtype", "constants.steps.dtype", "float16", "R15", r"\$\.constants\.steps.*"),
    ("constant that is no base64", "constants.steps.base64", "%%%%", "R15", r"\$\.constants\.steps.*"),
    ("constant of bools that are none", "constants.steps", {"dtype": "bool", "shape": [2], "base64": "AgM="},
     "R15", r"\$\.constants\.steps.*"),
    ("details of no weight", "params.ghost", {"kind": "buffer"}, "R7", r"\$.*"),
    ("two weights under one key", "params.p_fc_weight.tied", ["fc.bias"], "R8", r"\$.*"),
    ("change of what is no input", "mutations[0].target", "linear", "R8", r"\$(\.mutations.*)?"),
    ("change to what is nothing", "mutations[0].value", "ghost", "R8", r"\$\.mutations\[0\].*"),
    ("change to another shape", "mutations[0].value", "add", "R7", r"\$(\.mutations.*)?"),
    ("change twice", "mutations[1]", {"target": "b_state", "value": "mul"}, "R8", r"\$(\.mutations.*)?"),
    ("symbol of nobody", "symbols.batch.tensor", "ghost", "R8", r"\$\.symbols\.batch.*"),
    ("symbol of no dimension", "symbols.batch.dim", 7, "R8", r"\$(\.symbols.*)?"),
    ("symbol of the wrong dimension", "symbols.batch.dim", 1, "R7", r"\$(\.symbols.*)?"),
    ("symbol bound to nothing", "symbols.ghost", {"min": 1}, "R8", r"\$(\.symbols.*)?"),
    ("symbol without a value", "symbols.batch.min", 99, "R8", r"\$(\.symbols.*)?"),
    ("symbol called as a word", "symbols.where", {"tensor": "x", "dim": 1}, "R6", r"\$(\.symbols.*)?"),
    ("unknown symbol in a shape", "nodes[4].outputs[0].shape", ["ghost", 8], "R8", r"\$\.nodes\[4\].*"),
    ("unknown symbol in a constraint", "constraints[0]", "ghost > 1", "R8", r"\$(\.constraints.*)?"),
    ("constraint that calls", "constraints[0]", "open('x')", "R1", r"\$\.constraints\[0\]"),
    ("function of nobody", "nodes[2].attrs.function", {"$function": "ghost"}, "R8", r"\$\.nodes\[2\].*"),
    ("call with another argument", "nodes[2].args", ["other"], "R7", r"\$\.nodes\[2\].*"),
    ("call with another result", "functions.body.graph_outputs[0].name", "value", "R8", ""),
    ("function that calls itself", "functions.body.nodes[0].attrs", {"function": {"$function": "body"}},
     "R8", r"\$\.functions\.body.*"),
    ("function with weights of nobody", "functions.body.shared_weights", ["ghost"],
     "R8", r"\$\.functions\.body\.shared_weights.*"),
    ("function with an inner weight as shared", "functions.body.shared_weights", ["fc.weight"],
     "R8", r"\$\.functions\.body\.shared_weights.*"),
    ("argument twice", "nodes[1].args", ["self", "self"], "R8", r"\$\.nodes\[1\].*"),
    ("argument that is an attribute, too", "nodes[1].attrs.self", 1, "R8", r"\$\.nodes\[1\].*"),
    ("fewer names than inputs", "nodes[1].args", ["self"], "R7", r"\$\.nodes\[1\].*"),
    ("list without its first element", "nodes[1].args", ["self", "tensors.1"], "R11", r"\$\.nodes\[1\].*"),
    ("an operator called return", "nodes[1].op_type", "return", "R6", r"\$\.nodes\[1\].*"),
    ("mesh of size 0", "mesh", {"tp": 0}, "R4", r"\$(\.mesh.*)?"),
    ("placement without a mesh", "graph_inputs[0].placement", ["replicate"], "R7", r"\$(\.graph_inputs.*)?"),
]  # fmt: skip
for name, path, value, rule, place in _CHANGED:
    if name != "call with another result":
        FAMILY.refused(name, changed(path, value), rule, place)


def _swap(found: Document) -> None:
    found["nodes"][0], found["nodes"][1] = found["nodes"][1], found["nodes"][0]


def _give_other(found: Document) -> None:
    found["functions"]["body"]["graph_outputs"][0]["shape"] = ["batch", 9]
    found["functions"]["body"]["nodes"][0]["outputs"][0]["shape"] = ["batch", 9]


FAMILY.refused("read before it is made", edited(_swap), "R8", r"\$\.nodes\[0\].*")
FAMILY.refused("call with another result", edited(_give_other), "R7", r"\$\.nodes\[2\].*")
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
