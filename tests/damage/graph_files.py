"""Files of graphs, of lowered graphs and of contracts, which are read without torch."""

from functools import partial
from pathlib import Path
from typing import Any

from tests.damage.subject import Subject, files, meaning, undigested, without_refusal, written
from tests.graphs import everything, mlp
from torch_ir import IR, Contract, Target, load_protobuf, to_protobuf
from torch_ir.formats import lowered_from_protobuf, lowered_to_protobuf
from torch_ir.ir.json.gzip_text import compress

PEER = Path(__file__).parents[1] / "data" / "peer"
DIGEST_LENGTH = 34  # of the last field of a protobuf file
CONTRACT = """name = "npu"
dtypes = ["float32", "float16"]
rank = { max = 4 }
static = true

[[ops]]
op = ["aten.relu", "aten.add.Tensor", "aten.*pool2d*"]
rank = [2, 4]

[[ops]]
op = "aten.conv2d"
dtypes = { "weight" = ["int8"] }
attrs = { groups = 1, stride = [1, 2], padding = { max = 3 } }
absent = ["bias"]
require = ["weight.shape[0] % 8 == 0", "weight.shape[2] <= 7"]
"""


def graph(path: Path) -> str:
    return meaning(IR.load(path))


def layers(count: int) -> IR:
    """A graph that repeats itself."""
    ir = everything()
    for number in range(count):
        copy = mlp().nodes[1]
        x, y = ir.graph_outputs[0], copy.outputs[0].copy(f"relu_{number}")
        y.shape = x.shape
        ir.nodes.append(type(copy)(y.name, copy.op_type, [x], [y], args=["self"], origin=copy.origin))
        ir.graph_outputs = [y, *ir.graph_outputs[1:]]
    return ir.check()


@files("JSON", digest=True)
def json_file(folder: Path) -> Subject:
    path = written(folder / "model.json", layers(2).to_json().encode())
    return Subject(path, mlp().to_json().encode(), partial(graph, path))


@files("gzip", digest=True)
def gzip_file(folder: Path) -> Subject:
    path = written(folder / "model.json.gz", compress(layers(6).to_json().encode()))
    return Subject(path, compress(mlp().to_json().encode()), partial(graph, path))


@files("JSON with a side file", digest=True)
def text_of_pair(folder: Path) -> Subject:
    path = folder / "model.json"
    everything().save(path, inline_limit=0)
    return Subject(path, mlp().to_json().encode(), partial(graph, path))


@files("a side file", digest=True)
def side_of_pair(folder: Path) -> Subject:
    path = folder / "model.json"
    everything().save(path, inline_limit=0)
    (side,) = folder.glob("*.safetensors")
    return Subject(side, side.read_bytes()[::-1], partial(graph, path))


@files("protobuf", digest=True)
def message(folder: Path) -> Subject:
    path = written(folder / "model.binpb", to_protobuf(layers(2)))
    return Subject(path, to_protobuf(mlp()), lambda: meaning(load_protobuf(path)))


@files("a lowered graph", digest=True)
def lowered_message(folder: Path) -> Subject:
    path = written(folder / "lowered.binpb", lowered(mlp()))
    return Subject(path, lowered(everything()), partial(_read_lowered, path))


@files("JSON without its digest")
def bare_json(folder: Path) -> Subject:
    path = written(folder / "model.json", undigested(layers(2).to_json().encode()))
    return Subject(path, undigested(mlp().to_json().encode()), partial(graph, path))


@files("protobuf without its digest")
def bare_message(folder: Path) -> Subject:
    path = written(folder / "model.binpb", to_protobuf(layers(2))[:-DIGEST_LENGTH])
    return Subject(path, to_protobuf(mlp())[:-DIGEST_LENGTH], lambda: meaning(load_protobuf(path)))


@files("a lowered graph without its digest")
def bare_lowered(folder: Path) -> Subject:
    path = written(folder / "lowered.binpb", lowered(mlp())[:-DIGEST_LENGTH])
    return Subject(path, lowered(everything())[:-DIGEST_LENGTH], partial(_read_lowered, path))


@files("the text form")
def text_file(folder: Path) -> Subject:
    path = written(folder / "model.ir", layers(2).to_text().encode())
    return Subject(path, mlp().to_text().encode(), partial(graph, path))


@files("JSON of version 0")
def peer_file(folder: Path) -> Subject:
    path = written(folder / "model.json", (PEER / "cat.json").read_bytes())
    return Subject(path, (PEER / "constants.json").read_bytes(), partial(graph, path))


@files("documented JSON of version 0")
def documented_file(folder: Path) -> Subject:
    path = written(folder / "model.json", (PEER / "documented.json").read_bytes())
    return Subject(path, (PEER / "max.json").read_bytes(), partial(graph, path))


@files("a contract")
def contract(folder: Path) -> Subject:
    path = written(folder / "npu.toml", CONTRACT.encode())
    return Subject(path, b'name = "dsp"\nops = ["aten.mm"]\n', partial(_read_contract, path))


def lowered(ir: IR) -> bytes:
    npu = Target("npu")
    npu.lowers("aten.linear")(lambda node: {"op": "gemm", "sizes": [1, 2], "parts": [None, 0.5, {"deep": 1 << 70}]})
    return lowered_to_protobuf(npu.lower(ir).to_dict())


def _read_lowered(path: Path) -> Any:
    document = lowered_from_protobuf(path.read_bytes())
    with without_refusal():
        again = lowered_to_protobuf(document)
        assert lowered_to_protobuf(lowered_from_protobuf(again)) == again
    return document


def _read_contract(path: Path) -> Any:
    found = Contract.load(path)
    answers = [found.why_not(node) for ir in (mlp(), everything()) for node in ir.all_nodes()]
    return repr(found), found.rows, answers
