"""Limits: every resource that a file can use has a bound, which a caller can raise, in every format."""

import json
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.graphs import everything, tensor
from tests.refusals import changed, without_digest
from torch_ir import (
    IR,
    GraphError,
    Limits,
    OpNode,
    SerializationError,
    from_protobuf,
    load_protobuf,
    save_protobuf,
    to_protobuf,
)
from torch_ir.errors import WeightLoadError
from torch_ir.formats.message_memory import memory_of
from torch_ir.formats.protobuf import _message_class
from torch_ir.ir import Branch, Expr, Slot
from torch_ir.ir.json.json_text import parse_document
from torch_ir.ir.sizes.expressions import parse
from torch_ir.run import load_weights

READERS: list[Callable[[IR, Limits], IR]] = [
    lambda ir, limits: IR.from_json(ir.to_json(), limits),
    lambda ir, limits: IR.from_json(json.dumps(ir.to_dict()), limits),
    lambda ir, limits: IR.from_dict(ir.to_dict(), limits),
    lambda ir, limits: from_protobuf(to_protobuf(ir), limits),
]


# A limit, the largest value that refuses the graph which uses everything, and the place that the error names.
LIMITS: list[tuple[str, int, str]] = [
    ("nodes", 4, r"\$(\.nodes)?"),
    ("nodes", 6, r"\$\.functions\.body.*"),
    ("tensors", 2, r"\$(\.weight_name_mapping)?"),
    ("functions", 1, r"\$\.functions\.body(\.functions)?"),
    ("rank", 1, r"\$\.(graph_inputs|types)\[0\]\.shape"),
    ("elements", 2, r"\$\.weights\[0\]\.shape"),
    ("name_length", 3, r"\$\.graph_inputs\[1\]\.name"),
    ("list_length", 1, r"\$\.nodes\[1\]\.outputs"),
    ("expression_bytes", 8, r"\$\.nodes\[1\]\.attrs\.size\.\$expr|\$\.constraints\[0\]"),
]


@pytest.mark.parametrize("read", READERS, ids=["lines", "JSON", "dict", "protobuf"])
@pytest.mark.parametrize(("name", "limit", "place"), LIMITS, ids=[f"{name}={limit}" for name, limit, _ in LIMITS])
def test_a_limit_holds_in_every_kind_of_file(
    read: Callable[[IR, Limits], IR], name: str, limit: int, place: str
) -> None:
    """The error names the limit, the place, and how to raise it; the graph loads with a raised limit."""
    ir = everything()
    limits: dict[str, Any] = {name: limit}
    with pytest.raises(SerializationError) as caught:
        read(ir, Limits(**limits))
    error = caught.value
    assert (error.rule, error.hint) == ("R2", f"Limits({name}=...) allows more")
    assert str(error).endswith(error.hint)
    assert re.fullmatch(place, error.path)
    assert read(ir, Limits(**{name: 1000})).to_json() == ir.to_json()


def test_files_know_the_limits(tmp_path: Path) -> None:
    """Reading a file passes them on."""
    everything().save(tmp_path / "a.json")
    save_protobuf(everything(), tmp_path / "a.pb")
    told = r"nodes are more than 3; Limits\(nodes=\.\.\.\) allows more"
    with pytest.raises(SerializationError, match=told):
        IR.load(tmp_path / "a.json", Limits(nodes=3))
    with pytest.raises(SerializationError, match=told):
        load_protobuf(tmp_path / "a.pb", Limits(nodes=3))


def test_a_graph_of_a_program_has_no_limits() -> None:
    """A graph loaded with larger limits stays valid; only sizes beyond 64 bits are rejected."""
    ir = everything()
    ir.graph_inputs[1].name = "x" * 5000
    assert ir.check() is ir
    assert IR.from_json(ir.to_json(), Limits(name_length=5000)).check().graph_inputs[1].name == "x" * 5000
    with pytest.raises(SerializationError, match="a name of 5000 characters is longer than 1000"):
        IR.from_json(ir.to_json())


def test_every_limit_is_documented() -> None:
    """Each field of the class has a sentence below it, and a bound, but for the memory of a run."""
    source = Path(Limits.__module__.replace(".", "/") + ".py").read_text()
    for field in fields(Limits):
        assert re.search(rf'    {field.name}: .*\n    """[A-Z].*\."""\n', source), field.name
    assert {field.name for field in fields(Limits) if field.default is None} == {"memory_bytes"}


@pytest.mark.parametrize("shape", [[1 << 62, 4], [1 << 62, 1 << 62, 0], [1 << 29, 1 << 29, 2]])
def test_sizes_that_overflow_are_refused(shape: list[int]) -> None:
    """The elements of a shape are counted as if no dimension were empty, as a kernel may do."""
    document = changed("graph_inputs[1].shape", shape)
    with pytest.raises(SerializationError, match=r"^\$\.graph_inputs\[1\]\.shape: .* has more than \d+ elements"):
        IR.from_dict(document)


def test_strides_that_overflow_are_refused() -> None:
    """The span of strides counts as elements too."""
    x = tensor("x", 2, 2)
    x.stride = (1 << 62, 1 << 62)
    made = tensor("neg", 2, 2)
    ir = IR([OpNode("neg", "aten.neg.default", [x], [made], args=["self"])], [x], [made])
    with pytest.raises(SerializationError, match="elements"):
        IR.from_json(ir.to_json())


# -- files that are small, or of a few megabytes, and ask for far more ------------------------------------------------


def hostile_attribute(key: str, value: Any) -> dict[str, Any]:
    return changed("nodes[0].attrs", {key: value})


HOSTILE: dict[str, Callable[[], dict[str, Any]]] = {
    "a long key above many values": lambda: hostile_attribute("k" * 500_000, [[] for _ in range(100_000)]),
    "a long key in a structure": lambda: changed(
        "output_tree.tree",
        {"$branch": "dict", "keys": ["k" * 500_000], "items": [{"$branch": "tuple", "items": [1] * 100_000}]},
    ),
    "arguments of many dots": lambda: changed("nodes[0].attrs", {f"{i}{'.' * 900}": 0 for i in range(500)}),
    "a constant of endless rank": lambda: changed("constants.steps.shape", [(1 << 63) - 1] * 50_000),
    "a name almost like thousands": lambda: changed(
        "params", {f"{'a' * 90}{i}": {} for i in range(20_000)}
    ),
    "a dtype of a megabyte": lambda: changed("graph_inputs[0].dtype", "float" * 200_000),
}  # fmt: skip


@pytest.mark.parametrize("make", HOSTILE.values(), ids=list(HOSTILE))
def test_little_text_cannot_ask_for_much(make: Callable[[], dict[str, Any]]) -> None:
    """No path, product or hint is computed for the whole: each of these would take minutes, or gigabytes."""
    with pytest.raises(SerializationError) as caught:
        IR.from_json(json.dumps(make()))
    assert caught.value.rule
    assert len(str(caught.value)) < 1000


def test_long_expressions_are_forgotten() -> None:
    """Parsed expressions of untrusted files do not stay in memory."""
    long = [f"{number}{'+1' * 200}" for number in range(100)]
    first = [parse(text) for text in long]
    assert parse(long[-1]) is first[-1]
    assert parse(long[0]) is not first[0]
    assert parse("2*batch + 1") is parse("2*batch + 1")


def test_a_value_within_itself_is_refused() -> None:
    """A program may nest without end; that is a sentence, too."""
    ir = everything()
    endless: list[Any] = [Expr("batch")]
    endless.append(endless)
    ir.nodes[0].attrs["endless"] = endless
    with pytest.raises(GraphError, match="nested deeper than 50 levels"):
        ir.check()
    tree: Any = Slot(0)
    for _ in range(100):
        tree = Branch("tuple", (tree,))
    ir = everything()
    ir.output_tree = tree
    with pytest.raises(GraphError, match="nested deeper than 50 levels"):
        ir.check()


def test_names_that_steer_or_mislead_are_refused() -> None:
    """A name is printable: no control characters of eight bits, no change of direction, nothing that has no width."""
    text = without_digest(everything().to_json())
    for character in ("\x9b", "\u202e", "\u200b", "\u2028", "\ufeff", "\x85"):
        with pytest.raises(SerializationError) as caught:
            IR.from_json(text.replace('"name": "mask"', f'"name": "mask{character}"'))
        assert caught.value.rule == "R6"


@pytest.mark.parametrize("read", READERS[:2], ids=["lines", "JSON"])
def test_values_are_counted_before_they_are_made(read: Callable[[IR, Limits], IR]) -> None:
    with pytest.raises(
        SerializationError, match=r"values are more than 50; Limits\(values=...\) allows more"
    ) as caught:
        read(everything(), Limits(values=50))
    assert (caught.value.rule, caught.value.path) == ("R2", "$")


def test_a_message_has_a_limit_of_its_own() -> None:
    with pytest.raises(SerializationError, match=r"bytes are more than 100; Limits\(message_bytes=...\) allows more"):
        from_protobuf(to_protobuf(everything()), Limits(message_bytes=100))


@pytest.mark.parametrize(
    "piece", [b'{"a":{"b":0}},', b"{},", b"[],", b"1.5,", b'"ab",'], ids=["objects", "{}", "[]", "numbers", "strings"]
)
def test_the_memory_of_a_text_is_counted_before_it_is_parsed(piece: bytes) -> None:
    """A value that takes a few bytes of text takes up to 200 bytes of memory."""
    text = f'{{"x": [{piece.decode() * 100_000}0]}}'
    limits = Limits(values=text.count(",") + text.count("{") + text.count("["))
    with pytest.raises(
        SerializationError, match=r"takes up to \d+ bytes.*; Limits\(values=\.\.\.\) allows more"
    ) as caught:
        IR.from_json(text, limits)
    assert (caught.value.rule, caught.value.path) == ("R2", "$")
    tracemalloc.start()
    parsed = parse_document(text, Limits())
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert parsed
    assert memory < int(re.findall(r"up to (\d+) bytes", str(caught.value))[0]) + 4 * len(text) + 100_000


def test_the_memory_of_the_header_of_a_checkpoint_is_counted(tmp_path: Path) -> None:
    """A header may have 100 MB, which would take 3 GB as empty objects."""
    header = b'{"__metadata__":[' + b"{}," * (8 << 20) + b"0]}"
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(WeightLoadError, match=r"takes up to \d+ bytes of memory"):
        load_weights(path)


def test_memory_counts_known_keys_once() -> None:
    """A text with other keys that end like them is counted in full."""
    key = '{"name": 0},' * 1000
    limits = Limits(values=12_000)
    assert parse_document(f'{{"x": [{key}0]}}', limits)
    with pytest.raises(SerializationError, match="bytes of memory"):
        parse_document(f'{{"x": ["\\"", {key}0]}}', limits)


def _message(*parts: tuple[int, bytes]) -> bytes:
    """Bytes of a protobuf message: fields of a given number that have a length."""
    return b"".join(bytes([number << 3 | 2]) + _varint(len(body)) + body for number, body in parts)


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


@pytest.mark.parametrize(
    "data",
    [
        _message((7, b"")) * (1 << 20),
        _message((3, _message((7, b"")) * (1 << 20))),
        _message((3, _message((13, _message((7, b""), (8, b""), (13, b"")) * 1000)) * 100)),
        _message((3, _message((10, b"")) * (1 << 21))),
    ],
    ids=["places", "nodes", "functions", "constraints"],
)
def test_the_memory_of_a_message_is_counted_before_it_is_parsed(data: bytes) -> None:
    limits = Limits(message_bytes=len(data), values=100)
    kind = _message_class("Model")
    assert memory_of(kind, data, 1 << 40) > 10 * len(data)
    assert memory_of(kind, data, 1000) < 2000
    padding = _message((15, bytes(1 << 22)))  # a small message takes little memory, whatever it contains
    with pytest.raises(SerializationError, match=r"bytes of memory or more; .*Limits\(message_bytes=...\) allows more"):
        from_protobuf(data * 3 + padding, replace(limits, message_bytes=len(data) * 3 + len(padding)))


def test_a_message_with_an_endless_number_is_not_counted_for_ever() -> None:
    assert memory_of(_message_class("Model"), b"\xff" * (1 << 20), 1 << 40) < 100
    graph = to_protobuf(everything())
    assert len(graph) < memory_of(_message_class("Model"), graph, 1 << 40) < 100 * len(graph)
    for length in range(len(graph)):
        assert memory_of(_message_class("Model"), graph[:length], 1 << 40) >= 0


@pytest.mark.parametrize("number", [8, 9, 10, 14, 16], ids=["mutations", "symbols", "constraints", "shared", "mesh"])
def test_lists_of_a_message_are_counted_before_they_are_read(number: int) -> None:
    body = b"".join(_varint(number << 3 | 2) + b"\0" for _ in range(11))
    data = b"\x0a\x08torch-ir\x10\x01" + _message((3, body))
    with pytest.raises(SerializationError, match=r"11 \w+ are more than 10; Limits\(tensors=...\) allows more"):
        from_protobuf(data, Limits(tensors=10))
