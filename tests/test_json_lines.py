"""Nodes by line: the text equals that of the records, and the line reader accepts nothing that JSON would not."""

import itertools
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.graphs import chain, everything, mlp, tensor
from tests.refusals import without_digest
from torch_ir.errors import SerializationError
from torch_ir.ir import IR, Limits, OpNode, Origin, Param, TensorData, TensorMeta
from torch_ir.ir.json import decode
from torch_ir.ir.json.json_text import parse_document, write_document


def varied() -> IR:
    """Lines without escapes: several outputs, strides, symbols, lists, origins, no module."""
    ir = everything()
    nodes: list[OpNode] = []
    given = [one.copy() for one in ir.graph_inputs]
    x = given[0]
    for index in range(3):
        made = TensorMeta(f"view_{index}", (2, 3), "float32", stride=(3, 1) if index else None)
        attrs = {"size": [2, -1], "eps": 1e-5, "end": 2**63 - 1, "text": "a}, {b", "flag": index == 1, "none": None}
        origin = Origin(f"layers.{index}", 0, "Layer", f"net.py:{index}") if index < 2 else Origin()
        nodes.append(OpNode(f"view_{index}", "aten.view.default", [x], [made], attrs, args=["self"], origin=origin))
    nodes.append(OpNode("split", "aten.split.Tensor", [x, x], [tensor("s_0", 2), tensor("s_1", 2)], args=["self", "b"]))
    nodes.append(OpNode("old", "custom.op", [nodes[0].output], [tensor("o", 1)], origins=["a", "b"]))
    nodes.append(OpNode("check", "aten._assert.default", [nodes[1].output], []))
    return IR(nodes, given, [nodes[-2].output], symbols=ir.symbols.values(), model_name="Varied").check()


def slowly(text: str) -> IR:
    """The graph, read as JSON at large."""
    return decode.read_graph(parse_document(text), IR)


def outcome(read: Callable[[str], IR], text: str) -> str:
    try:
        return read(text).to_json()
    except SerializationError as error:
        return f"{type(error).__name__} at {error.path}: {error}"


@pytest.mark.parametrize("ir", [mlp(), chain("aten.neg.default"), everything(), varied()], ids=lambda ir: ir.model_name)
def test_lines_are_the_records(ir: IR) -> None:
    """The text that is put together from pieces is that of the records, to the byte."""
    assert ir.to_json() == write_document(ir.to_dict())
    assert slowly(ir.to_json()).to_json() == ir.to_json()


@pytest.mark.parametrize("ir", [mlp(), chain("aten.neg.default"), varied()], ids=lambda ir: ir.model_name)
def test_what_was_written_is_read_by_its_lines(ir: IR, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other reader sees the nodes; the graph is the same, and nodes share no mutable objects."""
    monkeypatch.setattr(decode, "parse_document", None)
    monkeypatch.setattr(OpNode, "from_dict", None)
    back = IR.from_json(ir.to_json())
    assert back.to_json() == ir.to_json()
    lists = [id(value) for node in back.nodes for value in node.attrs.values() if isinstance(value, list)]
    assert len(set(lists)) == len(lists)


def test_other_spellings_are_read_all_the_same() -> None:
    """Spaces, line breaks, another order of keys, escapes: any valid JSON is read."""
    text = without_digest(varied().to_json())
    for old, new in [
        ("\n{", "\n {"),
        ('", "op_type": "', '","op_type": "'),
        ('"outputs": [', '"outputs":  ['),
        ("layers.0", "\\u006cayers.0"),
        (', "args": ["self"]', ""),
    ]:
        assert old in text
        assert outcome(IR.from_json, text.replace(old, new)) == outcome(slowly, text.replace(old, new))
    assert IR.from_json(text.replace("\n{", "\n {")).to_json() == varied().to_json()


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[-+.\w]+|[][{}:,]')
_JUNK = ["null", "true", "-1", "0", "1.5", '""', '"x"', "[]", "{}", "[[1]]", '{"$int": "5"}']
_NO_JSON = ["1e999", "NaN", '"\\ud800"']


def damaged(text: str, randomness: random.Random) -> Iterator[str]:
    """Endlessly: the text with one or two tokens replaced, dropped, doubled, cut or swapped with another."""
    while True:
        found = text
        for _ in range(randomness.choice((1, 1, 2))):
            tokens = list(_TOKENS.finditer(found))
            token, other = randomness.choice(tokens), randomness.choice(tokens)
            new = randomness.choice(
                [randomness.choice(_JUNK + _NO_JSON), other[0], "", f"{token[0]},{token[0]}", token[0][:-1]]
            )
            found = found[: token.start()] + new + found[token.end() :]
        yield found


def edited(text: str, randomness: random.Random) -> Iterator[str]:
    """Endlessly: the text with a few characters lost, doubled, changed or moved, where lines might be cut."""
    marks = [match.span() for match in re.finditer(r'[]["{},: ]+', text)]
    while True:
        found = text
        for _ in range(randomness.choice((1, 1, 2))):
            start, end = randomness.choice(marks)
            other = text[slice(*randomness.choice(marks))]
            new = randomness.choice([other, other, "", found[start:end] * 2, "\n", "\x01", "\\", ', "name": "x"', "}"])
            found = found[:start] + new + found[end:]
        yield found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("change", [damaged, edited])
def test_both_ways_of_reading_agree(seed: int, change: Callable[[str, random.Random], Iterator[str]]) -> None:
    """For every changed text, the line reader returns the same graph or error as the JSON reader."""
    text = without_digest(varied().to_json())
    for broken in itertools.islice(change(text, random.Random(seed)), 300):
        assert outcome(IR.from_json, broken) == outcome(slowly, broken), broken


def test_swapped_lines_agree_too() -> None:
    """A use before its definition, a duplicate line, a line of another graph."""
    head, *lines = without_digest(varied().to_json()).split("\n")
    for first, second in itertools.product(range(len(lines)), repeat=2):
        broken = [*lines]
        broken[first] = lines[second]
        text = "\n".join([head, *broken])
        assert outcome(IR.from_json, text) == outcome(slowly, text), text


def test_limits_hold_for_lines() -> None:
    """Deep values in a line are rejected as anywhere, and so is deeper nesting than a line needs."""
    text = without_digest(varied().to_json()).replace("[2, -1]", "[" * 90 + "]" * 90, 1)
    with pytest.raises(SerializationError, match="nested deeper than 50 levels"):
        IR.from_json(text)
    with pytest.raises(SerializationError, match="nested deeper than 100 levels"):
        IR.from_json(text.replace("[" * 90, "[" * 2000).replace("]" * 90, "]" * 2000))
    with pytest.raises(SerializationError, match="nested deeper than 5 levels"):
        IR.from_json(varied().to_json(), Limits(depth=5))


def test_constants_beside_the_file_are_found(tmp_path: Path) -> None:
    """The line reader has the folder of the file."""
    ir = varied()
    ir.params.append(TensorMeta("c", (2,), "int8", param=Param(("c",), "constant", TensorData((2,), "int8", b"ab"))))
    ir.save(tmp_path / "m.json", inline_limit=0)
    back = IR.load(tmp_path / "m.json")
    assert back.constants["c"].raw == b"ab"
    assert back.to_json() == ir.to_json()


@pytest.mark.parametrize(
    "text",
    ["[" * 1_000_000 + "]" * 1_000_000, "[[]," * 300_000 + "1" + "]" * 300_000],
    ids=["alone", "beside others"],
)
def test_deep_nesting_is_refused(text: str) -> None:
    """Far deeper than the limit, and than Python's own parser supports."""
    with pytest.raises(SerializationError, match="nested deeper than 100 levels"):
        parse_document(text)
