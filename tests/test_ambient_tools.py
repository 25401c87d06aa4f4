"""Tools inside `with torch.device("meta")`, autocast or inference mode: what they write and compute stays the same."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_ir
from tests.ambient_sweep import MODES
from torch_ir import IR, IRExecutor
from torch_ir.backends.table import installed_backends
from torch_ir.llm import compile as compile_llm
from torch_ir.llm import empty_cache, extract_llm, generate, to_cache_form

X = torch.linspace(-1, 1, 2 * 3 * 4 * 4).view(2, 3, 4, 4)


class Net(nn.Module):
    """Folded weights, a mask that is known, fused attention, literals, and floats made of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x)).relu().flatten(2).mT
        mask = torch.ones(16, 16).tril() == 0
        scores = (self.linear(y) @ y.mT * 0.5).masked_fill(mask, float("-inf"))
        return scores.softmax(-1) @ y + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4) / 3


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def ir(net: nn.Module) -> IR:
    return torch_ir.extract_ir(net, (X,), strict=False)


def _onnx(ir: IR, weights: Any, folder: Path) -> bytes:
    torch_ir.to_onnx(ir, folder / "net.onnx", weights)
    return (folder / "net.onnx").read_bytes()


def _pack(ir: IR, weights: Any, folder: Path) -> bytes:
    torch_ir.write_golden(ir, weights, (X,), folder / "pack")
    return b"".join(path.read_bytes() for path in sorted((folder / "pack").iterdir()))


def _compiled(backend: str) -> Callable[[IR, Any, Path], Tensor]:
    return lambda ir, weights, folder: torch_ir.compile(ir, weights, backend=backend)(X)


def _source(ir: IR, weights: Any, folder: Path) -> list[Any]:
    names: dict[str, Any] = {}
    exec(torch_ir.to_python(ir), names)  # the code that was just written
    return [buffer for buffer in names["Net"]().buffers() if not buffer.is_meta]


TOOLS: dict[str, Callable[[IR, Any, Path], Any]] = {
    "optimize": lambda ir, weights, folder: torch_ir.optimize(ir, "full", verify=True)[0].to_json(),
    "observe_ranges": lambda ir, weights, folder: torch_ir.observe_ranges(ir, weights, [(X,)], method="percentile"),
    "to_onnx": _onnx,
    "write_golden": _pack,
    "to_python": _source,
    "compile for torch": _compiled("torch"),
    **({"compile for openvino": _compiled("openvino")} if "openvino" in installed_backends() else {}),
}


@pytest.fixture(scope="module")
def plain(ir: IR, net: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of all tools under the settings that torch begins with."""
    return {name: tool(ir, net.state_dict(), tmp_path_factory.mktemp("plain")) for name, tool in TOOLS.items()}


_SOME = ("default device meta", "autocast")


@pytest.mark.parametrize(
    "mode", [*_SOME, *(pytest.param(mode, marks=pytest.mark.slow) for mode in MODES if mode not in _SOME)]
)
def test_tools_do_not_read_the_settings_of_the_process(
    mode: str, ir: IR, net: nn.Module, plain: dict[str, Any], tmp_path: Path
) -> None:
    for name, tool in TOOLS.items():
        (folder := tmp_path / name.replace(" ", "-")).mkdir()
        weights = {key: value.clone() for key, value in net.state_dict().items()}
        with MODES[mode]():
            found = tool(ir, weights, folder)
        assert _is_same(found, plain[name]), name


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, Tensor):
        return one.device == other.device and torch.equal(one, other)
    return bool(one == other)


def test_a_graph_is_verified_inside_a_meta_device() -> None:
    """As a model that names the devices of its tensors runs there, too."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    graph = torch_ir.extract_ir(model, (torch.ones(2, 4),), strict=False)
    with torch.device("meta"):
        passed, report = torch_ir.verify_ir_with_state_dict(
            graph, model.state_dict(), model, (torch.ones(2, 4, device="cpu"),)
        )
    assert passed, report


def test_the_state_of_an_optimiser_begins_with_values() -> None:
    with torch.device("meta"), warnings.catch_warnings():
        model = nn.Linear(4, 2)
        x, y = torch.empty(3, 4), torch.empty(3, 2)
        adam = torch.optim.Adam(model.parameters())
        step = torch_ir.extract_training(model, (x,), targets=(y,), loss=F.mse_loss, optimizer=adam)
        state = torch_ir.optimizer_state(step)
    assert {value.device.type for value in state.values()} == {"cpu"}


# -- tensors that were made in inference mode ------------------------------------------------------------------------


class Cache(nn.Module):
    def forward(self, cache: Tensor, x: Tensor) -> Tensor:
        cache[1] = x
        cache += 1
        return cache.sum()


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("backend", ["executor", "torch", "onnxruntime"])
def test_inputs_made_in_inference_mode_are_written_to(backend: str, inside: bool) -> None:
    """As `torch.inference_mode` around a loop of steps makes them; torch writes to such tensors only inside."""
    ir = torch_ir.extract_ir(Cache().eval(), (torch.zeros(3, 2), torch.ones(2)), strict=False)
    run: Any = IRExecutor(ir, {}, in_place=True) if backend == "executor" else torch_ir.compile(ir, {}, backend=backend)
    with torch.inference_mode():
        cache = torch.zeros(3, 2)
    assert cache.is_inference()
    for count in (1, 2):
        with torch.inference_mode(inside):
            run(cache, torch.full((2,), 5.0))
        assert cache[:, 0].tolist() == [count, 6, count]


@pytest.mark.parametrize("mode", ["inference mode", "default device meta"])
def test_a_language_model_generates_in_any_mode(mode: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, vocab_size=16, max_position_embeddings=32)
    ir, fixed = extract_llm(config), extract_llm(config, cache_length=16)
    weights, ids = torch_ir.random_weights(ir), torch.tensor([[1, 2, 3]])
    expected = generate(ir, weights, 3, input_ids=ids)
    other = min(set(range(16)) - {*expected.flatten().tolist()})  # a token that does not end it
    with MODES[mode]():
        form = to_cache_form(ir)
        served = compile_llm(fixed, weights, backend="torch")
        found = generate(form, weights, 3, input_ids=ids), served.generate(ids, 3)
        streamed = list(served.stream(ids, 3, eos_token_id=other))
        cache = empty_cache(form, batch=1, slots=8)
        output = IRExecutor(form, weights, in_place=True)(
            input_ids=ids, position=torch.zeros(1, dtype=torch.int64, device="cpu"),
            logits_at=torch.full((1, 1), 2, device="cpu"), cache=cache,
        )  # fmt: skip
    assert all(torch.equal(tokens, expected) for tokens in found)
    assert torch.equal(torch.stack(streamed, 1), expected)
    assert torch.equal(output["logits"].argmax(-1), expected[:, :1])
