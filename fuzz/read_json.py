"""Any text read as a graph: rejected with its path, or a valid graph that prints, copies and round-trips."""

from pathlib import Path

from tests.damage.graph_files import PEER, layers
from tests.damage.subject import meaning
from tests.graphs import chain, everything, mlp
from tests.refusals import without_digest
from torch_ir.errors import SerializationError
from torch_ir.ir import IR


def seeds() -> list[bytes]:
    graphs = [chain("aten.neg.default"), mlp(), everything()]
    texts = [graph.to_json() for graph in [*graphs, layers(6)]]
    return [*(without_digest(text).encode() for text in texts), *map(Path.read_bytes, sorted(PEER.glob("[!.]*.json")))]


def check(data: bytes) -> None:
    try:
        ir = IR.from_json(data.decode())
    except (SerializationError, UnicodeDecodeError):
        return
    meaning(ir)
