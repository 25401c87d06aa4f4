"""Weights on a CPU: layers of few rows read them as they are stored, and prefill and decode share them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.architectures import architectures
from torch_ir import IR, extract_ir, optimize
from torch_ir.backends.bind_together import bind_together
from torch_ir.backends.cpu.stored_weights import with_stored_weights
from torch_ir.llm import extract_llm
from torch_ir.llm.compiled.decode_step import prefill_graph
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.quantization import quantize
from torch_ir.run import IRExecutor
from torch_ir.run.binding import bind

PRODUCT = "torch_ir.weight_product.default"


def quantised(scheme: str, dtype: torch.dtype, rows: int) -> tuple[Any, IR, Tensor]:
    """Return three layers, of which the second stays in float, their graph, and an input of so many rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 65), nn.ReLU(), nn.Linear(65, 64), nn.Linear(64, 33, bias=False))
    model = model.eval().bfloat16().to(dtype)
    x = torch.randn(rows, 1, 128).bfloat16().to(dtype)
    ir = quantize(extract_ir(model, (x,), strict=False), {"2": None, "*": scheme})[0]
    return model, optimize(ir, "full")[0], x


@pytest.mark.parametrize("scheme", ["int8", "int8-asym", "int8-g64", "int4", "int4-g64", "int4-g32-asym"])
def test_layers_of_few_rows_read_quantised_weights_as_they_are_stored(scheme: str) -> None:
    """With and without a bias, for one row and several; results are those of the restored weights.

    In bfloat16, they are at least as close to those in float32, as no restored weight is rounded.
    """
    for rows in (1, 2, 7):
        exact: Any = None
        for dtype in (torch.float32, torch.bfloat16):
            model, ir, x = quantised(scheme, dtype, rows)
            found = with_stored_weights(with_calls_inline(ir))
            assert [node.op_type for node in found.nodes].count(PRODUCT) == 2
            run, weights = bind(found, model.state_dict())
            large = [tuple(each.shape) for each in weights.values() if each.dtype == dtype and each.numel() > 1000]
            assert large == [(64, 65)]
            made, wanted = IRExecutor(run, weights)(x).float(), IRExecutor(ir, model.state_dict())(x).float()
            if exact is None:
                exact = wanted
                torch.testing.assert_close(made, wanted)
            assert (made - exact).norm() <= 1.1 * (wanted - exact).norm() + 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_few_rows_read_large_weights_without_packing(dtype: torch.dtype) -> None:
    """Small weights are left to torch; a weight that the model has transposed is, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1026), nn.Linear(1026, 64)).eval().to(dtype)
    x = torch.randn(3, 1024, dtype=dtype)
    ir = extract_ir(model, (x,), strict=False)
    found = with_stored_weights(ir)
    assert [node.op_type for node in found.nodes].count(PRODUCT) == 1
    torch.testing.assert_close(IRExecutor(found, model.state_dict())(x), model(x))


def test_the_kernel_computes_what_its_definition_says() -> None:
    """For all formats, zero points, numbers of rows and odd numbers of outputs."""
    torch.manual_seed(0)
    sizes = (
        *((32, 32, 1, 1), (96, 32, 7, 3), (384, 96, 9, 2)),
        *((128, 32, 9, 5), (384, 64, 17, 4), (256, 128, 5, 4), (256, 256, 8, 6)),  # of whole registers of AVX-512
    )
    for width, group, count, rows in sizes:
        x, scales = torch.randn(rows, width), torch.rand(count, width // group)
        zeros = torch.randint(-5, 5, scales.shape, dtype=torch.int32)
        nibbles, integers = torch.randint(0, 16, (count, width)), torch.randint(-128, 128, (count, width))
        packed = (nibbles[:, ::2] + 16 * nibbles[:, 1::2]).to(torch.uint8)
        weight = torch.randn(count, width)
        for stored, values in ((integers.to(torch.int8), integers), (packed, nibbles)):
            for shift, offset in ((None, 0), (zeros, 8)):
                found = torch.ops.torch_ir.weight_product(x, stored, scales, shift, offset)
                restored = (values - offset).reshape(*scales.shape, group) - (0 if shift is None else shift[..., None])
                wanted = x.double() @ (restored * scales[..., None].double()).reshape(count, width).T
                torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-3)
        for stored in (weight, weight.bfloat16()):
            found = torch.ops.torch_ir.weight_product(x, stored, None, None, 0)
            torch.testing.assert_close(found, x @ stored.float().T, rtol=1e-5, atol=1e-4)


def test_layers_of_many_rows_restore_their_weights() -> None:
    model = nn.Linear(128, 64).eval()
    ir = quantize(extract_ir(model, (torch.randn(9, 128),), strict=False), "int4-g64")[0]
    packed = with_stored_weights(with_calls_inline(ir))
    assert PRODUCT not in [node.op_type for node in packed.nodes]


def test_prefill_and_decode_share_their_weights() -> None:
    """What both read is one tensor, also where it is computed from the checkpoint, and no copy is left beside it."""
    model: Any = next(each for each in architectures() if each.name == "llama").build().eval()
    graphs = extract_llm(model.config, cache_length=32, weight_layout="model", batch=1)
    for scheme in (None, "int8", "int4-g16"):
        check_sharing(graphs, model.state_dict(), scheme)


def check_sharing(ir: IR, weights: dict[str, Tensor], scheme: str | None) -> None:
    ir = ir if scheme is None else quantize(ir, scheme)[0]
    bound = bind_together([prefill_graph(ir), ir.functions["decode"]], weights, torch.device("cpu"), "full")
    one, other = ({address(each): each for each in held.values() if each.dim() == 2} for _, held in bound)
    assert one.keys() == other.keys()
    if scheme is None:
        assert one.keys() == {address(each) for each in weights.values() if each.dim() == 2}
    else:  # of the floats, scales are left
        left = sum(each.numel() for each in one.values() if each.dtype == torch.float32)
        assert left < sum(each.numel() for each in weights.values()) / 8


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_constants_of_one_name_are_shared_only_if_their_values_are_equal() -> None:
    """Prefill and decode may have different constants of the same name."""

    def shifted(by: float) -> IR:
        class Shifted(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x + torch.tensor([by]).exp()

        return extract_ir(Shifted().eval(), (torch.zeros(3),), strict=False)

    device = torch.device("cpu")
    bound = bind_together(map(shifted, (1.0, 2.0, 1.0)), {}, device, None)
    values = [next(iter(held.values())) for _, held in bound]
    assert values[0] is values[2]
    torch.testing.assert_close(torch.cat(values[:2]), torch.tensor([1.0, 2.0]).exp())
