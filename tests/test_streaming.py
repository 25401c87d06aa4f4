"""Streamed weights: each is read when a run needs it, and freed after its last use."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.proof import captured, module
from torch_ir import (
    IR,
    ExecutionError,
    IRExecutor,
    WeightLoadError,
    WeightWarning,
    execute_ir,
    extract_ir,
    open_weights,
)
from torch_ir.cli.dispatch import main
from torch_ir.run import compiled_plan as plan

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x).relu()


def stack() -> nn.Module:
    torch.manual_seed(0)
    return module(lambda self, x: self.layers(x), layers=nn.Sequential(*(Layer() for _ in range(3))))


MODEL = stack()
GOOD = MODEL.state_dict()


@pytest.fixture(scope="module")
def ir() -> IR:
    return captured(MODEL, X)


def sharded(state: dict[str, Tensor], folder: Path, shard_of: Callable[[str], str]) -> Path:
    """A checkpoint folder with an index."""
    folder.mkdir()
    placed = {key: f"{shard_of(key)}.safetensors" for key in state}
    for shard in set(placed.values()):
        save_file({key: value for key, value in state.items() if placed[key] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    return folder


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    """A file with any header at all."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["flat", "functions"])
def test_streamed_weights_give_the_same_results(ir: IR, form: str, tmp_path: Path) -> None:
    """From a file, an index and a folder, run after run, to the bit, for a flat graph and for calls of one body."""
    graph = ir if form == "flat" else ir.at_level("aten", [Layer])
    assert len(graph.functions) == (form == "functions")
    save_file(GOOD, tmp_path / "one.safetensors")
    folder = sharded(GOOD, tmp_path / "many", lambda key: key.split(".")[1])
    executor = IRExecutor(graph)
    for path in (tmp_path / "one.safetensors", folder, folder / "model.safetensors.index.json"):
        executor.load_weights(path, stream=True)
        for x in (X, X * 2, X):
            assert torch.equal(executor(x), MODEL(x))
    assert all(torch.equal(executor.state[key], GOOD[key]) for key in GOOD)
    executor.load_weights(folder)
    assert torch.equal(executor(X), MODEL(X))


def test_stored_and_real_weights_mix(ir: IR, tmp_path: Path) -> None:
    """The result of `open_weights` is bound like a state dict, and real tensors can replace its entries."""
    save_file(GOOD, tmp_path / "w.safetensors")
    other = torch.zeros(4)
    (result,) = execute_ir(ir, (X,), {**open_weights(tmp_path / "w.safetensors"), "layers.0.inner.bias": other})
    assert torch.equal(result, IRExecutor(ir, {**GOOD, "layers.0.inner.bias": other})(X))


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32),
    *(torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def test_every_dtype_and_shape_is_read_as_it_is(tmp_path: Path) -> None:
    """Bit for bit; an empty tensor and a number are tensors, too."""
    state = {str(dtype): torch.arange(-3, 3).reshape(2, 3).abs().to(dtype) for dtype in DTYPES}
    state |= {"none": torch.empty(0, 3), "number": torch.tensor(2.5)}
    save_file(state, tmp_path / "w.safetensors")
    opened = open_weights(tmp_path / "w.safetensors")
    assert opened.keys() == state.keys()
    for key, stored in opened.items():
        found = stored.load()
        assert (found.dtype, found.shape) == (state[key].dtype, state[key].shape)
        assert torch.equal(found.flatten().view(torch.uint8), state[key].flatten().view(torch.uint8))


def test_what_depends_on_weights_alone_is_computed_in_the_run(tmp_path: Path) -> None:
    """A transposed weight is not precomputed here, and results are the same."""
    model = module(lambda self, x: x @ self.w.t().contiguous(), w=nn.Parameter(torch.randn(2, 4)))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    executor = IRExecutor(captured(model, X), open_weights(tmp_path / "w.safetensors"))
    assert torch.equal(executor(X), model(X))
    assert torch.equal(executor(X * 2), model(X * 2))


def test_state_is_kept_and_the_file_is_not(tmp_path: Path) -> None:
    """A buffer that the model changes is read once and lives on in the executor; the file stays as it is."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self.count += 1
        return self.layer(x) + self.count

    model = module(forward, layer=nn.Linear(4, 4), buffers={"count": torch.zeros(())})
    ir, state = captured(model, X), {key: value.clone() for key, value in model.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    before = (tmp_path / "w.safetensors").read_bytes()
    executor = IRExecutor(ir, open_weights(tmp_path / "w.safetensors"))
    for _ in range(3):
        assert torch.equal(executor(X), model(X))
    assert executor.state["count"] == 3
    assert (tmp_path / "w.safetensors").read_bytes() == before


def test_a_weight_that_is_returned(tmp_path: Path) -> None:
    """It is a tensor of the caller's own."""
    model = module(lambda self, x: (x, self.w, self.w * 2), w=nn.Parameter(torch.ones(2)))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    executor = IRExecutor(captured(model, X), open_weights(tmp_path / "w.safetensors"))
    executor(X)[1].zero_()
    assert torch.equal(executor(X)[1], torch.ones(2))


def test_branches_get_weights_from_files(tmp_path: Path) -> None:
    """Operators that call bodies get tensors, not lazy weights."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x @ self.w, lambda x: x - self.w, (x,))

    model = module(forward, w=nn.Parameter(torch.randn(4, 4)))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    x = torch.ones(4, 4)
    executor = IRExecutor(captured(model, x), open_weights(tmp_path / "w.safetensors"))
    for sign in (1, -1):
        assert torch.equal(executor(x * sign), model(x * sign))


def test_one_plan_for_all_calls_of_a_body(ir: IR, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a body is called, it is planned once."""
    made = []

    class Counted(plan.Program):
        def __init__(self, *args: Any, **options: Any) -> None:
            made.append(args[0])
            super().__init__(*args, **options)

    monkeypatch.setattr(plan, "Program", Counted)
    graph = ir.at_level("aten", [Layer])
    executor = IRExecutor(graph, GOOD)
    assert torch.equal(executor(X), MODEL(X))
    assert made == list(graph.functions.values())


# -- tied weights -----------------------------------------------------------------------------------------------------


def tied() -> nn.Module:
    torch.manual_seed(0)
    model = module(lambda self, ids: self.head(self.table(ids)), table=nn.Embedding(5, 4), head=nn.Linear(4, 5, False))
    model.head.weight = model.table.weight
    return model


def test_tied_weights(tmp_path: Path) -> None:
    """One key of a tie is enough; under several keys the elements must be equal, and they are read for that."""
    model, ids = tied(), torch.arange(3)
    with torch.device("meta"):
        ir = extract_ir(tied(), (torch.empty(3, dtype=torch.int64),))
    weight = model.table.weight.detach()
    for name, state in {
        "one": {"table.weight": weight},
        "two": {"table.weight": weight, "head.weight": weight.clone()},
    }.items():
        save_file(state, tmp_path / f"{name}.safetensors")
        assert torch.equal(IRExecutor(ir, open_weights(tmp_path / f"{name}.safetensors"))(ids), model(ids))
    save_file({"table.weight": weight, "head.weight": weight + 1}, tmp_path / "apart.safetensors")
    with pytest.raises(WeightLoadError, match=r"are one weight in the graph, but their values differ"):
        IRExecutor(ir, open_weights(tmp_path / "apart.safetensors"))


# -- what is refused --------------------------------------------------------------------------------------------------


def test_misfits_are_told_from_headers(ir: IR, tmp_path: Path) -> None:
    """All at once and before a run, even if the file claims more than any memory."""
    size = 1 << 36
    entry = {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}
    bias = {"dtype": "F64", "shape": [4], "data_offsets": [4 * size, 4 * size + 32]}
    path = write(tmp_path / "w.safetensors", {"layers.0.inner.weight": entry, "layers.0.inner.bias": bias})
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 4 * size + 32)
    with pytest.raises(WeightLoadError) as error:
        IRExecutor(ir, open_weights(path))
    assert "'layers.0.inner.weight' has shape [68719476736], the graph needs [4, 4]" in str(error.value)
    assert "'layers.0.inner.bias' is float64, the graph needs float32" in str(error.value)
    assert "'layers.2.inner.bias' is missing" in str(error.value)


def test_surplus_keys_are_a_warning(ir: IR, tmp_path: Path) -> None:
    save_file({**GOOD, "layers.9.inner.bias": torch.ones(4)}, tmp_path / "w.safetensors")
    with pytest.warns(WeightWarning, match="unexpected weight"):
        IRExecutor(ir, open_weights(tmp_path / "w.safetensors"))


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"not json",
        b"[" * 100_000,
        b"\xff\xfe",
        [],
        {"a": 3},
        {"a": {}},
        {"a": {**ENTRY, "dtype": "F7"}},
        {"a": {**ENTRY, "dtype": []}},
        {"a": {**ENTRY, "shape": [-2]}},
        {"a": {**ENTRY, "shape": [2.0]}},
        {"a": {**ENTRY, "shape": [True, 2]}},
        {"a": {**ENTRY, "shape": None}},
        {"a": {**ENTRY, "shape": [3]}},
        {"a": {**ENTRY, "data_offsets": [0]}},
        {"a": {**ENTRY, "data_offsets": [8, 0]}},
        {"a": {**ENTRY, "data_offsets": [-8, 0]}},
        {"a": {**ENTRY, "data_offsets": [8, 16]}},
        {"a": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 8]}},
    ],
)
def test_hostile_headers(header: Any, tmp_path: Path) -> None:
    """A header that does not describe bytes that are there is refused in a sentence."""
    with pytest.raises(WeightLoadError, match="is not a safetensors file"):
        open_weights(write(tmp_path / "w.safetensors", header, b"12345678"))


def test_a_header_longer_than_its_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for raw in (b"", b"123", (1 << 63).to_bytes(8, "little") + b"{}"):
        path.write_bytes(raw)
        with pytest.raises(WeightLoadError, match="is not a safetensors file"):
            open_weights(path)


def test_files_that_cannot_be_streamed(ir: IR, tmp_path: Path) -> None:
    """Pickled weights are opened as a whole but not streamed; missing weights are reported."""
    torch.save(GOOD, tmp_path / "w.pt")
    assert open_weights(tmp_path / "w.pt").keys() == GOOD.keys()
    with pytest.raises(WeightLoadError, match=r"w.pt: pickled tensors cannot be read one at a time"):
        IRExecutor(ir).load_weights(tmp_path / "w.pt", stream=True)
    with pytest.raises(WeightLoadError, match="no such file"):
        open_weights(tmp_path / "nothing.safetensors")
    with pytest.raises(WeightLoadError, match="contains none of"):
        open_weights(tmp_path)


def test_a_file_that_changes_after_it_was_opened(ir: IR, tmp_path: Path) -> None:
    """Other bytes under the same keys would be a wrong result; a file that went away is an error, too."""
    path = tmp_path / "w.safetensors"
    save_file(GOOD, path)
    executor = IRExecutor(ir, open_weights(path))
    executor(X)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ExecutionError, match="was changed after it was opened"):
        executor(X)
    path.unlink()
    with pytest.raises(ExecutionError, match=r"cannot read .*No such file"):
        executor(X)


def test_graphs_that_write_in_place_are_not_streamed(tmp_path: Path) -> None:
    """Each consumer of a streamed weight has its own copy, so writes would be lost."""
    ir = captured(module(lambda self, x: x + self.w, w=nn.Parameter(torch.ones(4))), X)
    ir.nodes[0].op_type = "aten.add_.Tensor"
    save_file({"w": torch.ones(4)}, tmp_path / "w.safetensors")
    with pytest.raises(ExecutionError, match="writes in place"):
        IRExecutor(ir, open_weights(tmp_path / "w.safetensors"))


# -- command line -----------------------------------------------------------------------------------------------------


def test_run_with_stream(ir: IR, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`torch-ir run --stream` returns the same as without; random weights cannot be streamed."""
    ir.save(tmp_path / "model.json")
    folder = sharded(GOOD, tmp_path / "checkpoint", lambda key: key.split(".")[1])
    command = ["run", str(tmp_path / "model.json"), "--weights"]
    assert main([*command, str(folder)]) == 0
    whole = capsys.readouterr().out
    assert main([*command, str(folder), "--stream"]) == 0
    assert capsys.readouterr().out == whole
    assert main([*command, "random", "--stream"]) == 1
    assert "--stream reads weights from files" in capsys.readouterr().err


# -- less memory than weights -----------------------------------------------------------------------------------------

LIMITED = """
import os, resource, sys, traceback
from pathlib import Path

import torch

import torch_ir
from torch_ir.verify import verify_blocks

torch.set_num_threads(1)
folder, room = Path(sys.argv[1]), int(sys.argv[2])
sys.path.insert(0, str(folder))
from net import Net

with torch_ir.meta_init():
    small, model = Net(2, 4).eval(), Net(24, 1024).eval()

def go(ir, model, weights, x, stream):
    executor = torch_ir.IRExecutor(ir)
    executor.load_weights(weights, stream=stream)
    return torch.equal(executor(x), executor(x)), str(verify_blocks(ir, weights, model, (x,))[1])

def limited(form, way):
    graph = torch_ir.IR.load(folder / f"{form}.json")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room,) * 2)
    print(*go(graph, model, folder / "large", torch.ones(4, 1024), way == "stream"), flush=True)

for way in ("stream", "whole"):  # imports what is needed
    go(torch_ir.IR.load(folder / "small.json"), small, folder / "small", torch.ones(1, 4), way == "stream")
for case in sys.argv[3:]:
    if child := os.fork():
        print(case, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    told = os.open(folder / f"{case}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(told, 1), os.dup2(told, 2)
    try:
        limited(*case.split("-"))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
"""
NET = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + self.inner(x).relu()


class Net(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of 96 MiB in three shards, its graph in both forms, and a small one of the kind."""
    folder = tmp_path_factory.mktemp("net")
    (folder / "net.py").write_text(NET)
    space: dict[str, Any] = {"__name__": "net"}
    exec(NET, space)
    with torch.device("meta"):
        small, large = space["Net"](2, 4).eval(), space["Net"](24, 1024).eval()
    captured(small, torch.ones(1, 4)).save(folder / "small.json")
    graph = captured(large, torch.ones(4, 1024))
    graph.save(folder / "flat.json")
    graph.at_level("aten", ["Layer"]).save(folder / "functions.json")
    for name, model in {"small": small, "large": large}.items():
        state = {
            key: torch.randn(value.shape, generator=torch.Generator().manual_seed(index)) / value.shape[1]
            for index, (key, value) in enumerate(model.state_dict().items())
        }
        sharded(state, folder / name, lambda key: str(int(key.split(".")[1]) // 8))
    return folder


ROOM = 40 << 20  # bytes of address space in addition to the current size; the weights take 96 MiB


@pytest.fixture(scope="module")
def limited(net: Path) -> dict[str, tuple[int, str]]:
    """The status and the output of each case, in a process of its own with the limit, forked after the imports."""
    command = [sys.executable, "-c", LIMITED, str(net), str(ROOM), "flat-stream", "functions-stream", "flat-whole"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    statuses = dict(line.split() for line in done.stdout.splitlines())
    return {case: (int(status), (net / f"{case}.txt").read_text()) for case, status in statuses.items()}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit is set from what Linux tells")
@pytest.mark.parametrize("form", ["flat", "functions"])
def test_weights_larger_than_the_memory_there_is(limited: dict[str, tuple[int, str]], form: str) -> None:
    """Under a hard limit on its address space, a process runs and verifies a model whose weights exceed it."""
    status, told = limited[f"{form}-stream"]
    assert status == 0, told
    assert told.startswith("True Block-wise verification PASSED\n"), told
    assert "blocks compared: 24 of 24, max diff 0" in told


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit is set from what Linux tells")
def test_the_limit_is_real(limited: dict[str, tuple[int, str]]) -> None:
    """Under the same limit the weights cannot be loaded whole."""
    status, told = limited["flat-whole"]
    assert status != 0
    assert "memory" in told.lower()
