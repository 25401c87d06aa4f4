"""The graph as protobuf: lossless, equal bytes for equal graphs, and readable by other programs."""

import importlib.util
import json
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import catalogue
import torch_ir
from catalogue import Entry
from tests.graphs import chain, everything, mlp, tensor
from tests.test_changing_buffers import Layers
from tests.test_changing_buffers import graph as changing
from torch_ir import IR, Limits, Lowered, Target, from_protobuf, load_protobuf, save_protobuf, to_protobuf
from torch_ir.cli.dispatch import main
from torch_ir.errors import GraphError, MissingExtraError, MissingFileError, SerializationError
from torch_ir.formats import graph_message, lowered_from_protobuf, lowered_message, lowered_to_protobuf, protobuf
from torch_ir.ir import Device, Dtype, Expr, Layout, MemoryFormat, OpNode, Origin, Param, Symbol, TensorData, TensorMeta
from torch_ir.ir.graph import node
from torch_ir.ir.graph import tensor as tensor_module
from torch_ir.ir.json import decode

ROOT = Path(__file__).parents[1]
FORMATS = Path(torch_ir.__file__).parent / "formats"
ENTRIES = list(catalogue.entries())
SAMPLE = random.Random(0).sample(ENTRIES, 16)


def returns(ir: IR) -> IR:
    """Round-trip the graph; it must be equal, and produce the same bytes again."""
    data = to_protobuf(ir)
    back = from_protobuf(data)
    assert back.to_json() == ir.to_json()
    assert to_protobuf(back) == data == to_protobuf(ir)
    return back


def lowered(ir: IR) -> Lowered:
    """Lower the graph to a target that accepts every second kind of node."""
    npu = Target("npu")
    npu.lowers(*sorted({node.op_type for node in ir.nodes})[::2])(attributes)
    return npu.lower(ir)


def attributes(node: OpNode) -> dict[str, Any]:
    """All of them, as text where JSON has no such number."""
    odd = (math.inf, -math.inf)
    return {name: repr(v) if type(v) is complex or v in odd else v for name, v in node.attrs.items()}


def layers_return(ir: IR) -> None:
    """The layers of a target round-trip in the same order, and produce the same bytes again."""
    document = lowered(ir).to_dict()
    data = lowered_to_protobuf(document)
    back = lowered_from_protobuf(data)
    assert json.dumps(back) == json.dumps(document)
    assert lowered_to_protobuf(back) == data


# -- nothing is lost --------------------------------------------------------------------------------------------------


def test_everything_comes_back() -> None:
    """Every part of the format, functions within functions included."""
    assert str(returns(everything())) == str(everything())
    returns(mlp())
    layers_return(everything())
    layers_return(mlp())


def test_absent_is_not_empty() -> None:
    """Strides of a scalar, a constant without elements, a result of None, zero, False and the empty text."""
    x = TensorMeta("x", (), "float32", stride=())
    empty = TensorMeta("e", (0,), "float32", param=Param(("e",), "constant", TensorData((0,), "float32", b"")))
    ir = IR([], [x], [x], params=[empty])
    back = returns(ir)
    assert back.graph_inputs[0].stride == ()
    assert back.constants["e"].raw == b""
    x = x.copy()
    nothing = IR([OpNode("n", "aten.neg.default", [x], [tensor("n")], {"zero": 0, "no": False, "text": ""})], [x], [])
    nothing.mutations = [(x, nothing.nodes[0].output)]
    nothing.output_tree = None
    back = returns(nothing)
    assert back.output_tree is None
    assert back.nodes[0].attrs == {"zero": 0, "no": False, "text": ""}


def test_a_later_output_may_have_the_name_of_its_node() -> None:
    """Fused calls are named after their last node, whose result need not be the first that they return."""
    x = tensor("x")
    first, last = tensor("first"), tensor("last")
    call = OpNode("last", "aten.aminmax.default", [x], [first, last], {"dim": None, "keepdim": False})
    back = returns(IR([call], [x], [last, first]))
    assert [output.name for output in back.nodes[0].outputs] == ["first", "last"]


def test_every_key_of_the_document_is_known() -> None:
    """A key that the JSON document gains must gain a field here, or it would be lost."""
    assert graph_message._GRAPH == decode._GRAPH
    model = protobuf._message_class("Model").DESCRIPTOR.file.message_types_by_name
    fields = {name: {field.name for field in model[name].fields} for name in ("Place", "Node", "Operation", "Type")}
    assert fields["Place"] == set(Origin._fields)
    told = {"name", "op_type", "inputs", "outputs", "attributes", "arguments", "origins"}
    assert fields["Node"] | fields["Operation"] == told | {"operation", "place"}
    assert node._KEYS - set(Origin._fields) == {"name", "op_type", "inputs", "outputs", "attrs", "args", "origins"}
    assert fields["Type"] == tensor_module._KEYS - {"name", "producer_node", "producer_output_idx"}
    assert fields["Type"] | {"name"} == lowered_message._TENSOR


def test_a_sharded_graph_comes_back() -> None:
    """A mesh, and placements on it."""
    x = TensorMeta("x", (4,), "float32", placement=("shard(0)", "replicate"))
    y = TensorMeta("y", (4,), "float32", placement=("shard(0)", "partial(sum)"))
    returns(IR([OpNode("y", "aten.neg.default", [x], [y], args=["self"])], [x], [y], mesh={"dp": 2, "tp": 4}))


def test_a_size_that_the_data_decides_comes_back() -> None:
    """A symbol without a dimension or an end of its range."""
    x, count, y = tensor("x", 4), tensor("n", dtype="int64"), tensor("y", "u0")
    nodes = [OpNode("n", "aten.sum.default", [x], [count]), OpNode("y", "aten.zeros.default", [], [y])]
    returns(IR(nodes, [x], [y], symbols=[Symbol("u0", 0, None, count)]))


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "data" / "peer").glob("*.json")), ids=lambda path: path.stem)
def test_golden_files_come_back(path: Path) -> None:
    """Graphs of the documented format."""
    if not path.name.endswith(".values.json"):
        returns(IR.load(path))


def captured(entry: Entry) -> IR:
    with torch_ir.meta_init():
        model = entry.build()
    inputs, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), (entry.inputs(), entry.kwargs()))
    return torch_ir.extract_ir(model, inputs, kwargs=kwargs, strict=False)


@pytest.mark.parametrize("entry", SAMPLE, ids=lambda entry: entry.name)
def test_a_sample_of_the_catalogue_comes_back(entry: Entry) -> None:
    """As a graph, and as the layers of a target."""
    layers_return(returns(captured(entry)))


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_catalogue_comes_back(entry: Entry) -> None:
    layers_return(returns(captured(entry)))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(10**90), 10**90),
        st.floats(),
        st.complex_numbers(),
        TEXTS,
        st.sampled_from([Dtype("bfloat16"), Device("cuda:1"), Layout("strided"), MemoryFormat("channels_last")]),
        st.just(Expr("2*n + 1")),
    ),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS.filter(lambda k: k[:1] != "$"), inner, max_size=3)
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=4))
def test_attribute_values_come_back(values: list[Any]) -> None:
    """Every kind of attribute, at any depth."""
    x, y = tensor("x", "n"), tensor("y", "n")
    node = OpNode("y", "aten.neg.default", [x], [y], {f"value{i}": value for i, value in enumerate(values)})
    returns(IR([node], [x], [y], symbols=[Symbol("n", 1, 8, x, 0)]))


def test_deep_values() -> None:
    """Values that protobuf readers would reject are not written."""

    def nested(levels: int) -> IR:
        value: Any = None
        for _ in range(levels):
            value = [value]
        ir = chain("aten.neg.default")
        ir.nodes[0].attrs["deep"] = value
        return ir

    returns(nested(31))
    with pytest.raises(SerializationError, match="nested deeper than the 30 levels"):
        to_protobuf(nested(32))


def test_what_cannot_be_written_is_an_error() -> None:
    """A graph that contradicts itself, half of a surrogate pair, and a number beyond 64 bits."""
    ir = mlp()
    ir.nodes.reverse()
    with pytest.raises(GraphError, match="which nothing before it makes"):
        to_protobuf(ir)
    for attrs in ({"text": "\ud800"}, {"many": 10**200}):
        ir = chain("aten.neg.default")
        ir.nodes[0].attrs.update(attrs)
        with pytest.raises(SerializationError):
            to_protobuf(ir)


# -- files ------------------------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is the bytes; folders are created; a failed write leaves the old file and no other."""
    path = tmp_path / "deep" / "model.pb"
    save_protobuf(everything(), path)
    assert path.read_bytes() == to_protobuf(everything())
    assert load_protobuf(str(path)).to_json() == everything().to_json()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(SerializationError, match="cannot write"):
        save_protobuf(mlp(), path)
    assert os.listdir(path.parent) == ["model.pb"]
    assert path.read_bytes() == to_protobuf(everything())


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, a folder, too large, empty, JSON: one kind of error."""
    with pytest.raises(MissingFileError, match=r"none\.pb"):
        load_protobuf(tmp_path / "none.pb")
    with pytest.raises(SerializationError, match="is a folder, not a graph file"):
        load_protobuf(tmp_path)
    save_protobuf(mlp(), tmp_path / "m.pb")
    with pytest.raises(SerializationError, match="bytes are more than 100"):
        load_protobuf(tmp_path / "m.pb", Limits(file_bytes=100))
    with pytest.raises(SerializationError, match="bytes are more than 100"):
        from_protobuf(to_protobuf(mlp()), Limits(file_bytes=100))
    with pytest.raises(SerializationError, match="format is '', not 'torch-ir'"):
        from_protobuf(b"")
    with pytest.raises(SerializationError, match="not a protobuf file"):
        from_protobuf(mlp().to_json().encode())


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence that names the extra."""
    monkeypatch.setitem(sys.modules, "google.protobuf.message_factory", None)
    protobuf.message_class.cache_clear()
    with pytest.raises(MissingExtraError, match=r"pip install 'torch-ir\[protobuf\]'"):
        to_protobuf(mlp())
    protobuf.message_class.cache_clear()


def test_no_torch_is_needed(tmp_path: Path) -> None:
    """Converting files does not import torch."""
    mlp().save(tmp_path / "m.json")
    code = (
        "import sys; from torch_ir.cli.dispatch import main\n"
        "assert main(['convert', 'm.json', '-o', 'm.pb']) == 0 and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})


# -- other readers ----------------------------------------------------------------------------------------------------


def protoc(*arguments: str, given: bytes = b"") -> bytes:
    """Return the output of the protobuf compiler."""
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("the protobuf compiler is missing: pip install grpcio-tools")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FORMATS}", *arguments, "torch_ir.proto"]
    return subprocess.run(command, input=given, capture_output=True, check=True).stdout


def test_the_descriptor_set_is_that_of_the_specification(tmp_path: Path) -> None:
    """`make proto` was run after the last change of torch_ir.proto."""
    protoc(f"--descriptor_set_out={tmp_path / 'new.binpb'}")
    assert (tmp_path / "new.binpb").read_bytes() == (FORMATS / "torch_ir.binpb").read_bytes()


def test_protoc_reads_and_writes_our_files() -> None:
    """Decoded to text and encoded again by protobuf's own tool, a file is the same, byte for byte."""
    data = to_protobuf(everything())
    text = protoc("--decode=torch_ir.v1.Model", given=data)
    assert b'op_type: "aten.max.dim"' in text
    assert protoc("--encode=torch_ir.v1.Model", given=text) == data
    data = lowered_to_protobuf(lowered(everything()).to_dict())
    text = protoc("--decode=torch_ir.v1.LoweredModel", given=data)
    assert b'placeholder: "no lowering"' in text
    assert protoc("--encode=torch_ir.v1.LoweredModel", given=text) == data


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example in C++, built."""
    missing = [tool for tool in ("protoc", "c++", "make", "pkg-config") if shutil.which(tool) is None]
    if missing or subprocess.run(["pkg-config", "--exists", "protobuf"], check=False).returncode:
        pytest.skip(f"a C++ compiler, protoc or libprotobuf is missing: {', '.join(missing) or 'libprotobuf'}")
    folder = tmp_path_factory.mktemp("reader")
    for name in ("Makefile", "reader.cc"):
        shutil.copy(ROOT / "examples" / "read_protobuf" / name, folder)
    subprocess.run(["make", f"SPECIFICATION={FORMATS}", "CXXFLAGS=-O0"], cwd=folder, check=True, capture_output=True)
    return folder / "reader"


@pytest.mark.slow
def test_the_example_in_cpp(reader: Path, tmp_path: Path) -> None:
    """It prints the layers of a model, and rejects other files."""
    save_protobuf(everything(), tmp_path / "m.pb")
    printed = subprocess.run([reader, tmp_path / "m.pb"], check=True, capture_output=True, text=True).stdout
    assert printed.startswith("Everything: 5 nodes, 3 weights\ninput x: float32[2, batch]\n")
    assert "aten.mm.default  (first, Linear)\n  self = p_w: float32[3, 2]\n" in printed
    assert "  nested = [1, [None, 's'], []]\n" in printed
    lowered(mlp()).save(tmp_path / "l.pb")
    printed = subprocess.run([reader, tmp_path / "l.pb"], check=True, capture_output=True, text=True).stdout
    assert printed.startswith("SimpleMLP for npu: 3 layers\naten.linear.default  (linear)\n  reads x\n")
    assert "\naten.relu.default  (relu)\n  reads linear\n  -> a placeholder\n" in printed
    everything().save(tmp_path / "m.json")
    done = subprocess.run([reader, tmp_path / "m.json"], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("m.json is not a protobuf file of torch_ir\n")


@pytest.mark.slow
def test_the_example_in_cpp_joins_updates_to_keys(reader: Path, tmp_path: Path) -> None:
    """In a graph, and in a lowered one, a changed buffer has its key in the state dict."""
    ir = changing(Layers)
    save_protobuf(ir, tmp_path / "graph.pb")
    Target("npu").lower(ir).save(tmp_path / "lowered.pb")
    expected = [f"update layers.{number}.steps := {value.name}" for number, (_, value) in enumerate(ir.mutations)]
    assert len(expected) == 3
    for name in ("graph.pb", "lowered.pb"):
        printed = subprocess.run([reader, tmp_path / name], check=True, capture_output=True, text=True).stdout
        assert [line for line in printed.splitlines() if line.startswith("update ")] == expected


# -- the command line -------------------------------------------------------------------------------------------------


def test_convert_there_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ways; every command reads either; errors are one line."""
    monkeypatch.chdir(tmp_path)
    everything().save("m.json")
    assert main(["convert", "m.json", "-o", "m.pb"]) == 0
    assert main(["convert", "m.pb", "-o", "copy.BinPB"]) == 0
    assert main(["convert", "copy.BinPB", "-o", "back.json"]) == 0
    assert Path("m.pb").read_bytes() == to_protobuf(everything()) == Path("copy.BinPB").read_bytes()
    assert Path("back.json").read_bytes() == Path("m.json").read_bytes()
    capsys.readouterr()
    assert main(["info", "m.json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert main(["info", "m.pb"]) == 0
    differ = {*capsys.readouterr().out.splitlines()} ^ {*printed}
    assert [line.partition(":")[0] for line in differ] == ["  digest"] * 2  # with different bytes
    assert main(["convert", "m.json", "-o", "m.tflite"]) == 1
    assert main(["info", "none.pb"]) == 1
    Path("bad.pb").write_bytes(b"{}")
    assert main(["convert", "bad.pb", "-o", "m.json"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert (
        lines[0] == "torch-ir: error: m.tflite must end in .json, .json.gz, .pb, .binpb, .ir, .onnx, .mlir, "
        ".stablehlo.mlir, .py or .pt2"
    )
    assert lines[1] == "torch-ir: error: cannot read none.pb: No such file or directory"
    assert lines[2].startswith("torch-ir: error: bad.pb is JSON, but not a torch-ir graph: it has no 'format'")
    assert Path("m.json").read_bytes() == Path("back.json").read_bytes()
