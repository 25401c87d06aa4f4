"""The line reader returns the same graph as the JSON reader, and accepts nothing that JSON would reject."""

from tests.damage.graph_files import layers
from tests.graphs import chain, everything, mlp
from tests.refusals import without_digest
from torch_ir.errors import SerializationError
from torch_ir.ir import IR
from torch_ir.ir.json.json_text import parse_document


def seeds() -> list[bytes]:
    graphs = [chain("aten.neg.default"), chain("aten.neg.default", "aten.relu.default"), mlp(), everything(), layers(3)]
    return [without_digest(graph.to_json()).encode() for graph in graphs]


def check(data: bytes) -> None:
    try:
        text = data.decode()
        ir = IR.from_json(text)
    except (SerializationError, UnicodeDecodeError):
        return
    assert ir.to_json() == IR.from_dict(parse_document(text)).to_json()
