"""verify_blocks: a model on meta, weights in files, block by block."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from torch_ir import IR, WeightLoadError, extract_ir, meta_init, open_weights, verify_blocks
from torch_ir.cli.dispatch import main

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
NET = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(4, hidden), nn.Linear(hidden, 4)

    def forward(self, x, scale=None):
        return x + self.down(self.up(x).relu()) * (1 if scale is None else scale)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Layer(hidden) for hidden in (8, 8, 6, 8))
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        x = self.first(x)
        scale = x.mean()
        for layer in self.layers:
            x = layer(x, scale=scale)
        return {"scores": self.last(x)}
"""
space: dict[str, Any] = {"__name__": "net"}
exec(NET, space)
Net: Callable[[], nn.Module] = space["Net"]


def on_meta(build: Callable[[], nn.Module], *inputs: Tensor) -> tuple[IR, nn.Module]:
    """Return the graph of a model from its file, and the model, both without weights."""
    with meta_init():
        model = build().eval()
    return IR.from_json(extract_ir(model, tuple(tensor.to("meta") for tensor in inputs)).to_json()), model


def weights_of(build: Callable[[], nn.Module], path: Path) -> Path:
    torch.manual_seed(0)
    save_file({key: value.clone() for key, value in build().state_dict().items()}, path)
    return path


@pytest.fixture(scope="module")
def sides() -> tuple[IR, nn.Module]:
    return on_meta(Net, X)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weights_of(Net, tmp_path_factory.mktemp("net") / "model.safetensors")


def form(ir: IR, name: str) -> IR:
    return ir if name == "flat" else ir.at_level("aten", ["Layer"])


both_forms = pytest.mark.parametrize("name", ["flat", "functions"])


# -- right graphs -----------------------------------------------------------------------------------------------------


@both_forms
def test_every_block_is_compared(sides: tuple[IR, nn.Module], checkpoint: Path, name: str) -> None:
    """Each layer and each segment between layers has its line; the model stays on meta."""
    ir, model = sides
    is_valid, report = verify_blocks(form(ir, name), checkpoint, model, (X,))
    assert is_valid, report
    assert [check.name for check in report.blocks] == [f"layers.{index}" for index in range(4)]
    assert all((check.compared, check.outputs, check.max_diff) == (1, 1, 0.0) for check in report.blocks)
    assert [check.is_block for check in report.checks] == [False, True, True, True, True, False]
    assert [item["name"] for item in report.output_details] == ["output['scores']"]
    assert "blocks compared: 4 of 4, max diff 0" in str(report)
    assert all(parameter.is_meta for parameter in model.parameters())


@both_forms
def test_one_of_each_kind(sides: tuple[IR, nn.Module], checkpoint: Path, name: str) -> None:
    """With `unique`, both runs end after the last block that is like none before; the rest is named as equal."""
    ir, model = sides
    is_valid, report = verify_blocks(form(ir, name), checkpoint, model, (X,), unique=True)
    assert is_valid, report
    status = {check.name: check.status for check in report.blocks}
    assert status == {
        "layers.0": "ok",
        "layers.1": "ok",
        "layers.2": "ok",
        "layers.3": "not run, equal to layers.1",
    }
    assert report.output_details == []
    assert "both runs ended after layers.2; 1 nodes outside blocks follow" in str(report)


def test_a_block_that_is_wired_otherwise_is_no_equal(checkpoint: Path) -> None:
    """The outside values and the earlier blocks that a block reads are part of its identity."""

    class Wired(space["Net"]):  # type: ignore[misc]  # made by exec
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            one, other = x.mean(), x.amax()
            for index in (0, 1, 3, 0, 1, 3):
                x = self.layers[index](x, scale=one if index else other)
            return self.last(x)

    ir, model = on_meta(Wired, X)
    report = verify_blocks(ir, checkpoint, model, (X,), unique=True)[1]
    assert report.is_valid, report
    assert [check.status for check in report.blocks] == ["ok"] * 4 + ["not run, equal to layers.1"] * 2


def test_what_is_not_run_is_not_read(sides: tuple[IR, nn.Module], tmp_path: Path) -> None:
    """With `unique`, the file of the last layer may be gone; without it, that is in the report."""
    ir, model = sides
    torch.manual_seed(0)
    state = Net().state_dict()
    placed = {key: "late.safetensors" if "layers.3" in key else "early.safetensors" for key in state}
    for shard in set(placed.values()):
        save_file({key: value for key, value in state.items() if placed[key] == shard}, tmp_path / shard)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    opened = open_weights(tmp_path)
    (tmp_path / "late.safetensors").unlink()
    assert verify_blocks(ir, opened, model, (X,), unique=True)[0]
    is_valid, report = verify_blocks(ir, opened, model, (X,))
    assert not is_valid
    assert "cannot read" in (report.error_message or "")


def test_blocks_by_class(sides: tuple[IR, nn.Module], checkpoint: Path) -> None:
    """`blocks` names the classes; an unknown name is an error."""
    ir, model = sides
    names = [check.name for check in verify_blocks(ir, checkpoint, model, (X,), blocks=[nn.Linear])[1].blocks]
    assert names[:4] == ["first", "layers.0.up", "layers.0.down", "layers.1.up"]
    message = verify_blocks(ir, checkpoint, model, (X,), blocks=["Lyer"])[1].error_message
    assert message == "the model has no module of class Lyer; did you mean 'Layer'?"


def test_a_model_that_decides_by_values(tmp_path: Path) -> None:
    """If shapes do not determine which operators run, a run of the model does."""

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for index, expert in enumerate(self.experts):
                (rows,) = torch.where(x[:, 0] > index - 1)
                x = x.index_add(0, rows, expert(x[rows]))
            return x

    ir, model = on_meta(Routed, X)
    is_valid, report = verify_blocks(ir, weights_of(Routed, tmp_path / "w.safetensors"), model, (X,))
    assert is_valid, report
    assert [check.compared for check in report.blocks] == [1, 1]


def test_tied_weights_and_buffers(tmp_path: Path) -> None:
    """One key of a tied weight suffices; buffers are real and may change; other constants are the model's."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.norms = nn.ModuleList(nn.BatchNorm1d(4) for _ in range(2))
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.table.weight
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("steps", torch.arange(4.0), persistent=False)

        def forward(self, ids: Tensor) -> Tensor:
            self.count += 1
            x = self.table(ids) + self.steps * self.count
            for norm in self.norms:
                x = norm(x)
            return self.head(x)

    ids = torch.arange(3)
    ir, model = on_meta(Tied, ids)
    torch.manual_seed(0)
    state = {key: value.clone() for key, value in Tied().state_dict().items() if key != "head.weight"}
    save_file(state, tmp_path / "w.safetensors")
    is_valid, report = verify_blocks(ir, tmp_path / "w.safetensors", model, (ids,))
    assert is_valid, report
    assert len(report.blocks) == 2


# -- wrong graphs -----------------------------------------------------------------------------------------------------


def test_the_wrong_block_is_named_alone(sides: tuple[IR, nn.Module], checkpoint: Path) -> None:
    """Later blocks start from the model's values, so they are correct."""
    ir, model = sides
    wrong = ir.clone()
    node = next(n for n in wrong.nodes if n.origin.module == "layers.1" and n.op_type == "aten.add.Tensor")
    node.op_type = "aten.sub.Tensor"
    for unique in (False, True):
        is_valid, report = verify_blocks(wrong, checkpoint, model, (X,), unique=unique)
        assert not is_valid
        assert [check.name for check in report.checks if check.reason] == ["layers.1"]
        assert (report.error_message or "").startswith(f"layers.1: {node.name!r}: 8 of 8 elements are too far off")


@both_forms
def test_weights_of_another_block(sides: tuple[IR, nn.Module], checkpoint: Path, name: str) -> None:
    """A call with another layer's weight differs from its neighbours, and is detected."""
    ir, model = sides
    wrong = form(ir, name).clone()
    one, other = (param for param in wrong.params if param.key in ("layers.0.up.weight", "layers.3.up.weight"))
    one.param, other.param = other.param, one.param
    for unique in (False, True):
        is_valid, report = verify_blocks(wrong, checkpoint, model, (X,), unique=unique)
        assert not is_valid
        assert [check.name for check in report.checks if check.reason] == ["layers.0", "layers.3"]


def test_a_mistake_outside_of_blocks(sides: tuple[IR, nn.Module], checkpoint: Path) -> None:
    """Nodes between blocks are compared at the block inputs and at the outputs."""
    ir, model = sides
    for position in (0, -1):
        wrong = ir.clone()
        wrong.nodes[position].set_inputs(wrong.nodes[position].inputs[:2], wrong.nodes[position].args[:2])
        wrong.nodes[position].attrs["bias"] = None
        is_valid, report = verify_blocks(wrong, checkpoint, model, (X,))
        assert not is_valid
        assert [check.is_block for check in report.checks if check.reason] == [False]
        assert report.output_details[0]["is_close"] == (position == 0)


def test_what_leaves_a_block_is_as_declared(sides: tuple[IR, nn.Module], checkpoint: Path) -> None:
    """A wrong declaration is a difference, though the numbers are right."""
    ir, model = sides
    wrong = ir.clone()
    last = [node for node in wrong.nodes if node.origin.module == "layers.1"][-1]
    last.outputs[0].dtype = "float64"
    is_valid, report = verify_blocks(wrong, checkpoint, model, (X,))
    assert not is_valid
    assert "is declared float64" in (report.error_message or "")


# -- what is refused --------------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit(sides: tuple[IR, nn.Module], checkpoint: Path, tmp_path: Path) -> None:
    """Misfits are in the report before anything runs; a file that cannot be read raises."""
    ir, model = sides
    opened = dict(open_weights(checkpoint))
    del opened["last.bias"]
    assert "'last.bias' is missing" in str(verify_blocks(ir, opened, model, (X,))[1])
    with pytest.raises(WeightLoadError, match="no such file"):
        verify_blocks(ir, tmp_path / "nothing.safetensors", model, (X,))


def test_wrong_inputs(sides: tuple[IR, nn.Module], checkpoint: Path) -> None:
    ir, model = sides
    assert "input 'x' has shape [3, 4]" in str(verify_blocks(ir, checkpoint, model, (torch.ones(3, 4),))[1])


def test_a_buffer_that_has_no_values(tmp_path: Path) -> None:
    """A model built entirely on meta lost its non-persistent buffers; the report says how to build it."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("shift", torch.arange(4.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.shift

    ir, _ = on_meta(Shifted, X)
    with torch.device("meta"):
        bare = Shifted().eval()
    report = verify_blocks(ir, weights_of(Shifted, tmp_path / "w.safetensors"), bare, (X,))[1]
    assert "torch_ir.meta_init()" in (report.error_message or "")


def test_a_model_that_writes_to_its_parameters(tmp_path: Path) -> None:
    """Writes to a streamed parameter would be lost, so they are an error."""

    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.scale.mul_(2)
            return x * self.scale

    ir, model = on_meta(Writer, X)
    report = verify_blocks(ir, weights_of(Writer, tmp_path / "w.safetensors"), model, (X,))[1]
    assert "writes to its parameter 'scale'" in (report.error_message or "")


# -- command line -----------------------------------------------------------------------------------------------------


def test_verify_blockwise(
    sides: tuple[IR, nn.Module],
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`torch-ir verify --blockwise` prints the report; options that do not go together are refused."""
    monkeypatch.chdir(tmp_path)
    Path("blocks_net.py").write_text(NET)
    sides[0].save("net.json")
    command = ["verify", "net.json", "blocks_net.py:Net"]
    given = [*command, "--blockwise", "--weights", str(checkpoint)]
    assert main(given) == 0
    assert "blocks compared: 4 of 4" in capsys.readouterr().out
    assert main([*given, "--unique", "--block", "Layer", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checks"][-1]["like"] == "layers.1"
    assert main([*given, "--block", "Lyaer"]) == 4  # nothing was compared
    assert "the model has no module of class Lyaer" in capsys.readouterr().out
    wrong = sides[0].clone()
    next(node for node in wrong.nodes if node.op_type == "aten.relu.default").op_type = "aten.neg.default"
    wrong.save("net.json")
    assert main(given) == 3
    assert "layers.0: 1 of 1 outputs, max diff" in capsys.readouterr().out
    for options, message in {
        ("--blockwise",): "add --weights",
        (*given[3:], "--localise"): "cannot be combined with --localise",
        ("--unique",): "need --blockwise",
    }.items():
        assert main([*command, *options]) == 1
        assert message in capsys.readouterr().err
