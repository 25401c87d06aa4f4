"""Violations in the text itself, and graphs beyond the limits (R1, R2, R3, R17)."""

import json
import re

from tests.random_irs.draws import Draw
from tests.random_irs.violations.kinds import Record, graphs, nodes, violation

_END = re.compile(r',\n"digest": "[^"]*"\n}\n\Z')


def _plain(text: str) -> str:
    """Without the digest, which would be the first to complain."""
    return _END.sub("\n}\n", text)


@violation("R1", "text")
def a_byte_order_mark(draw: Draw, text: str) -> tuple[str, str]:
    return f"\ufeff{_plain(text)}", "$"


@violation("R1", "text")
def no_object(draw: Draw, text: str) -> tuple[str, str]:
    return draw.choice(("[]", "null", "7", '"text"', f"[{_plain(text)}]")), "$"


@violation("R3", "text")
def text_that_is_cut_off(draw: Draw, text: str) -> tuple[str, str]:
    plain = _plain(text).rstrip()
    return plain[: draw.randrange(2, len(plain))], "$"


@violation("R3", "text")
def one_key_twice(draw: Draw, text: str) -> tuple[str, str]:
    return _plain(text).replace('"format": ', '"format": "torch-ir", "format": ', 1), "$"


@violation("R3", "text")
def a_number_that_is_none(draw: Draw, text: str) -> tuple[str, str]:
    word = draw.choice(("NaN", "Infinity", "-Infinity"))
    return _plain(text).replace('"version": 1', f'"version": {word}', 1), "$"


@violation("R3", "text")
def a_number_beyond_64_bits(draw: Draw, text: str) -> tuple[str, str]:
    number = draw.choice((2**63, -(2**63) - 1, 10**30))
    return _plain(text).replace('"version": 1', f'"version": {number}', 1), "$"


@violation("R3", "text")
def a_float_that_is_too_large(draw: Draw, text: str) -> tuple[str, str]:
    return _plain(text).replace('"version": 1', f'"version": {draw.choice(("1e999", "-1e400"))}', 1), "$"


@violation("R3", "text")
def half_of_a_surrogate_pair(draw: Draw, text: str) -> tuple[str, str]:
    return _plain(text).replace('"format": ', '"model_name\\ud800": 1, "format": ', 1), "$"


@violation("R3")
def digits_that_are_none(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node["attrs"]["extra"] = {"$int": draw.choice(("1.5", "", "0x10", "1" * 200, "٣"))}
    return f"{path}.attrs.extra.$int"


@violation("R3")
def a_complex_number_of_three_parts(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node["attrs"]["extra"] = {"$complex": draw.choice(([1.0], [1.0, 2.0, 3.0], ["1", 2.0]))}
    return f"{path}.attrs.extra.$complex"


@violation("R17", "text")
def a_changed_character(draw: Draw, text: str) -> tuple[str, str]:
    """One letter of the file's keys is another, and the digest is as it was."""
    places = [found.start() + 1 for found in re.finditer('"name"', text)] or [text.index('"format"') + 1]
    place = draw.choice(places)
    return f"{text[:place]}X{text[place + 1 :]}", "$.digest"


@violation("R17", "text")
def a_changed_digest(draw: Draw, text: str) -> tuple[str, str]:
    found = re.search(r'"digest": "sha256:(.)', text)
    assert found is not None
    other = "0" if found[1] != "0" else "1"
    return f"{text[: found.start(1)]}{other}{text[found.end(1) :]}", "$.digest"


@violation("R2", "text")
def brackets_that_are_too_deep(draw: Draw, text: str) -> tuple[str, str]:
    deep = "[" * draw.choice((200, 500, 100_000))
    return _plain(text).replace('"format": ', f'"extensions": {{"a": {deep}}}, "format": ', 1), "$"


@violation("R2")
def a_value_that_is_too_deep(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    value: object = 1
    for _ in range(53):
        value = [value]
    node["attrs"]["extra"] = value
    return f"{path}.attrs.extra{'[0]' * 51}"


@violation("R2")
def a_name_that_is_too_long(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node["attrs"]["x" * 1001] = 1
    return f"{path}.attrs.{'x' * 200}"


@violation("R2")
def a_rank_that_is_too_high(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph["graph_inputs"].insert(0, {"name": "very_deep", "shape": [1] * 129, "dtype": "int8"})
    graph.pop("input_tree", None)
    return f"{path}.graph_inputs[0].shape"


@violation("R2")
def a_size_that_is_too_large(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph["graph_inputs"].insert(0, {"name": "very_large", "shape": [2**40, 2**19], "dtype": "int8"})
    graph.pop("input_tree", None)
    return f"{path}.graph_inputs[0].shape"


@violation("R2")
def functions_that_are_too_deep(draw: Draw, document: Record) -> str:
    inner: Record = {
        "model_name": "", "graph_inputs": [{"name": "x", "shape": [], "dtype": "int8"}],
        "graph_outputs": [{"name": "x", "shape": [], "dtype": "int8"}], "weights": [], "weight_name_mapping": {},
        "nodes": [],
    }  # fmt: skip
    for _ in range(20):
        inner = {**json.loads(json.dumps(inner)), "functions": {"f": inner}}
    document.setdefault("functions", {})["deep"] = inner
    return f"$.functions.deep{'.functions.f' * 20}"


@violation("R2")
def an_expression_that_is_too_long(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph["constraints"] = [*graph.get("constraints", []), " + ".join(["1"] * 20_000)]
    return f"{path}.constraints[{len(graph['constraints']) - 1}]"
