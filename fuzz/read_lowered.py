"""Any bytes read as the protobuf file of a lowered graph: rejected, or layers that round-trip."""

from tests.damage.graph_files import DIGEST_LENGTH, lowered
from tests.graphs import everything, mlp
from torch_ir.errors import SerializationError
from torch_ir.formats import lowered_from_protobuf, lowered_to_protobuf


def seeds() -> list[bytes]:
    return [lowered(graph)[:-DIGEST_LENGTH] for graph in (mlp(), everything())]


def check(data: bytes) -> None:
    try:
        document = lowered_from_protobuf(data)
    except SerializationError:
        return
    again = lowered_to_protobuf(document)
    assert lowered_to_protobuf(lowered_from_protobuf(again)) == again
