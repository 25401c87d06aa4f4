"""Any text read as the text form: rejected with its place, or a valid graph that prints, copies and round-trips."""

from tests.damage.graph_files import layers
from tests.damage.subject import meaning
from tests.graphs import chain, everything, mlp
from torch_ir.errors import SerializationError
from torch_ir.ir import IR


def seeds() -> list[bytes]:
    return [graph.to_text().encode() for graph in (chain("aten.neg.default"), mlp(), everything(), layers(2))]


def check(data: bytes) -> None:
    try:
        ir = IR.parse(data.decode())
    except (SerializationError, UnicodeDecodeError):
        return
    meaning(ir)
