"""The table of violations: each breaks one thing at a random place, with the rule and JSON path to expect."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Union

from tests.random_irs.draws import Draw
from torch_ir.ir import IR

Record = dict[str, Any]
# The path that must be named; None where a graph has no such place.
InDocument = Callable[[Draw, Record], "str | None"]
InGraph = Callable[[Draw, IR], "str | None"]
InText = Callable[[Draw, str], "tuple[str, str] | None"]
OnDisk = Callable[[Draw, Path], "str | None"]


class Violation(NamedTuple):
    """A kind of violation, its rule, and where it is made: `document`, `graph`, `text` or `files`."""

    kind: str
    rule: str
    where: str
    make: Union[InDocument, InGraph, InText, OnDisk]


VIOLATIONS: dict[str, Violation] = {}


def violation(rule: str, where: str = "document") -> Callable[[Any], Any]:
    """Register a kind of violation under the function's name."""

    def add(make: Any) -> Any:
        kind = make.__name__.replace("_", " ")
        assert kind not in VIOLATIONS, kind
        VIOLATIONS[kind] = Violation(kind, rule, where, make)
        return make

    return add


def document_of(ir: IR) -> Record:
    """Return the document without its digest, as parsed JSON."""
    document: Record = json.loads(ir.to_json())
    del document["digest"]
    return document


def graphs(record: Record, path: str = "$") -> list[tuple[str, Record]]:
    """A graph and its functions, each with its path."""
    found = [(path, record)]
    for name, body in record.get("functions", {}).items():
        found += graphs(body, f"{path}.functions.{name}")
    return found


def nodes(document: Record) -> list[tuple[str, Record]]:
    return [
        (f"{path}.nodes[{index}]", node)
        for path, graph in graphs(document)
        for index, node in enumerate(graph["nodes"])
    ]


def tensors(document: Record) -> list[tuple[str, Record]]:
    """Return the records that define a tensor: inputs, weights, and node outputs."""
    found = []
    for path, graph in graphs(document):
        for key in ("graph_inputs", "weights"):
            found += [(f"{path}.{key}[{index}]", tensor) for index, tensor in enumerate(graph[key])]
    for path, node in nodes(document):
        found += [(f"{path}.outputs[{index}]", tensor) for index, tensor in enumerate(node["outputs"])]
    return found


def placed(document: Record) -> list[Record]:
    """Return the records of node outputs that may become new values: on a mesh, those with a placement."""
    made = [tensor for node in document["nodes"] for tensor in node["outputs"]]
    return [tensor for tensor in made if not document.get("mesh") or tensor.get("placement")]


def reads(document: Record, *, given: bool = True) -> list[tuple[str, Record]]:
    """Return the records of node inputs; those of weights have no producer."""
    return [
        (f"{path}.inputs[{index}]", tensor)
        for path, node in nodes(document)
        for index, tensor in enumerate(node["inputs"])
        if given or "producer_node" in tensor
    ]


def tables(document: Record, key: str) -> list[tuple[str, Record]]:
    """Return the graphs with a value under a key, and its path."""
    return [(f"{path}.{key}", graph) for path, graph in graphs(document) if graph.get(key)]


def tagged(document: Record, tag: str) -> list[tuple[str, Record]]:
    """Return attribute values with one tag, each with its container."""
    return [
        (f"{path}.attrs.{name}", value)
        for path, node in nodes(document)
        for name, value in node["attrs"].items()
        if isinstance(value, dict) and tag in value
    ]
