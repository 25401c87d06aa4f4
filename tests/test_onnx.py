"""ONNX: a graph with or without weights as a file that other tools can open."""

import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy
import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import Dim

from tests.proof import assert_near, module
from torch_ir import IR, compile, extract_ir, optimize
from torch_ir.errors import (
    CaptureWarning,
    ConversionError,
    MissingFileError,
    SerializationError,
    TorchIRError,
    WeightLoadError,
)
from torch_ir.ir.regroup.functions import outline
from torch_ir.targets import bind_onnx, to_onnx
from torch_ir.targets.onnx.onnx_program import EQUIVALENTS

pytestmark = pytest.mark.usefixtures("_seeded")


def captured(model: nn.Module, *inputs: Any, dynamic: Any = None, **kwargs: Any) -> IR:
    return extract_ir(model, inputs, kwargs=kwargs, strict=False, dynamic_shapes=dynamic)


def run_file(path: Path, *inputs: Tensor) -> list[Tensor]:
    """Return ONNX Runtime's results for a file that onnx's checker accepts."""
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    found = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
    return [torch.from_numpy(numpy.asarray(value)) for value in found]


# -- files ------------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Two keys for one weight, a non-persistent buffer, a folded weight, and colliding names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(600, 512)
        self.norm = nn.BatchNorm1d(512)
        self.head = nn.Linear(512, 600, bias=False)
        self.head.weight = self.embed.weight
        self.ids = nn.Parameter(torch.randn(512))
        self.register_buffer("shift", torch.randn(512), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.shift * self.ids
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))


@pytest.fixture(scope="module")
def tied() -> tuple[nn.Module, IR, Tensor]:
    torch.manual_seed(0)
    model, ids = Tied().eval(), torch.randint(600, (2, 7))
    model.norm.running_var.uniform_(0.5, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        return model, captured(model, ids, dynamic={"ids": {0: Dim("batch")}}), ids


@pytest.fixture(scope="module")
def written(tied: tuple[nn.Module, IR, Tensor], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("free") / "model.onnx"
    to_onnx(optimize(tied[1], "full")[0], path)
    assert list(path.parent.iterdir()) == [path]
    return path.read_bytes()


@pytest.fixture
def free(written: bytes, tmp_path: Path) -> Path:
    """The optimised graph in a file without weights."""
    path = tmp_path / "model.onnx"
    path.write_bytes(written)
    return path


def test_a_file_without_weights_is_bound_later(tied: tuple[nn.Module, IR, Tensor], free: Path) -> None:
    """By a mapping, which is written beside; by a checkpoint, which is pointed into; by another one again."""
    model, _, ids = tied
    assert free.stat().st_size < 40_000
    with pytest.raises(Exception, match="weights-that-are-not-bound-yet"):
        onnxruntime.InferenceSession(free)
    bind_onnx(free, model.state_dict())
    side = [path for path in free.parent.iterdir() if path != free]
    assert [path.suffix for path in side] == [".safetensors"]
    assert_near(run_file(free, ids), model(ids))

    other = copy.deepcopy(model)
    nn.init.uniform_(other.head.weight)
    held = {key: value for key, value in other.state_dict().items() if key != "embed.weight"}  # the other key will do
    (free.parent / "shards").mkdir()
    checkpoint = free.parent / "shards" / "model.safetensors"
    save_file(held, checkpoint)
    before = checkpoint.read_bytes()
    bind_onnx(free, checkpoint)
    assert not side[0].exists()
    assert checkpoint.read_bytes() == before
    assert_near(run_file(free, ids), other(ids))
    assert_near(run_file(free, ids[:1]), other(ids[:1]))


def test_a_sharded_checkpoint_is_pointed_into(tied: tuple[nn.Module, IR, Tensor], free: Path) -> None:
    """A folder with an index, as hubs have it, is as good as a file."""
    model, _, ids = tied
    state = {key: value for key, value in model.state_dict().items() if key != "head.weight"}
    shards = {"a.safetensors": ["embed.weight"], "b.safetensors": [key for key in state if key != "embed.weight"]}
    for name, keys in shards.items():
        save_file({key: state[key] for key in keys}, free.parent / name)
    placed = {key: name for name, keys in shards.items() for key in keys}
    (free.parent / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    bind_onnx(free, free.parent)
    assert_near(run_file(free, ids), model(ids))


def test_weights_that_are_given_are_folded_and_written(tied: tuple[nn.Module, IR, Tensor], tmp_path: Path) -> None:
    """In a separate file next to it; the next pair replaces this one."""
    model, ir, ids = tied
    path = tmp_path / "new" / "model.onnx"
    to_onnx(optimize(ir, "full")[0], path, model.state_dict())
    assert_near(run_file(path, ids), model(ids))
    first = sorted(entry.name for entry in path.parent.iterdir())
    assert len(first) == 2
    assert len({entry.stat().st_mode for entry in path.parent.iterdir()}) == 1
    model = copy.deepcopy(model)
    nn.init.uniform_(model.head.weight)
    to_onnx(optimize(ir, "full")[0], path, model.state_dict())
    assert_near(run_file(path, ids), model(ids))
    assert len(list(path.parent.iterdir())) == 2
    assert sorted(entry.name for entry in path.parent.iterdir()) != first
    with pytest.raises(WeightLoadError, match="has no unbound weights"):
        bind_onnx(path, model.state_dict())


def test_no_weight_is_ever_made(tmp_path: Path) -> None:
    """Four terabytes, on meta."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1_000_000, 1_000_000), nn.ReLU()).eval()
        x = torch.empty(1, 1_000_000)
    to_onnx(captured(model, x), tmp_path / "huge.onnx")
    graph = onnx.load(tmp_path / "huge.onnx", load_external_data=False).graph
    assert {tensor.name: list(tensor.dims) for tensor in graph.initializer} == {
        "0.weight": [1_000_000, 1_000_000],
        "0.bias": [1_000_000],
    }
    assert (tmp_path / "huge.onnx").stat().st_size < 10_000


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.calls += 1
        return self.body(x) + self.calls, y, y


def test_a_file_speaks_as_the_graph_does(tmp_path: Path) -> None:
    """Names of inputs, outputs, weights and sizes, the origin of nodes, and state that starts as the model's does."""
    model, path = Stateful().eval(), tmp_path / "model.onnx"
    x, y = torch.randn(3, 4), torch.randn(2)
    ir = captured(model, x, y, dynamic={"x": {0: Dim("batch")}, "y": None})
    to_onnx(ir, path, model.state_dict())
    file = onnx_ir.load(path)
    assert [given.name for given in file.graph.inputs] == ["x", "y", "calls"]
    assert [str(file.graph.inputs[0].shape), str(file.graph.outputs[0].shape)] == ["[batch,4]", "[batch,4]"]
    assert [given.name for given in file.graph.outputs] == [ir.graph_outputs[0].name, "y_1", "y_2", "calls.new"]
    assert set(file.graph.initializers) >= {"body.0.weight", "body.0.bias", "calls"}
    assert (file.graph.name, file.producer_name, file.opset_imports) == ("Stateful", "torch_ir", {"": 20})
    gemm = next(node for node in file.graph if node.op_type == "Gemm")
    assert gemm.metadata_props == {"torch_ir.node": "linear", "torch_ir.module": "body.0"}
    assert str(tmp_path.parent) not in path.read_bytes().decode(errors="ignore")
    with torch.no_grad():
        first, second = (copy.deepcopy(model(x, y)[0]) for _ in range(2))
    found = run_file(path, x, y)
    assert_near(found[0], first)
    session = onnxruntime.InferenceSession(path)
    assert_near(
        torch.from_numpy(session.run(None, {"x": x.numpy(), "y": y.numpy(), "calls": found[3].numpy()})[0]), second
    )


def test_the_opset_can_be_chosen(tmp_path: Path) -> None:
    """A later one, if a runtime needs it."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()).eval(), torch.randn(2, 4)
    to_onnx(captured(model, x), tmp_path / "model.onnx", opset=23)
    bind_onnx(tmp_path / "model.onnx", model.state_dict())
    assert onnx_ir.load(tmp_path / "model.onnx").opset_imports == {"": 23}
    assert_near(run_file(tmp_path / "model.onnx", x), model(x))


# -- refusals ---------------------------------------------------------------------------------------------------------


@torch.library.custom_op("torch_ir_test::twist", mutates_args=())
def twist(x: Tensor) -> Tensor:
    return x.flip(0)


@twist.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_operators_without_onnx_are_listed_together(tmp_path: Path) -> None:
    """All of them, with shapes, in place of a report; and no file is there."""
    model = module(lambda self, x: twist(torch.relu(x)) + torch.linalg.eigvalsh(x) + twist(x.T))
    with pytest.raises(ConversionError) as refused:
        to_onnx(captured(model, torch.randn(3, 3)), tmp_path / "model.onnx")
    first, *others = str(refused.value).splitlines()
    assert first.endswith("cannot be converted to ONNX: unsupported operators:")
    assert others == ["  torch_ir_test.twist.default 3x3 -> 3x3", "  aten.linalg_eigvalsh.default UPLO 'L' 3x3 -> 3"]
    assert os.listdir(tmp_path) == []


def refuse_missing(path: Path, state: dict[str, Tensor]) -> None:
    bind_onnx(path, {key: value for key, value in state.items() if "embed" not in key and "head" not in key})


def refuse_shape(path: Path, state: dict[str, Tensor]) -> None:
    bind_onnx(path, {**state, "ids": torch.randn(3)})


def refuse_elsewhere(path: Path, state: dict[str, Tensor]) -> None:
    (path.parent / "a").mkdir()
    os.rename(path, path.parent / "a" / path.name)
    save_file({key: value.clone() for key, value in state.items()}, path.parent / "there.safetensors")
    bind_onnx(path.parent / "a" / path.name, path.parent / "there.safetensors")


def refuse_suffix(path: Path, state: dict[str, Tensor]) -> None:
    bind_onnx(path.with_suffix(".pb"), state)


def refuse_absent(path: Path, state: dict[str, Tensor]) -> None:
    bind_onnx(path.with_name("other.onnx"), state)


def refuse_garbage(path: Path, state: dict[str, Tensor]) -> None:
    path.write_bytes(b"\xff" * 100)
    bind_onnx(path, state)


@pytest.mark.parametrize(
    ("act", "kind", "said"),
    [
        (refuse_missing, WeightLoadError, "'embed.weight' is missing"),
        (refuse_shape, WeightLoadError, "'ids' has shape [3], the graph needs [512]"),
        (refuse_elsewhere, WeightLoadError, "and ONNX can only refer to files inside it"),
        (refuse_suffix, ConversionError, "must end in .onnx"),
        (refuse_absent, MissingFileError, "no such file"),
        (refuse_garbage, SerializationError, "is not an ONNX file written by to_onnx"),
    ],
)
def test_bad_bindings_are_one_sentence(
    act: Any, kind: type[TorchIRError], said: str, tied: tuple[nn.Module, IR, Tensor], free: Path
) -> None:
    """What, where and the nearest fix; the file is unchanged."""
    before = free.read_bytes()
    with pytest.raises(kind) as refused:
        act(free, tied[0].state_dict())
    assert said in str(refused.value)
    left = [path for path in free.parent.rglob("*") if path.suffix == ".onnx"]
    assert [path.read_bytes() for path in left] in ([before], [b"\xff" * 100])
    assert not list(free.parent.glob("*weights-*"))


def test_sizes_that_nobody_can_give_are_one_sentence(tmp_path: Path) -> None:
    """A graph that is valid for no size cannot be exported with torch.export."""
    ir = captured(module(lambda self, x: x + 1), torch.randn(4), dynamic=({0: Dim("n")},))
    ir.constraints = ["n < 0"]
    with pytest.raises(ConversionError, match="found no sizes that Model admits"):
        compile(ir, {}, backend="onnxruntime")
    with pytest.raises(ConversionError, match="the model holds only where n < 0"):
        to_onnx(ir, tmp_path / "model.onnx")


def test_a_place_that_cannot_be_written(tied: tuple[nn.Module, IR, Tensor], tmp_path: Path) -> None:
    """A sentence, and nothing is left of the attempt, not even the weights beside."""
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(SerializationError, match="cannot write"):
        to_onnx(tied[1], tmp_path / "model.onnx", tied[0].state_dict())
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_bad_requests_are_one_sentence(tied: tuple[nn.Module, IR, Tensor], tmp_path: Path) -> None:
    """Before anything is exported."""
    with pytest.raises(ConversionError, match=r"must end in \.onnx"):
        to_onnx(tied[1], tmp_path / "model.pb")
    with pytest.raises(ConversionError, match="unsupported opset 7; expected 18 to 23"):
        to_onnx(tied[1], tmp_path / "model.onnx", opset=7)
    with pytest.raises(WeightLoadError, match=r"'embed.weight' is missing"):
        to_onnx(tied[1], tmp_path / "model.onnx", {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("taken", "is_refused"),
    [
        (lambda x: x[2:].as_strided((2,), (1,), 0), True),
        (lambda x: x.T.as_strided((2,), (1,)), True),
        (lambda x: x[:2].as_strided((4,), (6,)), True),
        (lambda x: x.as_strided((2,), (1,), 1), False),
        (lambda x: x.reshape(-1).as_strided((2,), (1,)), False),
    ],
)
def test_places_in_the_storage_of_a_view_are_refused(taken: Any, is_refused: bool, tmp_path: Path) -> None:
    """ONNX has no storages: torch.onnx would count from the first element of the view."""
    ir = captured(module(lambda _, x: taken(x) * 2), torch.randn(4, 6))
    if is_refused:
        with pytest.raises(ConversionError, match=r"places in the storage of a view:\n  aten\.as_strided\.default "):
            to_onnx(ir, tmp_path / "x.onnx")
    else:
        to_onnx(ir, tmp_path / "x.onnx")


def test_places_in_the_storage_of_a_view_are_refused_in_functions(tmp_path: Path) -> None:
    """Whether an operand is a view is known where the function is called."""
    ir = captured(module(lambda _, x: x[2:].as_strided((2,), (1,), 0) * 2), torch.randn(4, 6))
    outline(ir, [node for node in ir.nodes if node.op_type != "aten.slice.Tensor"], "block")
    with pytest.raises(ConversionError, match="places in the storage of a view"):
        to_onnx(ir, tmp_path / "x.onnx")


def test_equivalents_are_needed() -> None:
    """Each stands for an operator that torch's own exporter still cannot write; the rest is left to it."""
    x, small = torch.arange(4), torch.randn(2, 3, 4)
    calls: dict[Any, tuple[Any, ...]] = {
        torch.ops.aten.__lshift__.Tensor: (x, x),
        torch.ops.aten.__rshift__.Tensor: (x, x),
        torch.ops.aten.scaled_dot_product_attention.default: (small, small, small),
    }
    assert calls.keys() == EQUIVALENTS.keys()
    for target, args in calls.items():
        with pytest.raises(torch.onnx.errors.OnnxExporterError):
            torch.onnx.export(module(lambda self, *given, call=target: call(*given)), args, verbose=False)


# -- dynamic sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pool",
    [lambda x: nn.functional.adaptive_avg_pool2d(x, 2), lambda x: nn.functional.adaptive_max_pool2d(x, 2)],
    ids=["mean", "max"],
)
def test_a_size_that_the_exporter_would_fix_is_refused(pool: Any, tmp_path: Path) -> None:
    """The window of an adaptive pool depends on the height; the exporter would write that of its example."""
    height = {2: 2 * Dim("height", min=2, max=64)}
    ir = captured(module(lambda self, x: pool(x)), torch.randn(2, 3, 8, 6), dynamic={"x": height})
    with pytest.raises(ConversionError, match=r"(?s)fixes a dynamic size.*(AdaptiveAvgPool2d|adaptive_max_pool2d)"):
        to_onnx(ir, tmp_path / "pool.onnx", {})
    x = torch.randn(2, 3, 18, 6)
    to_onnx(ir.specialize(height=9), tmp_path / "pool.onnx", {})
    assert_near(run_file(tmp_path / "pool.onnx", x)[0], pool(x))


def test_a_dynamic_size_is_divided(tmp_path: Path) -> None:
    """Pieces of a dynamic size are slices, with the names of the graph."""
    forward = module(lambda self, x: (*x.chunk(2, 1), *x.split([2, x.shape[1] - 2], dim=-1)))
    ir = captured(forward, torch.randn(2, 8), dynamic={"x": {1: 2 * Dim("half", min=2, max=32)}})
    to_onnx(ir, tmp_path / "pieces.onnx", {})
    names = [made.name for made in onnx.load(tmp_path / "pieces.onnx").graph.output]
    assert names == [tensor.name for tensor in ir.graph_outputs]
    for width in (4, 8, 10):
        x = torch.randn(2, width)
        for made, wanted in zip(run_file(tmp_path / "pieces.onnx", x), forward(x), strict=True):
            assert torch.equal(made, wanted)
