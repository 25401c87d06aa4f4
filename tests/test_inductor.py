"""The back end `inductor`: the same results as the model at all sizes, and torch's settings are restored."""

import copy
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config

import catalogue
from torch_ir import IR, ExecutionError, IRExecutor, extract_ir, to_torch
from torch_ir.backends import Compiled, compile
from torch_ir.backends.placement import placed
from torch_ir.ir import Device, OpNode, TensorMeta
from torch_ir.run.benchmark import difference

has_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")


class Net(nn.Module):
    """A convolution, a linear layer, tensors created on the device, and a buffer that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return nn.functional.gelu(self.last(x)) + torch.arange(5, device=x.device), self.calls


class Rows(nn.Module):
    """Linear layers over any number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layers(x) * y.sum(0) + x.shape[0]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def ir(net: nn.Module) -> IR:
    return extract_ir(net, (torch.randn(2, 3, 8, 8),), strict=False)


@pytest.fixture(scope="module")
def compiled(net: nn.Module, ir: IR) -> Compiled:
    return compile(ir, net.state_dict())


@pytest.fixture(scope="module")
def rows() -> tuple[nn.Module, Compiled]:
    torch.manual_seed(0)
    model = Rows().eval()
    some = {0: torch.export.Dim("rows", max=64)}
    ir = extract_ir(model, (torch.randn(3, 6), torch.randn(3, 4)), dynamic_shapes=(some, some), strict=False)
    return model, compile(ir, model.state_dict())


def eager(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return the model's result, without changing the model."""
    with torch.no_grad():
        return copy.deepcopy(model)(*args, **kwargs)


def test_buffers_are_kept_from_call_to_call(net: nn.Module, compiled: Compiled) -> None:
    """A compiled graph returns what the model returns, with persistent buffers; the given weights are unchanged."""
    x = torch.randn(2, 3, 8, 8)
    (first, _), (second, calls) = compiled(x), compiled(x)
    assert not difference(eager(net, x)[0], first)
    assert torch.equal(first, second)
    assert (int(calls), int(net.calls)) == (2, 0)


def test_inputs_may_lie_as_they_like(net: nn.Module, compiled: Compiled) -> None:
    """An input with other strides, or inside another tensor, is used by its values."""
    x = torch.randn(3, 3, 8, 8)
    for laid in (x[1:], x[:2].to(memory_format=torch.channels_last), x[:2].transpose(2, 3)):
        assert not difference(eager(net, laid)[0], compiled(laid)[0])


def test_results_belong_to_the_caller(compiled: Compiled) -> None:
    """A result is not overwritten by the next call."""
    first, _ = compiled(torch.randn(2, 3, 8, 8))
    before = first.clone()
    compiled(torch.randn(2, 3, 8, 8))
    assert torch.equal(first, before)


def test_several_sizes_share_their_code(rows: tuple[nn.Module, Compiled]) -> None:
    """A graph with dynamic sizes is compiled once for many; torch specialises size 1, which may broadcast.

    The first one is compiled when `compile` compares the graph with the executor.
    """
    model, compiled = rows
    made = []
    for count in (5, 9, 2, 64, 1, 7, 1):
        x, y = torch.randn(count, 6), torch.randn(count, 4)
        before = counters["aot_autograd"]["total"]
        assert not difference(eager(model, x, y), compiled(x, y))
        made.append(counters["aot_autograd"]["total"] - before)
    assert made == [0, 0, 0, 0, 1, 0, 0]


def test_sizes_out_of_range_are_refused(rows: tuple[nn.Module, Compiled]) -> None:
    """The ranges of a graph also apply to its compiled form."""
    with pytest.raises(ExecutionError, match="rows = 65 is out of range"):
        rows[1](torch.randn(65, 6), torch.randn(65, 4))


def _plain_settings() -> dict[str, Any]:
    """Return torch's settings except objects, which are copied on each access."""
    plain = (bool, int, float, str, tuple, list, dict, type(None))
    return {name: value for name, value in config.get_config_copy().items() if isinstance(value, plain)}


def test_torch_is_left_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """Settings and log levels are those of before, and nothing is logged."""
    levels = {name: logging.getLogger(name).level for name in ("torch", "torch._inductor", "torch._dynamo")}
    settings = _plain_settings()
    model = nn.Linear(3, 3).eval()
    compile(extract_ir(model, (torch.randn(2, 3),), strict=False), model.state_dict())
    assert _plain_settings() == settings
    assert {name: logging.getLogger(name).level for name in levels} == levels
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_cannot_be_compiled_is_said_in_one_sentence() -> None:
    """An operator that torch cannot infer shapes for is named, with its node."""
    with torch.library._scoped_library("torch_ir_test", "DEF") as library:
        library.define("opaque(Tensor x) -> Tensor")
        library.impl("opaque", lambda x: x.clone(), "CPU")
        x, y = TensorMeta("x", (2, 3), "float32"), TensorMeta("y", (2, 3), "float32")
        node = OpNode("opaque", "torch_ir_test.opaque.default", [x], [y], {})
        ir = IR([node], [x], [y], [])
        with pytest.raises(ExecutionError) as caught:
            compile(ir, level=None)
    assert re.fullmatch(
        r"inductor cannot compile OpNode\('opaque', 'torch_ir_test.opaque.default'\): .*opaque.*", str(caught.value)
    )


def test_a_graph_moves_to_another_device(ir: IR) -> None:
    """Tensors that a graph creates are created on the requested device; the given graph is unchanged."""
    moved = placed(ir, torch.device("cuda:1"))
    places = [node["device"] for graph in (ir, moved) for node in graph.nodes if "arange" in node.op_type]
    assert places == [Device("cpu"), Device("cuda:1")]
    assert (ir.device, moved.device) == ("cpu", "cuda:1")


@pytest.mark.parametrize("backend", ["inductor", "torch", None])
def test_a_graph_runs_on_the_device_of_its_weights(net: nn.Module, ir: IR, backend: str | None) -> None:
    """A graph that was captured on a GPU creates its tensors where its weights are."""
    there = placed(ir, torch.device("cuda:0"))
    weights = net.state_dict()
    run = compile(there, weights, backend=backend) if backend else IRExecutor(there, weights)
    x = torch.randn(2, 3, 8, 8)
    assert not difference(eager(net, x)[0], run(x)[0])


@pytest.mark.parametrize(
    ("device", "backend", "said"),
    [
        ("toaster", "inductor", "device 'toaster' is not available: "),
        ("meta", "onednn", "onednn runs only on the CPU; on meta, use inductor or torch, or pass device='cpu'"),
    ],
)
def test_devices_that_cannot_be(ir: IR, net: nn.Module, device: str, backend: str, said: str) -> None:
    """A missing or unsupported device is a one-line error."""
    with pytest.raises(ExecutionError) as caught:
        compile(ir, net.state_dict(), backend=backend, device=device)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_inputs_elsewhere_are_refused(compiled: Compiled) -> None:
    """Inputs are not moved."""
    with pytest.raises(ExecutionError, match="input 'x' is on meta, but the graph runs on cpu; move it"):
        compiled(torch.randn(2, 3, 8, 8, device="meta"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in catalogue.entries()])
def test_the_catalogue(name: str) -> None:
    """Every model returns what it returns without a compiler, in the first and the second call."""
    entry = catalogue.find(name)
    torch.manual_seed(0)
    model, args, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    compiled = compile(extract_ir(model, args, kwargs=kwargs, strict=False), model.state_dict())
    with torch.no_grad():
        for _ in range(2):
            given = copy.deepcopy((args, kwargs))
            expected = model(*given[0], **given[1])
            given = copy.deepcopy((args, kwargs))
            assert not difference(expected, compiled(*given[0], **given[1]))


@pytest.mark.slow
def test_a_package_of_compiled_code(net: nn.Module, tmp_path: Path) -> None:
    """AOTInductor compiles the module of `to_torch`."""
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    x = torch.randn(2, 6)
    module = to_torch(extract_ir(model, (x,), strict=False), model.state_dict())
    path = str(tmp_path / "model.pt2")
    torch._inductor.aoti_compile_and_package(torch.export.export(module, (x,)), package_path=path)
    assert not difference(eager(model, x), torch._inductor.aoti_load_package(path)(x))


@has_gpu
@pytest.mark.parametrize("device", ["cuda", None])
@pytest.mark.filterwarnings("ignore:inductor was never compared with torch on a GPU")
def test_on_a_gpu(net: nn.Module, ir: IR, device: str | None) -> None:
    """Recorded kernels return the model's results for inputs of later calls; the default device is the weights'."""
    compiled = compile(ir, (net if device else net.cuda()).state_dict(), device=device)
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8, device="cuda")
        assert not difference(eager(net.cuda(), x)[0], compiled(x)[0], rtol=1e-3, atol=1e-3)
