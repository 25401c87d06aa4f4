"""Protobuf files that are corrupted, inconsistent, or expand to more than they contain."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch_ir
from tests.hostile_files.case import Family, Make
from tests.hostile_files.documents import graph, typed
from torch_ir.formats.protobuf import _message_class, lowered_to_protobuf

FAMILY = Family("protobuf")
_NAME = "model.pb"


def _bytes() -> bytes:
    return torch_ir.to_protobuf(graph())[:-34]  # less the digest


def _file(content: Callable[[], bytes], name: str = _NAME) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content())
        return folder / name

    return make


def _edited(edit: Callable[[Any], Any]) -> Make:
    def content() -> bytes:
        model = _message_class("Model")()
        model.ParseFromString(_bytes())
        edit(model)
        found: bytes = model.SerializeToString(deterministic=True)
        return found

    return _file(content)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _nested(depth: int) -> bytes:
    """Lists within lists, as the tree of the outputs."""
    value = b""
    for _ in range(depth):
        value = _field(_list_number(), _field(1, value))
    return _bytes() + _field(3, _field(12, value))


def _list_number() -> int:
    number: int = _message_class("Model")().graph.output_tree.DESCRIPTOR.fields_by_name["list"].number
    return number


def _lowered() -> bytes:
    record: dict[str, Any] = {
        "target": "npu", "model_name": "Net", "inputs": [typed("x", 2)], "outputs": ["x"], "weights": {},
        "mutations": [], "layers": [], "missing": [],
    }  # fmt: skip
    return lowered_to_protobuf(record)


for name, content, rule in [
    ("empty file", lambda: b"", "R4"),
    ("text", lambda: b"weights\n", "R1"),
    ("JSON", lambda: graph().to_json().encode(), "R1"),
    ("cut short", lambda: _bytes()[:-40], "R1"),
    ("two files in one", lambda: _bytes() + _bytes(), "R4|R7|R8"),
    ("unknown field", lambda: _bytes() + _field(99, b"evil"), "R4"),
    ("digest of other bytes", lambda: _bytes() + b"\x7a\x20" + bytes(32), "R17"),
    ("digest in the middle", lambda: _field(15, hashlib.sha256(b"").digest()) + _bytes(), "R17|R4"),
    ("layers of a target", _lowered, "R4"),
    ("length of 2^63", lambda: b"\x1a" + b"\xff" * 8 + b"\x7f", "R1"),
    ("varint without end", lambda: b"\xff" * 10**5, "R1"),
    ("10^5 nested groups", lambda: b"\x0b" * 10**5, "R1"),
    ("40 nested lists", lambda: _nested(40), "R1|R2|R4"),
    ("10^4 nested lists", lambda: _nested(10**4), "R1|R4"),
    ("name that is not UTF-8", lambda: _bytes() + _field(1, b"\xff\xfe"), "R1|R4"),
]:
    FAMILY.refused(name, _file(content), rule, r"\$?.*")

for name, edit, rule, place in [
    ("format of another", lambda m: setattr(m, "format", "onnx"), "R4", r"\$\.format"),
    ("a future version", lambda m: setattr(m, "version", 2), "R4", r"\$\.version"),
    ("no graph", lambda m: m.ClearField("graph"), "R4", r"\$.*"),
    ("undefined type", lambda m: setattr(m.graph.inputs[0], "type", 1 << 31), "R8|R4", r"\$\.graph_inputs\[0\].*"),
    ("undefined operation", lambda m: setattr(m.graph.nodes[0], "operation", 99), "R8|R4", r"\$\.nodes\[0\].*"),
    ("undefined place", lambda m: setattr(m.graph.nodes[0], "place", 99), "R8|R4", r"\$\.nodes\[0\].*"),
    ("undefined tensor", lambda m: m.graph.nodes[0].inputs.append(10**6), "R8", r"\$\.nodes\[0\].*"),
    ("tensor defined later", lambda m: m.graph.nodes[0].inputs.append(7), "R8", r"\$\.nodes\[0\].*"),
    ("undefined output", lambda m: m.graph.outputs.append(99), "R8", r"\$\.graph_outputs.*"),
    ("dtype unknown", lambda m: setattr(m.types[0], "dtype", "object"), "R5", r"\$\.types\[0\].*"),
    ("size of -1", lambda m: setattr(m.types[0].shape[1], "size", -1), "R4", r"\$\.(types|graph_inputs)\[0\]\.shape.*"),
    ("dimension without a kind", lambda m: m.types[0].shape.add(), "R4", r"\$\.(types|graph_inputs)\[0\]\.shape.*"),
    ("expression that calls a function", lambda m: setattr(m.types[0].shape[0], "expression", "open('x')"),
     "R1", r"\$\.(types|graph_inputs)\[0\]\.shape.*"),
    ("weight of unknown kind", lambda m: setattr(m.graph.weights[0], "kind", 0), "R5", r"\$\.(params|weights).*"),
    ("weight without a key", lambda m: m.graph.weights[0].ClearField("keys"), "R4|R6|R8", r"\$.*"),
    ("values that do not fit", lambda m: setattr(m.graph.weights[3], "values", b"123"),
     "R15", r"\$\.(constants|weights).*"),
    ("attribute twice", lambda m: m.operations[1].attributes.add().CopyFrom(m.operations[1].attributes[0]),
     "R3", r"\$\.operations\[1\].*"),
    ("value without a kind", lambda m: m.operations[1].attributes[0].ClearField("value"),
     "R4", r"\$\.operations\[1\].*"),
    ("$ in a key", lambda m: m.operations[1].attributes[0].value.dict.items.add(name="$function"),
     "R4|R5", r"\$\.operations\[1\].*"),
    ("extensions that are not JSON", lambda m: setattr(m.graph, "extensions", "{"), "R1|R3", r"\$(\.extensions)?.*"),
    ("extensions of 10^6 levels", lambda m: setattr(m.graph, "extensions", "[" * 10**6), "R2", r"\$(\.extensions)?.*"),
    ("function twice", lambda m: m.graph.functions.add().CopyFrom(m.graph.functions[0]), "R3|R8", r"\$\.functions.*"),
    ("rank 10^5", lambda m: m.types[0].shape.extend([m.types[0].shape[1]] * 10**5),
     "R2", r"\$\.(types|graph_inputs)\[0\].*"),
    ("operator that maps a file", lambda m: setattr(m.operations[0], "op_type", "aten.from_file.default"),
     "R10", r"\$\.nodes\[0\].*"),
]:  # fmt: skip
    FAMILY.refused(name, _edited(edit), rule, place)


def _many_nodes(model: Any) -> None:
    """A rank of 64 that 50,000 nodes refer to."""
    model.types[0].shape.extend([model.types[0].shape[1]] * 60)
    model.graph.nodes.extend([model.graph.nodes[0]] * 50_000)


FAMILY.refused("large type of 50,000 nodes", _edited(_many_nodes), "R[278]", r"\$.*")


def _large_operation(model: Any) -> None:
    """An attribute of 100 KB that 10,000 nodes refer to."""
    model.operations[1].attributes[0].value.text = "a" * 100_000
    model.graph.nodes.extend([model.graph.nodes[1]] * 10_000)


FAMILY.refused("large operation of 10,000 nodes", _edited(_large_operation), "R2", r"\$.*")
