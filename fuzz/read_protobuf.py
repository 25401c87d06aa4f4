"""Any bytes read as a protobuf file: rejected, or a valid graph that round-trips in protobuf and JSON."""

from tests.damage.graph_files import DIGEST_LENGTH, layers
from tests.damage.subject import meaning
from tests.graphs import chain, everything, mlp
from torch_ir import from_protobuf, to_protobuf
from torch_ir.errors import SerializationError


def seeds() -> list[bytes]:
    return [
        to_protobuf(graph)[:-DIGEST_LENGTH] for graph in (chain("aten.neg.default"), mlp(), everything(), layers(3))
    ]


def check(data: bytes) -> None:
    try:
        ir = from_protobuf(data)
    except SerializationError:
        return
    text = meaning(ir)
    assert from_protobuf(to_protobuf(ir)).to_json() == text
