"""ONNX files compute with the numbers of the graph: float64, wide integers, and what torch's exporter gets wrong."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.proof import module
from torch_ir import extract_ir
from torch_ir.errors import ConversionError
from torch_ir.targets import to_onnx

pytestmark = pytest.mark.usefixtures("_seeded")

IN_FLOAT64: dict[str, Callable[[Tensor], Tensor]] = {
    "operand": lambda x: x * 0.1,
    "alpha": lambda x: torch.add(x, x, alpha=0.3),
    "bounds": lambda x: x.clamp(0.1, 0.9),
    "fill": lambda x: torch.full((4,), 0.1, dtype=x.dtype) + x.masked_fill(x > 0, 0.2),
    "attribute of ONNX": lambda x: F.leaky_relu(x, 0.1) + F.elu(x, 0.7),
    "norm": lambda x: F.layer_norm(x, (4,), eps=1e-3) + F.group_norm(x, 2, eps=1e-3),
    "batch norm": lambda x: F.batch_norm(x, x[0], x[1].abs(), eps=1e-3),
    "function of onnxscript": lambda x: torch.addcmul(x, x, x, value=0.3) + F.softplus(x, 0.3),
    "constant of the translation": lambda x: x.abs().log10() + x.deg2rad() + x.abs().log2(),
    "product": lambda x: torch.addmm(x, x, x, alpha=0.3, beta=0.7),
    "steps": lambda x: torch.arange(0.1, 0.5, 0.1, dtype=x.dtype) + x,
    "power of a norm": lambda x: x.norm(1.3),
    "complex numbers": lambda x: torch.view_as_real(torch.complex(x, x) * 0.1),
    "approximation": lambda x: F.gelu(x, approximate="tanh"),
}
REPAIRED: dict[str, Callable[[Tensor], Tensor]] = {
    "label smoothing": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 3]), label_smoothing=0.1),
    "mean of a scatter": lambda x: x.new_zeros(4, 4).scatter_reduce(0, (x > 0).long(), x, "mean"),
    "a row that is masked": lambda x: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None], attn_mask=torch.arange(4)[:, None] > 0
    ),
    "divisor": lambda x: F.avg_pool2d(x[None, None], 2, divisor_override=3),
}
UNCHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "small summand": lambda x: x / (x.norm() + 1e-8),
    "small summand of a root": lambda x: x * torch.rsqrt(x.square().mean() + 1e-9),
    "small subtrahend": lambda x: (x * 1e-8) - 1e-8,
    "factor next to one": lambda x: x * 1.000009,
    "divisor next to one": lambda x: x / 1.000009,
    "one over a divisor next to one": lambda x: 1.000009 / (x + 2) * x,
    "disjoint bounds": lambda x: x.clamp(0, 3).clamp(5, 10),
    "bounds below zero": lambda x: x.clamp(-2, -1).relu(),
    "uneven halves": lambda x: x[:, :3][:, :1] * 2 + x[:, :3][:, 1:],
    "rounded twice": lambda x: (x.double() * (1 + 2**-30) + 2048).float().half().float(),
    "rounded to half": lambda x: (x + 0.1).half().float(),
    "two dropouts": lambda x: F.dropout(x + 1, 0.5) - F.dropout(x + 1, 0.5),
}


def run_file(path: Path, x: Tensor) -> Tensor:
    """Run a file as it is: the fusions of ONNX Runtime round numbers to float32."""
    onnx.checker.check_model(path, full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(numpy.asarray(session.run(None, {"x": x.numpy()})[0]))


def written(compute: Callable[[Tensor], Tensor], x: Tensor, path: Path) -> Tensor:
    to_onnx(extract_ir(module(lambda self, x: compute(x)), (x,), strict=False), path)
    return run_file(path, x)


@pytest.mark.parametrize("name", IN_FLOAT64)
def test_numbers_stay_in_float64(name: str, tmp_path: Path) -> None:
    """A number such as 0.1 is not rounded to float32: the error is that of float64."""
    x = torch.randn(4, 4, dtype=torch.float64)
    torch.testing.assert_close(
        written(IN_FLOAT64[name], x, tmp_path / "a.onnx"), IN_FLOAT64[name](x), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("name", REPAIRED)
def test_operators_that_the_exporter_gets_wrong_are_rewritten(name: str, tmp_path: Path) -> None:
    """A file computes what the back end onnxruntime computes, without a back end."""
    x = torch.randn(4, 4)
    torch.testing.assert_close(written(REPAIRED[name], x, tmp_path / "a.onnx"), REPAIRED[name](x))


@pytest.mark.parametrize("name", UNCHANGED)
@pytest.mark.parametrize("x", [torch.zeros(4, 4), torch.linspace(-4, 7.3, 16).reshape(4, 4)], ids=["zeros", "numbers"])
def test_no_number_is_changed_by_a_tolerance(name: str, x: Tensor, tmp_path: Path) -> None:
    """A rewrite is exact, or it is not applied: small summands, factors next to one, bounds, conversions, draws."""
    found, wanted = written(UNCHANGED[name], x, tmp_path / "a.onnx"), UNCHANGED[name](x)
    if name == "two dropouts":
        assert found.ne(0).any()
    else:
        torch.testing.assert_close(found, wanted, rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize("divisor", [7, -7])
def test_wide_integers_are_divided_as_integers(mode: str, divisor: int, tmp_path: Path) -> None:
    """2**55 + 1 has no float32."""
    x = torch.tensor([2**55 + 1, -(2**55) - 1, 5, -5, 14, -14, 0])

    def divided(x: Tensor) -> Tensor:
        return torch.div(x, divisor, rounding_mode=mode)

    assert torch.equal(written(divided, x, tmp_path / "a.onnx"), divided(x))


def test_outputs_have_the_dtypes_of_the_graph(tmp_path: Path) -> None:
    """The exporter leaves a sum of float16 in float32."""
    x = torch.randn(4, 4)
    found = written(lambda x: x.half().sum(0), x, tmp_path / "a.onnx")
    assert found.dtype == torch.float16


def test_what_is_still_computed_in_float32_is_refused(tmp_path: Path) -> None:
    """An operator whose translation converts float64 to float32 is named."""
    x = torch.randn(4, 4, dtype=torch.float64)
    with pytest.raises(ConversionError, match=r"computes in float32(.|\n)*(embedding_bag|EmbeddingBag)"):
        written(lambda x: F.embedding_bag(torch.tensor([[0, 2]]), x, mode="mean"), x, tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()


def test_draws_without_replacement_are_refused(tmp_path: Path) -> None:
    """ONNX's Multinomial draws with replacement; one draw is the same either way."""
    x = torch.rand(2, 4)
    with pytest.raises(ConversionError, match="would draw with replacement"):
        written(lambda x: torch.multinomial(x, 3), x, tmp_path / "a.onnx")
    assert written(lambda x: torch.multinomial(x, 1), x, tmp_path / "a.onnx").shape == (2, 1)


def test_files_are_written_by_several_threads(tmp_path: Path) -> None:
    """The exporter records into state of the process."""
    x = torch.randn(4, 4)
    found: dict[int, Tensor] = {}

    def write(number: int) -> None:
        found[number] = written(lambda x: (x * number).relu() + number, x, tmp_path / f"{number}.onnx")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[number], (x * number).relu() + number) for number in range(1, 5))


def test_a_float32_graph_keeps_its_operators(tmp_path: Path) -> None:
    """Only graphs with float64 are decomposed further."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.LeakyReLU(0.1)).eval()
    to_onnx(extract_ir(model, (torch.randn(2, 4),), strict=False), tmp_path / "a.onnx")
    kinds = [node.op_type for node in onnx.load(tmp_path / "a.onnx", load_external_data=False).graph.node]
    assert {"LayerNormalization", "LeakyRelu"} <= set(kinds)


WRONG_COMPLEX: dict[str, Callable[[Tensor], Tensor]] = {
    "number of double precision": lambda x: torch.complex(x.double(), x.double()) * (1 + 2j),
    "filled": lambda x: torch.full((4,), 2j) + torch.complex(x, x),
    "ones": lambda x: torch.ones(4, dtype=torch.complex64) + torch.complex(x, x),
    "alpha": lambda x: torch.add(torch.complex(x, x), torch.complex(x, x), alpha=2j),
}


@pytest.mark.parametrize("name", WRONG_COMPLEX)
def test_complex_numbers_that_the_exporter_writes_wrongly_are_refused(name: str, tmp_path: Path) -> None:
    """torch.onnx writes an invalid file, or one that computes another function."""
    ir = extract_ir(module(lambda self, x: torch.view_as_real(WRONG_COMPLEX[name](x))), (torch.ones(4),), strict=False)
    with pytest.raises(ConversionError, match=r"no exact translation:\n  aten.* would"):
        to_onnx(ir, tmp_path / "complex.onnx")


def test_complex_numbers_of_single_precision_are_written(tmp_path: Path) -> None:
    """A complex factor and summand."""
    model = module(lambda self, x: torch.view_as_real(torch.complex(x, x) * (1 + 2j) + 3j))
    x = torch.arange(4.0)
    to_onnx(extract_ir(model, (x,), strict=False), tmp_path / "complex.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "complex.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "complex.onnx")
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    assert numpy.array_equal(found, model(x).numpy())
