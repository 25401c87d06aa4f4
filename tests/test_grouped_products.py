"""Grouped products of mixture-of-experts models: decomposed, converted and run, they equal eager."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import torch_ir
from tests.architectures import architectures
from tests.needed import need_backend
from torch_ir import IR, IRExecutor, cost, extract_ir, to_mlir, to_onnx, to_opset, to_stablehlo

BY_NAME = {each.name: each for each in architectures()}
ROUTINGS: dict[str, Callable[[int, int], list[int]]] = {  # rows and groups -> ends of the groups
    "even": lambda rows, groups: [(group + 1) * rows // groups for group in range(groups)],
    "all in the first": lambda rows, groups: [rows] * groups,
    "all in the last": lambda rows, groups: [0] * (groups - 1) + [rows],
    "empty ones between": lambda rows, groups: [rows // 2] * (groups // 2) + [rows] * (groups - groups // 2),
    "rows after the last": lambda rows, groups: [rows // 3] * groups,
    "no rows": lambda rows, groups: [0] * groups,
}


class Product(nn.Module):
    def forward(self, left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(left, right, offs=ends)


class Experts(nn.Module):
    """Routes each row to the expert with the largest score, as transformers does."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, 24, 8))
        self.down = nn.Parameter(torch.randn(experts, 12, 8))
        self.experts = experts

    def forward(self, x: Tensor, scores: Tensor) -> Tensor:
        chosen, order = torch.sort(scores.argmax(1))
        counts = torch.histc(chosen.float(), bins=self.experts, min=0, max=self.experts - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        hidden = torch._grouped_mm(x[order], self.up.transpose(1, 2), offs=ends)
        hidden = torch._grouped_mm(torch.relu(hidden).reshape(-1, 12), self.down, offs=ends * 2)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0])
        return hidden.reshape(-1, 2, 8)[back].sum(1)


def operands(rows: int, groups: int, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
    """Return both matrices of each form: groups of rows, of columns, of the summed dimension."""
    one, two = torch.randn(rows, 16).to(dtype), torch.randn(rows, 8).to(dtype)
    matrices = torch.randn(groups, 16, 8).to(dtype)
    return {"rows": (one, matrices), "columns": (matrices.transpose(1, 2), one.t()), "sums": (one.t(), two)}


def decomposed(ir: IR) -> IR:
    made, report = to_opset(ir, "core-aten")
    assert report.is_complete, report
    return made


@pytest.mark.parametrize(
    ("rows", "groups", "dtype"),
    [
        (1, 4, torch.float32),
        (4, 4, torch.bfloat16),
        (24, 4, torch.float32),
        (24, 4, torch.bfloat16),
        (7, 1, torch.float32),
    ],
)
def test_the_decomposition_equals_eager(rows: int, groups: int, dtype: torch.dtype) -> None:
    """For every routing; rows and columns after the last group, which eager leaves undefined, are zeros."""
    torch.manual_seed(0)
    for form, (left, right) in operands(rows, groups, dtype).items():
        run = IRExecutor(
            decomposed(extract_ir(Product().eval(), (left, right, torch.zeros(groups).int()), strict=False)), {}
        )
        for routing in ROUTINGS.values():
            ends = torch.tensor(routing(rows, groups), dtype=torch.int32)
            made, wanted, last = run(left, right, ends), Product()(left, right, ends), int(ends[-1])
            if form != "sums":
                axis = 0 if form == "rows" else 1
                assert not made.narrow(axis, last, rows - last).any()
                made, wanted = (each.narrow(axis, 0, last) for each in (made, wanted))
            close = {} if dtype == torch.float32 else {"atol": 0.1, "rtol": 0.05}
            torch.testing.assert_close(made, wanted, **close)


def test_a_product_without_groups_is_a_batched_product() -> None:
    class Batched(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return torch._grouped_mm(left, right)

    left, right = torch.randn(3, 4, 8), torch.randn(3, 8, 4)
    made = decomposed(extract_ir(Batched().eval(), (left, right), strict=False))
    assert [node.op_type for node in made.nodes] == ["aten.bmm.default"]
    torch.testing.assert_close(IRExecutor(made, {})(left, right), left @ right)


@pytest.mark.parametrize(("rows", "multiplied"), [(3, 3), (8, 8), (9, 18), (64, 144), (1024, 2064)])
def test_multiply_adds_are_about_twice_those_of_the_groups(rows: int, multiplied: int) -> None:
    """Of 8 groups: few rows once each, more rows in 16 tiles; every row in every group would be 8 times as many."""
    given = (torch.empty(rows, 16), torch.empty(8, 16, 8), torch.empty(8, dtype=torch.int32))
    ir = extract_ir(Product().eval(), tuple(each.to("meta") for each in given))
    assert cost(decomposed(ir)).by_op()["aten.bmm.default"].flops == 2 * multiplied * 16 * 8


# -- targets ----------------------------------------------------------------------------------------------------------

SIZES = (2, 3, 9, 40)


def routed(rows: int, *, one_expert: bool = False) -> tuple[Tensor, Tensor]:
    scores = torch.randn(rows, 4)
    if one_expert:
        scores[:, 2] = 9
    return torch.randn(rows, 8), scores


@functools.cache
def any_rows() -> tuple[Experts, IR]:
    torch.manual_seed(0)
    model, rows = Experts().eval(), Dim("rows", min=2, max=64)
    return model, extract_ir(model, routed(6), dynamic_shapes=({0: rows}, {0: rows}), strict=False)


def test_symbolic_sizes_are_decomposed_once_for_all() -> None:
    """One graph for every number of rows, with one row in each tile and with many."""
    model, ir = any_rows()
    core, report = to_opset(ir, "core-aten")
    assert [left.op_type for left in report.left] == ["aten.empty_like.default"]
    run = IRExecutor(core, model.state_dict())
    for rows in SIZES:
        given = routed(rows, one_expert=rows == 9)
        torch.testing.assert_close(run(*given), model(*given).detach(), atol=1e-4, rtol=1e-4)


def test_onnx_runtime_computes_all_sizes(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="torch-ir[onnx] is not installed")
    model, ir = any_rows()
    to_onnx(ir, tmp_path / "experts.onnx", model.state_dict())
    session = onnxruntime.InferenceSession(tmp_path / "experts.onnx")
    for rows in SIZES:
        x, scores = routed(rows, one_expert=rows == 9)
        (made,) = session.run(None, {"x": x.numpy(), "scores": scores.numpy()})
        torch.testing.assert_close(torch.from_numpy(made), model(x, scores).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("backend", "sizes"),
    [
        pytest.param("openvino", SIZES, id="openvino"),
        pytest.param("iree", (9,), id="iree"),
        pytest.param("iree", SIZES, id="iree-every", marks=pytest.mark.slow),  # compiled for each size
    ],
)
def test_back_ends_compute_all_sizes(backend: str, sizes: tuple[int, ...]) -> None:
    need_backend(backend)
    model, ir = any_rows()
    compiled = torch_ir.compile(ir, model.state_dict(), backend=backend)
    for rows in sizes:
        given = routed(rows, one_expert=rows == 9)
        torch.testing.assert_close(compiled(*given), model(*given).detach(), atol=1e-4, rtol=1e-4)


def test_texts_hold_no_grouped_product() -> None:
    """The torch dialect and StableHLO, at fixed and at symbolic sizes."""
    model, ir = any_rows()
    for graph in (ir, extract_ir(model, routed(6), strict=False)):
        for text in (to_mlir(graph), to_stablehlo(graph).text):
            assert not re.search(r"(torch\.aten\.|stablehlo\.)_?(grouped_mm|histc)", text)


# -- architectures ----------------------------------------------------------------------------------------------------

MODELS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "dots1", "glm4_moe", "granitemoe")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("level", "blocks"), [("basic", "inline"), ("full", "inline"), ("basic", "function")])
def test_models_of_transformers_in_onnx_runtime(name: str, level: str, blocks: str, tmp_path: Path) -> None:
    """Optimised and in function form, at two routings: random tokens, and one token everywhere."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="torch-ir[onnx] is not installed")
    torch.manual_seed(0)
    model: Any = BY_NAME[name].build().eval()
    model.config.use_cache = False
    tokens = torch.randint(3, 32, (2, 6))
    ir = extract_ir(model, (tokens,), blocks=blocks, strict=False)
    to_onnx(torch_ir.optimize(ir, level)[0], tmp_path / "model.onnx", model.state_dict())
    to_mlir(ir), to_stablehlo(ir)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for given in (tokens, torch.full_like(tokens, 7)):
        made = session.run(None, {session.get_inputs()[0].name: given.numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(made), model(given).logits.detach(), atol=1e-4, rtol=1e-4)
