"""Operators on views that are made inside the graph: every path reads the elements that eager reads."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_ir
from tests.arena_runs import ArenaRun
from tests.backend_sweep.cases import Case
from tests.backend_sweep.coverage import SILENT, verdict
from tests.backend_sweep.judging import ROUNDING, SAME
from tests.backend_sweep.own_paths import PATHS
from tests.backend_sweep.sweep import swept
from tests.backend_sweep.views import sample_cases, view_cases
from tests.needed import need_backend
from tests.proof import captured, module, quiet
from torch_ir import IR, ExecutionError, IRExecutor, Limits, execute_ir, extract_ir, optimize, shard, split, to_opset
from torch_ir.errors import ConversionError, PipelineError, ShardError
from torch_ir.ir import OpNode
from torch_ir.ops.view_inverse import repeats_elements

TABLE = torch.arange(60.0).reshape(3, 4, 5)
RUNTIMES = ("onnxruntime", "openvino", "iree")


@cache
def sampled() -> list[Case]:
    with quiet():
        return list(sample_cases(16))


def common() -> list[Case]:
    """Those with dtypes that every runtime has."""
    found = [case for case in sampled() if all(_is_common(node) for node in case.ir.nodes)]
    assert len(found) > 5
    return found[:6]


def _is_common(node: OpNode) -> bool:
    return {tensor.dtype for tensor in (*node.inputs, *node.outputs)} <= {"float32", "int64", "bool"}


def check(name: str, cases: list[Case]) -> None:
    """No result is silently wrong, and not all are refused."""
    with quiet():
        found = [outcome.record() for outcome in swept(name, cases)]
    kinds = Counter(map(verdict, found))
    assert kinds[SILENT] == 0, [record for record in found if verdict(record) == SILENT]
    assert kinds[SAME] + kinds[ROUNDING] > (len(found) / 4 if name in RUNTIMES else len(found) * 0.9)


@pytest.mark.parametrize("name", [*PATHS, "onednn", "onnxruntime", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_sample_of_views_is_never_silently_wrong(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in RUNTIMES:
        need_backend(name)
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path))
    check(name, common() if name in RUNTIMES else sampled())


@cache
def drawn() -> list[Case]:
    with quiet():
        return list(view_cases(1, 24, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PATHS, "onednn", "onnxruntime", "openvino", "iree"])
def test_no_operator_on_views_is_silently_wrong(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of the database, other ones than those of the counted sweep."""
    if name in RUNTIMES:
        need_backend(name)
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path))
    check(name, drawn())


# -- storages ---------------------------------------------------------------------------------------------------------


def same_at_every_level(model: nn.Module, x: Tensor) -> None:
    ir = extract_ir(model, (x,), strict=False)
    with torch.no_grad():
        wanted = model(x)
    for level in ("clean", "basic", "full"):
        torch.testing.assert_close(IRExecutor(optimize(ir, level)[0], model.state_dict())(x), wanted)


@pytest.mark.parametrize(
    "taken",
    [
        lambda: TABLE.select(0, 1).t().as_strided((2, 2), (1, 2), 0),
        lambda: TABLE.select(0, 1).t().view_as(TABLE[0].t()).as_strided((2, 2), (1, 2), 3),
        lambda: TABLE[1:].as_strided((2, 2), (1, 2)),
    ],
)
def test_views_of_constants_keep_the_storage_that_as_strided_counts_in(taken: Callable[[], Tensor]) -> None:
    """A folded view would be the start of a storage of its own."""
    same_at_every_level(module(lambda _, x: taken() + x), torch.ones(2, 2))


@pytest.mark.parametrize("viewed", [lambda y: y, lambda y: y.reshape(-1), lambda y: y.t().unsqueeze(0)])
def test_projections_in_whose_storage_as_strided_counts_are_not_merged(viewed: Callable[[Tensor], Tensor]) -> None:
    """Each would be a part of the merged result."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return viewed(self.a(x)).as_strided((3, 2), (1, 4), 1) + viewed(self.b(x)).as_strided((3, 2), (1, 4), 1)  # type: ignore[no-any-return]

    same_at_every_level(module(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 4)), torch.randn(3, 4))


@pytest.mark.parametrize(
    "written",
    [
        lambda x: x.clone().as_strided((4, 3), (1, 1)).add_(1),
        lambda x: torch.empty_strided((4, 3), (1, 1)).copy_(x[:12].reshape(4, 3)).mul_(2),
    ],
)
def test_writes_to_overlapping_memory_are_refused(written: Callable[[Tensor], Tensor]) -> None:
    """Eager writes some elements several times; without writes, each is computed once."""
    with pytest.raises(ConversionError, match=r"writes to an overlapping, expanded or unfolded tensor.*; clone it"):
        extract_ir(module(lambda _, x: written(x)), (torch.arange(16.0),), strict=False)


@pytest.mark.parametrize(
    ("shape", "stride", "repeats"),
    [
        ((2, 3), (3, 1), False),
        ((2, 3), (1, 2), False),
        ((4, 3), (1, 1), True),
        ((2, 3), (0, 1), True),
        ((1, 3), (0, 1), False),
        ((4, 3), (2, 1), True),
        ((2, 2, 3), (12, 4, 1), False),
        ((3, 2), (2, 3), False),
        ((4, 2), (2, 3), False),
        ((4, 2), (2, 4), True),
        ((0, 3), (0, 1), False),
        ((), (), False),
    ],
)
def test_overlap_is_read_from_sizes_and_strides(shape: Any, stride: Any, repeats: bool) -> None:
    assert repeats_elements(shape, stride) is repeats


@pytest.mark.parametrize("part", [lambda x: x[2:], lambda x: x.t()])
def test_an_input_that_is_a_part_of_a_storage_is_refused_where_it_is_sent_alone(
    part: Callable[[Tensor], Tensor],
) -> None:
    """The executor counts in the storage as eager does; a runtime or another process gets the part alone."""
    model, whole = module(lambda _, x: x.as_strided((2, 2), (2, 1), 1) * 2), torch.randn(6, 4)
    ir, x = extract_ir(model, (torch.randn(part(whole).shape),), strict=False), part(whole)
    torch.testing.assert_close(IRExecutor(ir, {})(x), model(x))
    compiled = torch_ir.compile(ir, {}, backend="onednn", verify=False)
    for run in (lambda: compiled(x), lambda: execute_ir(ir, (x,), {}, isolated=True)):
        with pytest.raises(ExecutionError, match=r"counts elements in the storage of input 'x'.*; clone the input"):
            run()
    torch.testing.assert_close(compiled(x.clone().contiguous()), model(x.clone().contiguous()))


def test_conjugated_views_are_not_decomposed() -> None:
    """Torch's decomposition of `imag` fails on them at run time."""
    model, x = module(lambda _, x: x.conj().imag + x.mH.real.mT), torch.randn(3, 3, dtype=torch.complex64)
    for to in ("core-aten", "prims"):
        graph, _ = to_opset(captured(model, x), to)
        torch.testing.assert_close(IRExecutor(graph, {})(x), model(x))
    graph, _ = to_opset(captured(module(lambda _, x: x.imag * 2), x), "core-aten")
    assert "aten.view_as_real.default" in [node.op_type for node in graph.nodes], "others are decomposed"


def test_resized_views_are_not_decomposed() -> None:
    """The decomposition takes elements in the order of the view, eager in that of the storage."""
    model, x = module(lambda _, x: (x + 1).permute(2, 1, 0).resize_as_(x) * 2), torch.randn(5, 5, 5)
    graph, _ = to_opset(captured(model, x), "core-aten")
    torch.testing.assert_close(IRExecutor(graph, {})(x), model(x))


@pytest.mark.parametrize(
    ("taken", "at", "is_refused"),
    [
        (lambda y: y[1:].as_strided((2, 2), (6, 1), 1), "as_strided", True),
        (lambda y: y.t().relu().as_strided((2, 2), (6, 1), 1), "as_strided", True),
        (lambda y: y[1:].as_strided((2, 2), (6, 1), 1), "mul", False),
        (lambda y: y.as_strided((2, 2), (6, 1), 1), "as_strided", False),
    ],
)
def test_a_pipeline_is_not_cut_between_a_view_and_what_counts_in_its_storage(
    taken: Callable[[Tensor], Tensor], at: str, is_refused: bool
) -> None:
    """Another process would get the elements of the view alone."""
    model, x = module(lambda _, x: taken(x.exp()) * 2), torch.randn(4, 6)
    ir = captured(model, x)
    if is_refused:
        with pytest.raises(PipelineError, match=r"counts elements in the storage of .* cut elsewhere"):
            split(ir, at=[at])
    else:
        torch.testing.assert_close(IRExecutor(split(ir, at=[at]), {})(x), model(x))


@pytest.mark.parametrize(
    ("taken", "is_refused"),
    [
        (lambda y: y.t().as_strided((4, 2), (1, 8), 0), True),
        (lambda y: y[1:].as_strided((4, 2), (4, 1), 0), True),
        (lambda y: y.as_strided((4, 2), (8, 1), 4), False),
    ],
)
def test_a_sharded_view_is_not_gathered_for_what_counts_in_its_storage(
    taken: Callable[[Tensor], Tensor], is_refused: bool
) -> None:
    """The gathered tensor has the elements of the view alone, in order."""
    ir = captured(module(lambda self, x: taken(self.a(x)) * 2, a=nn.Linear(8, 8)), torch.randn(4, 8))
    if is_refused:
        with pytest.raises(ShardError, match=r"counts elements in the storage of '\w+', which is sharded"):
            shard(ir, {"a": "colwise"}, {"tp": 2})
    else:
        assert shard(ir, {"a": "colwise"}, {"tp": 2}).node("as_strided").inputs[0].stride is None


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.contiguous(memory_format=torch.channels_last) * 2,
        lambda x: (x * 2).to(memory_format=torch.channels_last).relu(),
        lambda x: torch.empty_strided((2, 3), (8, 1)).copy_(x[0, 0, :2, :3]).relu(),
        lambda x: (x * 2)[..., :2].slice_scatter(x[..., :1], 3, 1, 2).relu(),
    ],
)
def test_copies_to_other_strides_have_a_place_in_the_plan(function: Callable[[Tensor], Tensor]) -> None:
    """As large as their strides span."""
    model, x = module(lambda _, x: function(x)), torch.randn(2, 3, 4, 5)
    (made,) = ArenaRun(captured(model, x), {}).run([x])
    torch.testing.assert_close(made, model(x))


GAPS = """
graph Gaps(x: float32[2]) {
  e: float32[2]STRIDES = aten.empty_strided.default(size=[2], stride=[3000000000], dtype=None, layout=None, device=cpu, pin_memory=False)
  c: float32[2]STRIDES = aten.copy.default(self=e, src=x, non_blocking=False)
  return c
}
"""  # noqa: E501  (a line of a graph)


@pytest.mark.parametrize("strides", ["", " strides [3000000000]"])
def test_gaps_between_elements_count_as_memory(strides: str) -> None:
    """Whether the file declares them or not."""
    ir = IR.parse(GAPS.replace("STRIDES", strides))
    with pytest.raises(ExecutionError, match=r"would need 24,\d{3},\d{3},\d{3} bytes"):
        IRExecutor(ir, {}, limits=Limits(memory_bytes=1 << 20))(torch.ones(2))


def test_inductor_refuses_to_scatter_into_the_storage_of_a_view() -> None:
    """It counts from the first element of the view."""
    model = module(lambda _, x: x[1:].as_strided_scatter(torch.ones(2, 2), (2, 2), (6, 1), 7))
    with pytest.raises(ExecutionError, match="writes to other elements of the view"):
        torch_ir.compile(extract_ir(model, (torch.randn(4, 6),), strict=False), {}, backend="inductor")
