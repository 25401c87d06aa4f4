"""Golden packs: what another runtime is compared with, how it is compared, and what is refused."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import catalogue
from tests.proof import captured, module
from torch_ir import IR, Comparison, IRExecutor, TensorMeta, compare_golden, write_golden
from torch_ir.cli import main
from torch_ir.errors import ExecutionError, MissingExtraError, MissingFileError, SerializationError
from torch_ir.golden.dumps import Dumps
from torch_ir.golden.pack import read_pack, stored, unstored
from torch_ir.ops.names import TORCH_DTYPES

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.encoder(x).relu().chunk(2, 1)
        return self.head(torch.cat([low, high], 1)).softmax(1), low.argmax(1)


NET = Net().eval()


def dumped(ir: IR, weights: dict[str, Tensor], *inputs: Any, broken: str = "", by: float = 0.5) -> dict[str, Tensor]:
    """What a runtime dumps that computes one node wrongly: every value by name, and all that follows from it."""
    values: dict[str, Tensor] = {}

    def watch(tensor: TensorMeta, value: Any, sizes: Any) -> None:
        if tensor.name == broken:
            value += by  # in place, so that later nodes read it
        values[tensor.name] = value.clone()

    IRExecutor(ir, weights, watch=watch).execute(inputs)
    return values


def golden(path: Path, model: nn.Module = NET, *inputs: Any, **options: Any) -> IR:
    """A pack of a model; returns its graph."""
    ir = captured(model, *(inputs or (X,)))
    write_golden(ir, model.state_dict(), inputs or (X,), path, model=model, **options)
    return ir


def compared(path: Path, values: dict[str, Tensor], **options: Any) -> Comparison:
    """A comparison of dumps with the pack at a path."""
    save_file(values, path.with_suffix(".safetensors"))
    return compare_golden(path, path.with_suffix(".safetensors"), **options)


# -- right and wrong dumps --------------------------------------------------------------------------------------------


def as_safetensors(values: dict[str, Tensor], folder: Path) -> Path:
    names = sorted(values)
    folder.mkdir()
    save_file({name: values[name] for name in names[:3]}, folder / "one.safetensors")
    save_file({name: values[name] for name in names[3:]}, folder / "two.safetensors")
    return folder


def as_npz(values: dict[str, Tensor], folder: Path) -> Path:
    numpy.savez(folder.with_suffix(".npz"), **{name: value.numpy() for name, value in values.items()})
    return folder.with_suffix(".npz")


def as_npy(values: dict[str, Tensor], folder: Path) -> Path:
    folder.mkdir()
    for name, value in values.items():
        numpy.save(folder / f"{name}.npy", value.numpy())
    return folder


@pytest.mark.parametrize("written", [as_safetensors, as_npz, as_npy], ids=lambda function: function.__name__)
def test_round_trip(tmp_path: Path, written: Callable[[dict[str, Tensor], Path], Path]) -> None:
    """Dumps of a right runtime are equal to the pack, in whichever files they come."""
    ir = golden(tmp_path / "pack")
    values = dumped(ir, NET.state_dict(), X)
    found = compare_golden(tmp_path / "pack", written(values, tmp_path / "dumps"))
    assert found.is_equal, found
    assert found.compared == sum(len(node.outputs) for node in ir.nodes)
    assert (found.missing, found.unknown, found.divergence) == ([], [], None)
    assert str(found).startswith("Comparison: EQUAL\n")


@pytest.mark.parametrize("broken", ["linear", "tanh", "linear_1", "relu", "chunk_0", "cat", "linear_2", "softmax"])
def test_the_first_wrong_node_is_named(tmp_path: Path, broken: str) -> None:
    """A wrong value makes all that follows wrong; the first in the order of the graph is named."""
    ir = golden(tmp_path / "pack")
    found = compared(tmp_path / "pack", dumped(ir, NET.state_dict(), X, broken=broken))
    assert found.divergence is not None
    assert found.divergence.output == broken
    tensor = next(tensor for tensor in ir.tensors() if tensor.name == broken)
    assert tensor.producer is not None
    assert (found.divergence.node, found.divergence.module) == (tensor.producer.name, tensor.producer.origin.module)
    assert found.divergence.source == tensor.producer.origin.source
    assert found.divergence.max_diff == pytest.approx(0.5, abs=1e-5)


def test_roll_up_by_module(tmp_path: Path) -> None:
    """Each module counts its own values and those inside it."""
    ir = golden(tmp_path / "pack")
    values = dumped(ir, NET.state_dict(), X, broken="tanh")
    del values["linear_1"]
    found = compared(tmp_path / "pack", values)
    counts = {item.module: (item.compared, item.differing, item.missing) for item in found.modules}
    assert counts["encoder"] == (2, 1, 1)
    assert counts["encoder.0"] == (1, 0, 0)
    assert counts["encoder.1"] == (1, 1, 0)
    assert counts["head"] == (1, 1, 0)
    assert counts[""][0] == found.compared
    assert "  encoder: 1 of 2 differ, 1 missing, max diff 0.5" in str(found).splitlines()


def test_missing_dumps_leave_suspects(tmp_path: Path) -> None:
    """Where nodes before the first difference were not dumped, any of them may be at fault, and they are listed."""
    ir = golden(tmp_path / "pack")
    values = dumped(ir, NET.state_dict(), X, broken="tanh")
    del values["tanh"], values["linear_1"]
    found = compared(tmp_path / "pack", values)
    assert found.missing == ["tanh", "linear_1"]
    assert found.divergence is not None
    assert (found.divergence.node, found.divergence.suspects) == ("relu", ("tanh", "linear_1"))


def test_names_of_nodes_and_of_the_runtime(tmp_path: Path) -> None:
    """A node's name stands for its only value; other names are mapped; unknown ones get a hint."""
    golden(tmp_path / "pack", module(lambda self, x: x.sin().max(1)), X)
    values = {"sine": X.sin(), "max_1_0": X.sin().max(1)[0], "max_1_2": X.sin().max(1)[1]}
    found = compared(tmp_path / "pack", values, names={"sine": "sin"})
    assert (found.compared, found.missing) == (2, ["max_1_1"])
    assert found.unknown[0].startswith("'max_1_2'; did you mean 'max_1_")
    with pytest.raises(SerializationError, match="both 'sin' and 'sine' are dumps of 'sin'"):
        compared(tmp_path / "pack", {"sin": X, "sine": X.clone()}, names={"sine": "sin"})


def test_nothing_to_compare(tmp_path: Path) -> None:
    """Dumps that all have other names are no success."""
    golden(tmp_path / "pack")
    found = compared(tmp_path / "pack", {"nothing": X})
    assert not found.is_equal
    assert str(found).startswith("Comparison: NOTHING COMPARED")


def test_tolerances(tmp_path: Path) -> None:
    """They grow with depth, shrink with small values, and can be given."""
    ir = golden(tmp_path / "pack")
    first, last = (next(v for v in read_pack(tmp_path / "pack").values if v.name == n) for n in ("linear", "softmax"))
    assert 0 < first.rtol < last.rtol < 1e-4
    assert 0 < first.atol <= first.rtol
    values = dumped(ir, NET.state_dict(), X, broken="linear", by=0.001)
    assert not compared(tmp_path / "pack", values).is_equal
    assert compared(tmp_path / "pack", values, rtol=0.1, atol=0.1).is_equal


# -- dtypes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=str)
def test_every_dtype_is_stored_exactly(dtype: torch.dtype) -> None:
    """Whatever safetensors has no name for lies there as pairs or bytes, and comes back bit for bit."""
    raw = torch.arange(96, dtype=torch.uint8)
    tensor = (raw % 2).bool() if dtype == torch.bool else raw.view(dtype)
    name = str(dtype).removeprefix("torch.")
    how, plain = stored(tensor, name)
    back = unstored(plain.clone(), how, name, list(tensor.shape))
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_dumps_in_another_dtype(tmp_path: Path) -> None:
    """They are compared in the pack's dtype, with a note; whole numbers must stay what they are."""
    model = module(lambda self, x: (x.to(torch.bfloat16) * 3, x.argmax(1), torch.complex(x, x)))
    ir = golden(tmp_path / "pack", model, X)
    values = dumped(ir, {}, X)
    assert values["mul"].dtype == torch.bfloat16
    wide = {**values, "mul": values["mul"].float(), "argmax": values["argmax"].int()}
    found = compared(tmp_path / "pack", wide)
    assert found.is_equal, found
    assert "given as float32 and compared as bfloat16: mul" in found.notes
    assert "given as int32 and compared as int64: argmax" in found.notes
    found = compared(tmp_path / "pack", {**values, "argmax": values["argmax"] + 0.5})
    assert found.differing == ["argmax"]
    assert found.divergence is not None
    assert found.divergence.reason == "dtype torch.float32 instead of torch.int64"


def test_numpy_without_a_name_for_the_dtype(tmp_path: Path) -> None:
    """bfloat16 that numpy saved as two bytes of nothing in particular is read as what the pack says."""
    model = module(lambda self, x: x.to(torch.bfloat16))
    golden(tmp_path / "pack", model, X)
    (tmp_path / "dumps").mkdir()
    bits = X.to(torch.bfloat16).view(torch.int16).numpy()
    numpy.save(tmp_path / "dumps" / "to.npy", bits.view(numpy.dtype("V2")))
    found = compare_golden(
        tmp_path / "pack", tmp_path / "dumps", names={"to": read_pack(tmp_path / "pack").values[-1].name}
    )
    assert found.is_equal, found


def test_wrong_shapes_are_a_difference(tmp_path: Path) -> None:
    """A dump of another shape is said to be that."""
    ir = golden(tmp_path / "pack")
    values = dumped(ir, NET.state_dict(), X)
    found = compared(tmp_path / "pack", {**values, "tanh": values["tanh"].t().contiguous()})
    assert found.divergence is not None
    assert found.divergence.reason == "shape [8, 3] instead of [3, 8]"


# -- writing ----------------------------------------------------------------------------------------------------------


def test_what_a_pack_holds(tmp_path: Path) -> None:
    """Inputs and, if asked for, weights; the digest of the graph; which reference it is."""
    ir = golden(tmp_path / "pack", with_weights=True)
    index = json.loads((tmp_path / "pack" / "index.json").read_text())
    assert (index["format"], index["version"], index["model_name"]) == ("torch-ir golden", 1, "Net")
    assert index["ir"].startswith("sha256:")
    assert "gave the model's results" in index["reference"]
    assert torch.equal(load_file(tmp_path / "pack" / "inputs-00001.safetensors")["x"], X)
    weights = load_file(tmp_path / "pack" / "weights-00001.safetensors")
    assert weights.keys() == NET.state_dict().keys()
    write_golden(ir, NET.state_dict(), (X,), tmp_path / "alone")
    assert read_pack(tmp_path / "alone").reference == "the graph"
    assert not (tmp_path / "alone" / "weights-00001.safetensors").exists()


def test_a_graph_that_is_not_the_model_gives_no_pack(tmp_path: Path) -> None:
    """A reference that is wrong itself would be worse than none."""
    ir = captured(NET, X)
    ir.node("tanh").op_type = "aten.sin.default"
    with pytest.raises(ExecutionError, match="the graph is not the model"):
        write_golden(ir, NET.state_dict(), (X,), tmp_path / "pack", model=NET)
    assert list(tmp_path.iterdir()) == []


def test_shards_and_selections(tmp_path: Path) -> None:
    """No shard is larger than asked; `only` and `every` leave nodes out and say so; `max_bytes` refuses."""
    ir = golden(tmp_path / "pack", shard_bytes=150)
    sizes = [shard.size for shard in read_pack(tmp_path / "pack").files.values()]
    assert len(sizes) > 4
    assert max(sizes) < 150 + 500  # and a header
    assert compared(tmp_path / "pack", dumped(ir, NET.state_dict(), X)).is_equal
    golden(tmp_path / "part", only=["encoder"])
    part = read_pack(tmp_path / "part")
    assert [value.name for value in part.values] == ["linear", "tanh", "linear_1"]
    assert part.notes == ["7 of 10 values were not asked for"]
    golden(tmp_path / "few", every=4)
    assert [value.name for value in read_pack(tmp_path / "few").values][-1] == "argmax"
    with pytest.raises(ExecutionError, match="no node is of module encodr; did you mean 'encoder"):
        golden(tmp_path / "none", only=["encodr"])
    with pytest.raises(ExecutionError, match="more than 100 bytes"):
        golden(tmp_path / "none", max_bytes=100)
    assert not (tmp_path / "none").exists()


def test_a_pack_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A pack is replaced by a pack; after an error the old one stays; what is no pack is never touched."""
    golden(tmp_path / "pack", every=3)
    before = (tmp_path / "pack" / "index.json").read_bytes()
    with pytest.raises(ExecutionError):
        golden(tmp_path / "pack", max_bytes=300)
    assert (tmp_path / "pack" / "index.json").read_bytes() == before
    golden(tmp_path / "pack")
    assert (tmp_path / "pack" / "index.json").read_bytes() != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.json").write_text("{}")
    with pytest.raises(SerializationError, match="is not a golden pack; it is left alone"):
        golden(tmp_path / "mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SerializationError, match="left alone"):
        golden(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine", "pack"]


def test_equal_packs_are_equal_bytes(tmp_path: Path) -> None:
    """Nothing of the place or the time is in a pack."""
    golden(tmp_path / "one")
    golden(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_without_safetensors_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names what to install, and nothing is left behind."""
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingExtraError, match=r"torch-ir\[safetensors\]"):
        golden(tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []


# -- control flow and random numbers ----------------------------------------------------------------------------------


def test_values_inside_functions(tmp_path: Path) -> None:
    """They are named by their function and by how often it ran; branches that were not taken have no values."""
    entry = catalogue.find("while_loop")
    torch.manual_seed(0)
    model, inputs = entry.build(), entry.inputs()
    golden(tmp_path / "pack", model, *inputs)
    names = [value.name for value in read_pack(tmp_path / "pack").values]
    rounds = [name for name in names if name.startswith("while_loop_cond_graph_0/gt")]
    assert rounds[:2] == ["while_loop_cond_graph_0/gt@0", "while_loop_cond_graph_0/gt@1"]
    assert names.index(rounds[-1]) < names.index("while_loop_0")


@pytest.mark.filterwarnings("ignore:.*training mode")
def test_random_numbers_are_said(tmp_path: Path) -> None:
    """Another runtime draws other numbers: the pack says so, and so does the comparison."""
    model = module(lambda self, x: nn.functional.dropout(x, 0.5, True) + 1)
    ir = golden(tmp_path / "pack", model, X)
    assert read_pack(tmp_path / "pack").notes == ["random numbers are drawn for dropout; another runtime draws others"]
    found = compared(tmp_path / "pack", dumped(ir, {}, X, broken="dropout"))
    assert found.divergence is not None
    assert found.divergence.reason.startswith("it draws random numbers")


# -- hostile files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    golden(tmp_path / "pack")
    return tmp_path / "pack"


def rewrite(pack: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change an index and leave out its digest, as someone who means it would."""
    document = json.loads((pack / "index.json").read_text())
    document.pop("digest")
    change(document)
    (pack / "index.json").write_text(json.dumps(document))


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "version": (lambda d: d.update(version=2), "reads version 1"),
    "format": (lambda d: d.update(format="other"), "is not the index of a golden pack"),
    "unknown key": (lambda d: d.update(extra=1), "unknown key 'extra'"),
    "path": (lambda d: d["files"][0].update(name="../a-00001.safetensors"), "is not the name of a shard"),
    "unknown file": (lambda d: d["values"][0].update(file="b-00001.safetensors"), "not among the files"),
    "dtype": (lambda d: d["values"][0].update(dtype="float33"), "unknown dtype 'float33'"),
    "shape": (lambda d: d["values"][0].update(shape=[-1]), "cannot be -1"),
    "open shape": (lambda d: d["values"][0].update(shape=["batch"], stored="bytes"), "must be numbers"),
    "other shape": (lambda d: d["values"][0].update(shape=[8, 3]), "as the index says"),
    "other dtype": (lambda d: d["values"][0].update(dtype="float16"), "as the index says"),
    "stored": (lambda d: d["values"][0].update(stored="pickle"), "no way to store"),
    "pairs": (lambda d: d["values"][0].update(stored="pairs"), "does not hold"),
    "type": (lambda d: d["values"][0].update(call="one"), "expected a whole number"),
    "name": (lambda d: d["values"][0].update(name="absent"), "absent"),
    "size": (lambda d: d["files"][0].update(size=1), "is damaged"),
    "shard twice": (lambda d: d["files"].append(d["files"][0]), "stands twice"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_wrong_index_is_refused(pack: Path, name: str) -> None:
    """Every contradiction in an index is one sentence."""
    change, message = CHANGES[name]
    rewrite(pack, change)
    with pytest.raises(SerializationError, match=message):
        read_whole(pack)


def read_whole(pack: Path) -> list[Tensor]:
    """Every tensor of a pack."""
    found = read_pack(pack)
    return [found.tensor(value) for value in (*found.inputs, *found.values)]


def test_damage_is_seen(pack: Path) -> None:
    """A changed index, a changed shard, a missing shard and a link are refused."""
    values = dumped(captured(NET, X), NET.state_dict(), X)
    shard = pack / "values-00001.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(SerializationError, match="is damaged"):
        compared(pack, values)
    shard.rename(pack / "elsewhere")
    with pytest.raises(MissingFileError, match="is missing from the pack"):
        compared(pack, values)
    shard.symlink_to(pack / "elsewhere")
    with pytest.raises(MissingFileError, match="is missing from the pack"):
        compared(pack, values)
    index = pack / "index.json"
    index.write_text(index.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(SerializationError, match="not what was written"):
        compared(pack, values)
    shutil.rmtree(pack)
    with pytest.raises(MissingFileError, match="is no golden pack"):
        compare_golden(pack, pack.parent / "pack.safetensors")


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("exploded"),))


def test_hostile_dumps(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickles are never loaded; damaged files, names that occur twice, and folders without dumps are one sentence."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "dumps"
    folder.mkdir()
    with pytest.raises(SerializationError, match="holds no dumps"):
        compare_golden(pack, folder)
    numpy.save(folder / "tanh.npy", numpy.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(SerializationError, match=r"cannot read .*tanh\.npy"):
        compare_golden(pack, folder)
    assert not Path("exploded").exists()
    (folder / "tanh.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(SerializationError, match=r"cannot read .*tanh\.npy"):
        compare_golden(pack, folder)
    numpy.save(folder / "tanh.npy", numpy.array(["a"]))
    with pytest.raises(SerializationError, match="holds no numbers that torch knows"):
        compare_golden(pack, folder)
    with (folder / "tanh.npy").open("wb") as file:
        numpy.savez(file, tanh=X.numpy())
    with pytest.raises(SerializationError, match=r"tanh\.npy is no \.npy file inside"):
        compare_golden(pack, folder)
    numpy.save(folder / "tanh.npy", X.numpy())
    save_file({"tanh": X}, folder / "all.safetensors")
    with pytest.raises(SerializationError, match="'tanh' is dumped twice"):
        compare_golden(pack, folder)
    (folder / "all.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(SerializationError, match=r"cannot read .*all\.safetensors"):
        compare_golden(pack, folder)
    with pytest.raises(SerializationError, match="no such file or folder"):
        compare_golden(pack, tmp_path / "nothing")


def test_one_number_of_a_dtype_that_numpy_lacks(tmp_path: Path) -> None:
    """A scalar of bfloat16 comes as its two bytes, as larger arrays do."""
    numpy.save(tmp_path / "x.npy", numpy.zeros((), dtype="V2"))
    assert Dumps(tmp_path / "x.npy")["x"]().tolist() == [0, 0]


# -- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`golden` writes a pack, `compare` names the first node; 0 is equal, 1 is different or an error."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n"
        "    def __init__(self):\n        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["extract", "net.py:Net", "--input", "3x4", "-o", "net.json"]) == 0
    assert main(["golden", "net.json", "net.py:Net", "--with-weights", "-o", "pack"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("3 values of the graph, which gave the model's results")
    weights = load_file("pack/weights-00001.safetensors")
    x = load_file("pack/inputs-00001.safetensors")["input"]
    ir = IR.load("net.json")
    save_file(dumped(ir, weights, x), "right.safetensors")
    save_file({"layer1": dumped(ir, weights, x, broken="tanh")["tanh"]}, "wrong.safetensors")
    Path("map.json").write_text('{"layer1": "tanh"}')
    assert main(["compare", "pack", "right.safetensors"]) == 0
    assert main(["compare", "pack", "wrong.safetensors"]) == 1
    capsys.readouterr()
    assert main(["compare", "pack", "wrong.safetensors", "--map", "map.json", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["is_equal"], record["divergence"]["node"], record["missing"]) == (
        False,
        "tanh",
        ["linear", "linear_1"],
    )
    assert main(["compare", "pack", "wrong.safetensors", "--map", "map.json", "--rtol", "1", "--atol", "1"]) == 0
    Path("map.json").write_text('{"layer1": 1}')
    assert main(["compare", "pack", "wrong.safetensors", "--map", "map.json"]) == 1
    assert "must lead to the name of a tensor" in capsys.readouterr().err
    assert main(["golden", "net.json", "-o", "pack"]) == 1
    assert "needs weights" in capsys.readouterr().err
    save_file(weights, "weights.safetensors")
    assert main(["golden", "net.json", "--weights", "weights.safetensors", "--every", "2", "-o", "pack", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reference"] == "the graph"
    assert main(["golden", "net.json", "--weights", "random", "-o", "pack", "--every", "0"]) == 1


def test_what_is_not_dense(tmp_path: Path) -> None:
    """A value that is no block of numbers is left out, by name."""
    model = module(lambda self, x: x.to_sparse().to_dense() * 2)
    ir = captured(model, X)
    write_golden(ir, {}, (X,), tmp_path / "pack")
    (note,) = read_pack(tmp_path / "pack").notes
    assert note.startswith("not dense, and left out: ")
    assert "mul" in [value.name for value in read_pack(tmp_path / "pack").values]
