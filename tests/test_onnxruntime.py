"""The back end `onnxruntime`: models run as in eager, at every size and in every dtype."""

import copy
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import catalogue
from catalogue import Entry
from tests.proof import assert_near, module
from torch_ir import IR, extract_ir
from torch_ir.backends import compile
from torch_ir.errors import ExecutionError, TorchIRError
from torch_ir.targets import to_onnx

CHOSEN = ("buffer_mutation", "cnn", "control_flow", "decoder_kv_cache", "nested_inputs", "transformer_encoder")
pytestmark = pytest.mark.usefixtures("_seeded")


def captured(model: nn.Module, *inputs: Any, dynamic: Any = None, **kwargs: Any) -> IR:
    return extract_ir(model, inputs, kwargs=kwargs, strict=False, dynamic_shapes=dynamic)


# -- the back end -----------------------------------------------------------------------------------------------------


def assert_runs_as_the_model(entry: Entry, level: str | None = "full") -> None:
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    compiled = compile(captured(model, *inputs, **kwargs), model.state_dict(), backend="onnxruntime", level=level)
    for _ in range(2):  # buffers have the values of the first call
        given, given_kwargs = copy.deepcopy((inputs, kwargs))
        with torch.no_grad():
            wanted = model(*inputs, **kwargs)
        assert_near(compiled(*given, **given_kwargs), wanted)
        assert_near((given, given_kwargs), (inputs, kwargs))


@pytest.mark.parametrize("name", CHOSEN)
def test_a_model_runs_as_in_eager(name: str) -> None:
    """Convolutions, attention, a cache, a buffer that changes, nested inputs and outputs, control flow."""
    assert_runs_as_the_model(catalogue.find(name))


def test_one_session_takes_every_size() -> None:
    """A size that varies is an input's to choose, at each call."""
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Flatten(0)).eval()
    ir = captured(model, torch.randn(3, 5, 4), dynamic={"input": {0: Dim("batch"), 1: Dim("length", max=64)}})
    compiled = compile(ir, model.state_dict(), backend="onnxruntime")
    for shape in ((3, 5, 4), (1, 1, 4), (7, 64, 4)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert_near(compiled(x), model(x))
    with pytest.raises(ExecutionError, match="length = 65 is out of range"):
        compiled(torch.randn(1, 65, 4))


def test_dtypes_that_numpy_lacks_and_tensors_without_elements() -> None:
    """Values go in and out by their memory, so that every dtype of both sides does."""

    def forward(self: nn.Module, x: Tensor, mask: Tensor, small: Tensor, none: Tensor, z: Tensor) -> Any:
        halved = (x.to(torch.float32) / 2).to(torch.bfloat16)
        return halved, ~mask, small.to(torch.float32) * 2, torch.cat([none, none]), torch.view_as_complex(z) * 1j

    inputs = (
        torch.randn(3).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([-3, 4], dtype=torch.int8),
        torch.empty(0, 2, dtype=torch.float16),
        torch.randn(4, 2),
    )
    model = module(forward)
    compiled = compile(captured(model, *inputs), {}, backend="onnxruntime")
    assert_near(compiled(*inputs), model(*inputs))


def test_attention_without_heads() -> None:
    """The exporter supports attention only in four dimensions; three are converted, including the mask."""
    attend = nn.functional.scaled_dot_product_attention
    model = module(lambda self, x, mask: attend(x, x, x, attn_mask=mask))
    x, mask = torch.randn(2, 5, 4), torch.ones(5, 5, dtype=torch.bool).tril()
    compiled = compile(captured(model, x, mask), {}, backend="onnxruntime")
    assert_near(compiled(x, mask), model(x, mask))


def test_an_input_may_lie_as_it_likes() -> None:
    """Transposed, strided, or one that requires a gradient."""
    model = nn.Linear(4, 8).eval()
    compiled = compile(captured(model, torch.randn(3, 4)), model.state_dict(), backend="onnxruntime")
    for x in (torch.randn(4, 3).T, torch.randn(6, 8)[::2, ::2], torch.randn(3, 4, requires_grad=True)):
        assert_near(compiled(x), model(x).detach())


def test_numbers_are_inputs_too() -> None:
    """A Python number that varies is a scalar to ONNX Runtime."""
    model, x = module(lambda self, x, n: x[:n] * n), torch.randn(8)
    ir = captured(model, x, 3, dynamic=(None, Dim.DYNAMIC))
    compiled = compile(ir, {}, backend="onnxruntime", verify=True)  # with numbers that the graph admits
    assert_near(compiled(x, 5), model(x, 5))


def test_a_run_that_fails_is_one_sentence() -> None:
    """An index that no row has, as the operator of the graph that met it."""
    model = nn.Embedding(4, 2).eval()
    compiled = compile(captured(model, torch.tensor([1])), model.state_dict(), backend="onnxruntime")
    with pytest.raises(ExecutionError, match=r"ONNX Runtime does not run Embedding: (.*)\n  Embedding V4 N2$"):
        compiled(torch.tensor([9]))


def test_weights_are_out_of_reach() -> None:
    """Writing to an output that aliases a weight, an input or another output changes nothing else."""
    model = module(lambda self, x: (self.weight, x, x, self.weight.T))
    model.weight = nn.Parameter(torch.randn(2, 2))
    x = torch.randn(2)
    compiled = compile(captured(model, x), model.state_dict(), backend="onnxruntime")
    first = compiled(x)
    before = copy.deepcopy(first)
    for value in first:
        value.zero_()
    assert_near(compiled(before[1]), before)
    assert_near(model.weight, before[0])


def test_what_onnx_runtime_does_not_run_is_one_sentence(tmp_path: Path) -> None:
    """Its kernels do not support every dtype; the error names the operator with its shapes. The file is valid."""
    model = nn.Conv2d(3, 4, 3).to(torch.bfloat16).eval()
    ir = captured(model, torch.randn(1, 3, 8, 8).to(torch.bfloat16))
    to_onnx(ir, tmp_path / "model.onnx", model.state_dict())
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    with pytest.raises(ExecutionError) as refused:
        compile(ir, model.state_dict(), backend="onnxruntime")
    assert str(refused.value).startswith("ONNX Runtime does not run Conv2d: Could not find an implementation for Conv")
    assert str(refused.value).endswith("\n  Conv2d C3 N4 K3x3 S1x1 P0x0 D1x1 G1")


# -- the catalogue ----------------------------------------------------------------------------------------------------


# unsupported by torch.onnx or ONNX Runtime
REFUSED = {"mixed_precision": "ONNX Runtime does not run .* Could not find an implementation"}


@pytest.mark.slow
@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_the_catalogue(entry: Entry) -> None:
    """All of it, optimised, except the rows of the table, which are rejected with a one-line error."""
    if entry.name in REFUSED:
        with pytest.raises(TorchIRError, match=REFUSED[entry.name]):
            assert_runs_as_the_model(entry)
    else:
        assert_runs_as_the_model(entry)
