"""Values outside the closed lists of the format."""

from typing import Any

from tests.hostile_files.case import Family
from tests.hostile_files.documents import changed

FAMILY = Family("types and closed lists")
_ALPHA = r"\$\.nodes\[1\]\.attrs\.alpha.*"

for name, value in [
    ("dtype of the future", "float6_e3m2"),
    ("dtype object", "object"),
    ("dtype with torch in front", "torch.float32"),
    ("dtype in capitals", "Float32"),
    ("dtype with a byte order", ">f4"),
    ("empty dtype", ""),
    ("dtype as an attribute chain", "__class__.__bases__"),
]:
    FAMILY.refused(name, changed("graph_inputs[0].dtype", value), "R5", r"\$\.graph_inputs\[0\]\.dtype")

_TAGGED: list[tuple[str, Any, str]] = [
    ("unknown tag", {"$pickle": "gASVKQ=="}, "R5"),
    ("tag with a second key", {"$dtype": "float32", "also": 1}, "R5"),
    ("$dtype unknown", {"$dtype": "complex256"}, "R5"),
    ("$dtype of a number", {"$dtype": 6}, "R4"),
    ("$device unknown", {"$device": "gpu"}, "R5"),
    ("$device with a path", {"$device": "cuda:/dev/nvidia0"}, "R5"),
    ("$device with a huge number", {"$device": "cuda:99999999999"}, "R5"),
    ("$layout unknown", {"$layout": "sparse_evil"}, "R5"),
    ("$memory_format unknown", {"$memory_format": "channels_first"}, "R5"),
    ("$float that is finite", {"$float": "1.0"}, "R5"),
    ("$float in words", {"$float": "Infinity"}, "R5"),
    ("$int with a sign too many", {"$int": "--1"}, "R3"),
    ("$int of Arabic digits", {"$int": "\u0661\u0662"}, "R3"),
    ("$int of 10^6 digits", {"$int": "9" * 10**6}, "R3"),
    ("$complex of one part", {"$complex": [1.0]}, "R3"),
    ("$complex of texts", {"$complex": ["1", "2"]}, "R3"),
    ("$expr that calls", {"$expr": "__import__('os').system('true')"}, "R1"),
    ("$expr with a lambda", {"$expr": "(lambda: 0)()"}, "R1"),
    ("$expr of a number", {"$expr": 3}, "R4"),
    ("$function of a number", {"$function": 3}, "R4"),
    ("$tensor in an attribute", {"$tensor": 0}, "R11"),
    ("$branch of unknown kind", {"$branch": "generator", "items": []}, "R5"),
    ("$branch in an attribute", {"$branch": "tuple", "items": [1]}, "R11"),
]
for name, value, rule in _TAGGED:
    FAMILY.refused(name, changed("nodes[1].attrs.alpha", value), rule, _ALPHA)

FAMILY.refused("device unknown", changed("device", "gpu; rm"), "R5", r"\$\.device")
FAMILY.refused("device with a newline", changed("device", "cpu\n"), "R5", r"\$\.device")
