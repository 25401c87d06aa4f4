"""Golden packs: content of the pack, and comparison with another runtime."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import catalogue
from tests.golden_packs import NET, X, compared, dumped, golden
from tests.proof import captured, module
from torch_ir import IR, compare_golden, write_golden
from torch_ir.cli import main
from torch_ir.errors import SerializationError
from torch_ir.golden.pack import read_pack, stored, unstored
from torch_ir.ops.torch_types import TORCH_DTYPES

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
    """Dumps of a correct runtime equal the pack, in any file format."""
    ir = golden(tmp_path / "pack")
    values = dumped(ir, NET.state_dict(), X)
    found = compare_golden(tmp_path / "pack", written(values, tmp_path / "dumps"))
    assert found.is_equal, found
    assert found.compared == sum(len(node.outputs) for node in ir.nodes)
    assert (found.missing, found.unknown, found.divergence) == ([], [], None)
    assert str(found).startswith("Comparison: EQUAL\n")


@pytest.mark.parametrize("broken", ["linear", "tanh", "linear_1", "relu", "chunk_0", "cat", "linear_2", "softmax"])
def test_the_first_wrong_node_is_named(tmp_path: Path, broken: str) -> None:
    """All values after a wrong one are wrong; the first in graph order is named."""
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
    """A node's name refers to its only value; other names are mapped; unknown ones get a suggestion."""
    golden(tmp_path / "pack", module(lambda self, x: x.sin().max(1)), X)
    values = {"sine": X.sin(), "max_1_0": X.sin().max(1)[0], "max_1_2": X.sin().max(1)[1]}
    found = compared(tmp_path / "pack", values, names={"sine": "sin"})
    assert (found.compared, found.missing) == (2, ["max_1_1"])
    assert found.unknown[0].startswith("'max_1_2'; did you mean 'max_1_")
    with pytest.raises(SerializationError, match="both 'sin' and 'sine' are dumps of 'sin'"):
        compared(tmp_path / "pack", {"sin": X, "sine": X.clone()}, names={"sine": "sin"})


def test_nothing_to_compare(tmp_path: Path) -> None:
    """Dumps without any matching name are not a success."""
    golden(tmp_path / "pack")
    found = compared(tmp_path / "pack", {"nothing": X})
    assert not found.is_equal
    assert str(found).startswith("Comparison: NOTHING COMPARED")


def test_tolerances(tmp_path: Path) -> None:
    """They grow with depth, shrink with small values, and can be set."""
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
    """Dtypes that safetensors lacks are stored as pairs or bytes, and round-trip bit for bit."""
    raw = torch.arange(96, dtype=torch.uint8)
    tensor = (raw % 2).bool() if dtype == torch.bool else raw.view(dtype)
    name = str(dtype).removeprefix("torch.")
    how, plain = stored(tensor, name)
    back = unstored(plain.clone(), how, name, list(tensor.shape))
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_dumps_in_another_dtype(tmp_path: Path) -> None:
    """They are compared in the pack's dtype, with a note; integers must be equal."""
    model = module(lambda self, x: (x.to(torch.bfloat16) * 3, x.argmax(1), torch.complex(x, x)))
    ir = golden(tmp_path / "pack", model, X)
    values = dumped(ir, {}, X)
    assert values["mul"].dtype == torch.bfloat16
    wide = {**values, "mul": values["mul"].float(), "argmax": values["argmax"].int()}
    found = compared(tmp_path / "pack", wide)
    assert found.is_equal, found
    assert "dumped as float32, compared as bfloat16: mul" in found.notes
    assert "dumped as int32, compared as int64: argmax" in found.notes
    found = compared(tmp_path / "pack", {**values, "argmax": values["argmax"] + 0.5})
    assert found.differing == ["argmax"]
    assert found.divergence is not None
    assert found.divergence.reason == "dtype torch.float32 instead of torch.int64"


def test_numpy_without_a_name_for_the_dtype(tmp_path: Path) -> None:
    """bfloat16 that numpy saved as two raw bytes is read with the dtype of the pack."""
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
    """A dump of another shape is reported as such."""
    ir = golden(tmp_path / "pack")
    values = dumped(ir, NET.state_dict(), X)
    found = compared(tmp_path / "pack", {**values, "tanh": values["tanh"].t().contiguous()})
    assert found.divergence is not None
    assert found.divergence.reason == "shape [8, 3] instead of [3, 8]"


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
    found = compared(tmp_path / "pack", {"gt": torch.tensor(True)})
    assert found.unknown == ["'gt'; did you mean 'while_loop_cond_graph_0/gt@0'?"]
    assert names.index(rounds[-1]) < names.index("while_loop_0")


@pytest.mark.filterwarnings("ignore:.*training mode")
def test_random_numbers_are_said(tmp_path: Path) -> None:
    """Another runtime draws other numbers: the pack and the comparison say so."""
    model = module(lambda self, x: nn.functional.dropout(x, 0.5, True) + 1)
    ir = golden(tmp_path / "pack", model, X)
    assert read_pack(tmp_path / "pack").notes == ["random numbers: dropout; another runtime draws different ones"]
    found = compared(tmp_path / "pack", dumped(ir, {}, X, broken="dropout"))
    assert found.divergence is not None
    assert found.divergence.reason.startswith("it draws random numbers")


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
    assert capsys.readouterr().out.splitlines()[-1].startswith("3 values of the graph, verified against the model")
    weights = load_file("pack/weights-00001.safetensors")
    x = load_file("pack/inputs-00001.safetensors")["input"]
    ir = IR.load("net.json")
    save_file(dumped(ir, weights, x), "right.safetensors")
    save_file({"layer1": dumped(ir, weights, x, broken="tanh")["tanh"]}, "wrong.safetensors")
    Path("map.json").write_text('{"layer1": "tanh"}')
    assert main(["compare", "pack", "right.safetensors"]) == 0
    assert main(["compare", "pack", "wrong.safetensors"]) == 4
    capsys.readouterr()
    assert main(["compare", "pack", "wrong.safetensors", "--map", "map.json", "--json"]) == 3
    record = json.loads(capsys.readouterr().out)
    assert (record["is_equal"], record["divergence"]["node"], record["missing"]) == (
        False,
        "tanh",
        ["linear", "linear_1"],
    )
    assert main(["compare", "pack", "wrong.safetensors", "--map", "map.json", "--rtol", "1", "--atol", "1"]) == 0
    Path("map.json").write_text('{"layer1": 1}')
    assert main(["compare", "pack", "wrong.safetensors", "--map", "map.json"]) == 1
    assert "must map to the name of a tensor" in capsys.readouterr().err
    assert main(["golden", "net.json", "-o", "pack"]) == 1
    assert "needs weights" in capsys.readouterr().err
    save_file(weights, "weights.safetensors")
    assert main(["golden", "net.json", "--weights", "weights.safetensors", "--every", "2", "-o", "pack", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reference"] == "the graph"
    assert main(["golden", "net.json", "--weights", "random", "-o", "pack", "--every", "0"]) == 1


def test_what_is_not_dense(tmp_path: Path) -> None:
    """A value that is not a dense tensor is omitted, by name."""
    model = module(lambda self, x: x.to_sparse().to_dense() * 2)
    ir = captured(model, X)
    write_golden(ir, {}, (X,), tmp_path / "pack")
    (note,) = read_pack(tmp_path / "pack").notes
    assert note.startswith("not dense, omitted: ")
    assert "mul" in [value.name for value in read_pack(tmp_path / "pack").values]
