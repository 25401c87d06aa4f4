"""JSON documents of the wrong structure."""

from typing import Any

from tests.hostile_files.case import Family
from tests.hostile_files.documents import changed, edited, replaced, without, written

FAMILY = Family("structure")

for name, path, rule, place in [
    ("no format", "format", "R4", r"\$\.format"),
    ("no version", "version", "R4", r"\$(\.version)?"),
    ("no nodes", "nodes", "R4", r"\$(\.nodes)?"),
    ("no graph_inputs", "graph_inputs", "R4", r"\$(\.graph_inputs)?"),
    ("no graph_outputs", "graph_outputs", "R4", r"\$(\.graph_outputs)?"),
    ("no weights", "weights", "R4", r"\$(\.weights)?"),
    ("no names of weights", "weight_name_mapping", "R4", r"\$(\.weight_name_mapping)?"),
    ("no model name", "model_name", "R4", r"\$(\.model_name)?"),
    ("node without name", "nodes[1].name", "R4", r"\$\.nodes\[1\](\.name)?"),
    ("node without operator", "nodes[1].op_type", "R4", r"\$\.nodes\[1\](\.op_type)?"),
    ("node without inputs", "nodes[1].inputs", "R4", r"\$\.nodes\[1\](\.inputs)?"),
    ("tensor without dtype", "graph_inputs[0].dtype", "R4", r"\$\.graph_inputs\[0\](\.dtype)?"),
    ("tensor without shape", "nodes[0].outputs[0].shape", "R4", r"\$\.nodes\[0\]\.outputs\[0\](\.shape)?"),
]:
    FAMILY.refused(name, without(path), rule, place)

_STATED: list[tuple[str, str, Any, str, str]] = [
    ("another format", "format", "torch-ir-lowered", "R4", r"\$\.format"),
    ("format of a number", "format", 1, "R4", r"\$\.format"),
    ("a future version", "version", 2, "R4", r"\$\.version"),
    ("version 2^62", "version", 1 << 62, "R4", r"\$\.version"),
    ("version 0 with a header", "version", 0, "R4", r"\$\.version"),
    ("version true", "version", True, "R4", r"\$\.version"),
    ("version 1.0", "version", 1.0, "R4", r"\$\.version"),
    ("version as text", "version", "1", "R4", r"\$\.version"),
    ("unknown key", "plugins", ["evil"], "R4", r"\$(\.plugins)?"),
    ("unknown key of a node", "nodes[0].code", "import os", "R4", r"\$\.nodes\[0\](\.code)?"),
    ("unknown key of a tensor", "graph_inputs[0].file", "x", "R4", r"\$\.graph_inputs\[0\](\.file)?"),
    ("unknown key of a function", "functions.body.code", "x", "R4", r"\$\.functions\.body(\.code)?"),
    ("header in a function", "functions.body.version", 1, "R4", r"\$\.functions\.body(\.version)?"),
    ("unknown key of a symbol", "symbols.batch.eval", "1", "R4", r"\$\.symbols\.batch(\.eval)?"),
    ("unknown key of a weight", "params.p_fc_weight.url", "x", "R4", r"\$\.params\.p_fc_weight(\.url)?"),
    ("unknown key of a constant", "constants.steps.url", "x", "R4", r"\$\.constants\.steps(\.url)?"),
    ("extensions as a list", "extensions", [1], "R4", r"\$\.extensions"),
    ("nodes as an object", "nodes", {}, "R4", r"\$\.nodes"),
    ("nodes as text", "nodes", "lines", "R4", r"\$\.nodes"),
    ("a node of null", "nodes[1]", None, "R4", r"\$\.nodes\[1\]"),
    ("a node as a list", "nodes[1]", ["aten.relu.default"], "R4", r"\$\.nodes\[1\]"),
    ("name of a number", "nodes[1].name", 7, "R4", r"\$\.nodes\[1\]\.name"),
    ("operator of null", "nodes[1].op_type", None, "R4", r"\$\.nodes\[1\]\.op_type"),
    ("attributes as a list", "nodes[1].attrs", [1], "R4", r"\$\.nodes\[1\]\.attrs"),
    ("arguments as text", "nodes[1].args", "self", "R4", r"\$\.nodes\[1\]\.args"),
    ("inputs as an object", "nodes[1].inputs", {"self": 1}, "R4", r"\$\.nodes\[1\]\.inputs"),
    ("shape of a number", "graph_inputs[0].shape", 4, "R4", r"\$\.graph_inputs\[0\]\.shape"),
    ("a size of 1.5", "graph_inputs[0].shape[1]", 1.5, "R4", r"\$\.graph_inputs\[0\]\.shape\[1\]"),
    ("a size of true", "graph_inputs[0].shape[1]", True, "R4", r"\$\.graph_inputs\[0\]\.shape\[1\]"),
    ("a size of -1", "graph_inputs[0].shape[1]", -1, "R4", r"\$\.graph_inputs\[0\]\.shape\[1\]"),
    ("model name of an object", "model_name", {"a": 1}, "R4", r"\$\.model_name"),
    ("modules as a list", "modules", ["os"], "R4", r"\$\.modules"),
    ("origins of numbers", "nodes[0].origins", [1, 2], "R4", r"\$\.nodes\[0\]\.origins(\[0\])?"),
    ("kind of weight unknown", "params.p_fc_weight.kind", "pickle", "R5", r"\$\.params\.p_fc_weight\.kind"),
    ("digest of a number", "digest", 1, "R17", r"\$\.digest"),
    ("digest of another text", "digest", "sha256:" + "0" * 64, "R17", r"\$\.digest"),
    ("output in two places", "output_tree", {"tree": {"$branch": "tuple", "items": [{"$tensor": 0}, {"$tensor": 0}]}},
     "R7", r"\$(\.output_tree.*)?"),
    ("output in no place", "output_tree", {"tree": 1}, "R7", r"\$(\.output_tree.*)?"),
    ("output of number 2^40", "output_tree", {"tree": {"$tensor": 1 << 40}}, "R7", r"\$(\.output_tree.*)?"),
    ("output tree without its wrapper", "output_tree", {"$tensor": 0}, "R4", r"\$\.output_tree(\.\$tensor)?"),
    ("input tree that is not a call", "input_tree", {"$branch": "list", "items": [{"$tensor": 0}]}, "R4",
     r"\$(\.input_tree.*)?"),
    ("dict with a key twice", "output_tree",
     {"tree": {"$branch": "dict", "items": [{"$tensor": 0}, 1], "keys": ["a", "a"]}},
     "R8", r"\$\.output_tree\.tree\.keys"),
]  # fmt: skip
for name, path, value, rule, place in _STATED:
    FAMILY.refused(name, changed(path, value), rule, place)

FAMILY.refused(
    "no outputs and no effect",
    edited(lambda found: found.update(graph_outputs=[], mutations=[])),
    "R8",
    r"\$(\.graph_outputs|\.output_tree)?",
)
FAMILY.refused("an empty object", written("{}"), "R4", r"\$(\.nodes)?")
FAMILY.refused("digest twice", replaced('"format"', '"digest": "sha256:", "digest": "sha256:", "format"'), "R3", r"\$?")
