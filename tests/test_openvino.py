"""The back end openvino computes the same as the model, or its error lists the unsupported operators."""

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import catalogue
from catalogue import Entry
from tests.captured import captured
from tests.needed import need_backend
from torch_ir import IR, IRExecutor, apply_rules, extract_ir
from torch_ir.backends import compile, openvino
from torch_ir.backends.openvino_layers import layer_per_part
from torch_ir.errors import ConversionError, ExecutionError
from torch_ir.run.benchmark import difference

need_backend("openvino")

SAMPLE = ("cnn", "transformer_encoder", "decoder_kv_cache", "buffer_mutation", "inplace", "multi_output")
REFUSED = {
    "bitwise": "aten.__lshift__.Tensor",
    "fft": "aten._fft_r2c.default",
    "message_passing": "aten.scatter_reduce.two",
    "mixed_precision": "computes float64 in 32 bits",
}
pytestmark = pytest.mark.usefixtures("_seeded")


def assert_same(entry: Entry, level: str | None = "full") -> None:
    """Compare results and changed inputs over two calls, so that state counts."""
    model, call = entry.build(), (entry.inputs(), entry.kwargs())
    ir = extract_ir(model, call[0], kwargs=call[1], strict=False)
    compiled = compile(ir, model.state_dict(), backend="openvino", level=level)
    for _ in range(2):
        (args, kwargs), (same, same_kwargs) = copy.deepcopy((call, call))
        with torch.no_grad():
            wanted = model(*args, **kwargs)
        assert difference(wanted, compiled(*same, **same_kwargs)) == ""
        assert difference((args, kwargs), (same, same_kwargs)) == ""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_gives_what_eager_gives(name: str) -> None:
    """Convolutions, attention, a KV cache, changing buffers, writes, results that are inputs or repeated."""
    assert_same(catalogue.find(name))


@pytest.mark.slow
@pytest.mark.parametrize("level", [None, "full"])
@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_every_model_is_right_or_refused(entry: Entry, level: str | None) -> None:
    """Nothing is computed wrongly in silence; the table of docs/openvino.md."""
    if entry.name not in REFUSED:
        assert_same(entry, level)
        return
    with pytest.raises((ConversionError, ExecutionError), match=REFUSED[entry.name]):
        assert_same(entry, level)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("is_open", [False, True])
def test_queries_share_heads_of_keys(is_masked: bool, is_open: bool) -> None:
    """Attention of eight heads over two of keys and values, with fully masked rows."""

    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
            mask = seen if is_masked else None
            return nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True)

    def given(length: int) -> tuple[Tensor, ...]:
        seen = torch.rand(1, 1, 3, length) < 0.5
        seen[:, :, 1] = False
        return torch.randn(1, 8, 3, 4), torch.randn(1, 2, length, 4), torch.randn(1, 2, length, 4), seen

    length = Dim("length", max=20)
    shapes = ({}, {2: length}, {2: length}, {3: length} if is_masked else {}) if is_open else None
    ir = extract_ir(Attention(), given(5), dynamic_shapes=shapes, strict=False)
    compiled = compile(ir, {}, backend="openvino")
    for size in (5, 7, 1) if is_open and is_masked else (5,):
        values = given(size)
        torch.testing.assert_close(compiled(*values), Attention()(*values))


class _Attention(nn.Module):
    """Attention with heads of an odd size, and an operator after it."""

    def __init__(self, after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(15, 15) for _ in range(3))
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).reshape(*x.shape[:2], 3, 5).transpose(1, 2) for each in (self.q, self.k, self.v))
        found = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.after(found.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize(
    ("after", "is_open", "is_fused"),
    [(nn.GELU(), False, True), (nn.GELU(), True, False), (torch.sin, False, False)],
)
def test_attention_is_fused_among_operators_of_encoders(
    after: Callable[[Tensor], Tensor], is_open: bool, is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused kernels crash the process on some graphs: they are for fixed sizes, and operators of encoders."""
    torch.manual_seed(0)
    net, x = _Attention(after).eval(), torch.randn(2, 7, 15)
    ir = extract_ir(net, (x,), strict=False, dynamic_shapes=({0: Dim("batch", min=2, max=8)},) if is_open else None)
    asked: list[bool] = []
    may_fuse = openvino._may_fuse
    monkeypatch.setattr(openvino, "_may_fuse", lambda graph: asked.append(may_fuse(graph)) or asked[-1])
    compiled = compile(ir, net.state_dict(), backend="openvino")
    assert asked == [is_fused]
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)


def merged_projections(*widths: int) -> IR:
    """Query, key and value in one layer, whose result is split into parts of these widths."""
    parts = ", ".join(f"part_{at}: float32[2, {width}] strides [14, 1]" for at, width in enumerate(widths))
    return IR.parse(f"""
    graph(x: float32[2, 8]) {{
      param q: float32[6, 8] = "q"
      param k: float32[4, 8] = "k"
      param v: float32[4, 8] = "v"
      param q_bias: float32[6] = "q_bias"
      param k_bias: float32[4] = "k_bias"
      param v_bias: float32[4] = "v_bias"
      kv: float32[8, 8] = aten.cat.default(tensors.0=k, tensors.1=v, dim=0)
      qkv: float32[14, 8] = aten.cat.default(tensors.0=q, tensors.1=kv, dim=0)
      bias: float32[14] = aten.cat.default(tensors.0=q_bias, tensors.1=k_bias, tensors.2=v_bias, dim=0)
      linear: float32[2, 14] = aten.linear.default(input=x, weight=qkv, bias=bias)
      {parts} = aten.split_with_sizes.default(self=linear, split_sizes={list(widths)}, dim=-1)
      relu: float32[2, {widths[0]}] = aten.relu.default(self=part_0)
      abs: float32[2, {widths[1]}] = aten.abs.default(self=part_1)
      neg: float32[2, {widths[2]}] = aten.neg.default(self=part_2)
      return relu, abs, neg
    }}
    """)


def test_merged_projections_become_one_layer_each() -> None:
    """OpenVINO copies the parts of a result. The weights may be joined step by step, as in several runs of a pass."""
    ir = merged_projections(6, 4, 4)
    apart = ir.clone()
    assert apply_rules(apart, layer_per_part) == 1
    layers = [node for node in apart.nodes if node.op_type == "aten.linear.default"]
    assert [(node["weight"].name, node["bias"].name) for node in layers] == [
        ("q", "q_bias"),
        ("k", "k_bias"),
        ("v", "v_bias"),
    ]
    weights, x = {param.name: torch.randn(param.shape) for param in ir.params}, torch.randn(2, 8)
    torch.testing.assert_close(IRExecutor(apart, weights)(x), IRExecutor(ir, weights)(x))


def test_a_layer_that_is_split_elsewhere_stays() -> None:
    assert apply_rules(merged_projections(6, 5, 3), layer_per_part) == 0


def test_sizes_vary_in_one_compiled_model() -> None:
    """A size that varies is not compiled in; those out of range are refused as everywhere."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)).eval()
    ir = extract_ir(model, (torch.randn(2, 3, 8, 8),), strict=False, dynamic_shapes=({0: Dim("batch", max=8)},))
    compiled = compile(ir, model.state_dict(), backend="openvino")
    for batch in (1, 3, 8):
        x = torch.randn(batch, 3, 8, 8)
        torch.testing.assert_close(compiled(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_results_are_the_callers_own() -> None:
    """A later call changes no earlier result, of static or dynamic size, and results outlive the callable."""
    for sizes in (None, ({0: Dim("batch", max=8)},)):
        ir = extract_ir(nn.ReLU().eval(), (torch.ones(2, 3),), strict=False, dynamic_shapes=sizes)
        compiled = compile(ir, {}, backend="openvino")
        first = compiled(torch.ones(2, 3))
        compiled(torch.full((2, 3), 5.0))
        del compiled
        assert first.tolist() == torch.ones(2, 3).tolist()


def test_threads_may_call_at_once() -> None:
    """They wait for each other."""
    ir = extract_ir(nn.ReLU().eval(), (torch.ones(64, 64),), strict=False)
    compiled = compile(ir, {}, backend="openvino")
    wrong: list[float] = []

    def work(number: float) -> None:
        for _ in range(20):
            result = compiled(torch.full((64, 64), number))
            wrong.extend([number] * bool((result != number).any()))

    workers = [threading.Thread(target=work, args=(float(number),)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_inputs_may_lie_anyhow_in_memory() -> None:
    """Views, transposes, bfloat16, and inputs that nothing reads."""

    class Mixed(nn.Module):
        def forward(self, a: Tensor, unused: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return a + 1, b * 2

    def inputs() -> tuple[Tensor, ...]:
        return torch.randn(6, 4).t(), torch.ones(3), torch.randn(8, 3)[::2].bfloat16()

    ir = extract_ir(Mixed().eval(), tuple(value.contiguous() for value in inputs()), strict=False)
    compiled, given = compile(ir, {}, backend="openvino"), inputs()
    assert difference(Mixed()(*given), compiled(*given)) == ""


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(1) / 2,
        lambda x: x.amax((1, 2), keepdim=True) / 3,
        lambda x: x.var(1) / 2,
        lambda x: ((x.mean(1) + 1).relu() / 5) @ x[0].mT,
    ],
)
def test_a_reduction_that_is_divided(function: Callable[[Tensor], Tensor]) -> None:
    """OpenVINO itself computed the first of a batch, and left the others as they were."""
    x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(compile(captured(function, (3, 4, 6)), {}, backend="openvino")(x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.div(x, 3, rounding_mode="floor"),
        lambda x: x // torch.tensor(-3),
        lambda x: torch.div(x, -2, rounding_mode="trunc"),
        lambda x: x >> 2,
    ],
)
def test_whole_numbers_are_rounded_as_torch_rounds_them(function: Callable[[Tensor], Tensor]) -> None:
    """Down, also below zero; OpenVINO itself rounds towards zero."""
    x = torch.arange(-12, 12).reshape(4, 6)
    compiled = compile(captured(function, (4, 6), dtype=torch.int64), {}, backend="openvino")
    assert compiled(x).tolist() == function(x).tolist()


def test_results_that_are_inputs_are_copies_and_inputs_stay_as_they_were() -> None:
    """OpenVINO wrote to the input where a graph returned it as it was, and returned memory that nothing had written."""
    x = torch.arange(25.0).reshape(5, 5)
    compiled = compile(captured(lambda x: (x.clone(), x + 1), (5, 5)), {}, backend="openvino", level=None)
    for _ in range(2):
        same, more = compiled(x)
        assert x.tolist() == torch.arange(25.0).reshape(5, 5).tolist()
        assert same.tolist() == x.tolist()
        assert more.tolist() == (x + 1).tolist()
        assert same.data_ptr() != x.data_ptr()


def test_integers_beyond_32_bits_are_refused() -> None:
    """OpenVINO computes them in 32 bits."""
    compiled = compile(captured(lambda x: x + 1, (2,), dtype=torch.int64), {}, backend="openvino")
    assert compiled(torch.tensor([2**31 - 2, -(2**31)])).tolist() == [2**31 - 1, 1 - 2**31]
    with pytest.raises(ExecutionError, match="OpenVINO computes integers in 32 bits"):
        compiled(torch.tensor([2**31, 0]))


@pytest.mark.parametrize(
    "function",
    [lambda x: x > x.flip(0), lambda x: x.amax(), lambda x: x.clamp(max=7), lambda x: x // 3, lambda x: x % 7],
)
def test_integers_beyond_24_bits_are_refused_where_they_are_computed_in_float32(function: Any) -> None:
    """There, 16,777,217 is 16,777,216."""
    x = torch.tensor([2**24 - 1, 2**24], dtype=torch.int32)
    compiled = compile(captured(function, (2,), dtype=torch.int32), {}, backend="openvino", verify=False)
    assert torch.equal(compiled(x), function(x))
    with pytest.raises(ExecutionError, match=r"OpenVINO computes integers in 32 bits or in float32.* 16,777,216"):
        compiled(x + 1)


def test_integer_constants_beyond_24_bits_are_refused_where_they_are_computed_in_float32() -> None:
    table = torch.tensor([2**24 + 1, 7])
    for function in (lambda x: x > 2**24 + 1, lambda x: x == table):
        with pytest.raises(ExecutionError, match=r"OpenVINO computes aten.* on integers in float32.*16,777,216"):
            compile(captured(function, (2,), dtype=torch.int64), {}, backend="openvino")
    moved = compile(
        captured(lambda x: x.masked_fill(x > 0, 2**24 + 1), (2,), dtype=torch.int64), {}, backend="openvino"
    )
    assert moved(torch.tensor([1, -1])).tolist() == [2**24 + 1, -1]


def test_products_and_powers_of_integers() -> None:
    """Products are refused, and powers are multiplied."""
    x = torch.tensor([[5001, -70001], [3, 4097]], dtype=torch.int32)
    with pytest.raises(ExecutionError, match="computes products of integers in float32"):
        compile(captured(lambda x: x @ x, (2, 2), dtype=torch.int32), {}, backend="openvino")
    compiled = compile(captured(lambda x: (x**2, x.square(), x**3), (2, 2), dtype=torch.int32), {}, backend="openvino")
    assert [made.tolist() for made in compiled(x)] == [made.tolist() for made in (x**2, x.square(), x**3)]


def test_what_the_runtime_returns_otherwise_is_refused_in_one_sentence() -> None:
    """Instead of a RuntimeError of OpenVINO."""
    with pytest.raises(ConversionError, match=r"OpenVINO does not run _Function: it returns shape \[\] for .*kthvalue"):
        compile(captured(lambda x: x.kthvalue(2)[0], (4, 6)), {}, backend="openvino")


def test_what_is_not_converted_is_listed() -> None:
    """One sentence, then each operator with its shapes; no traces of C++."""
    ir = captured(lambda x: torch.linalg.svd(x)[1] + torch.special.i1(x[0]), (4, 4))
    with pytest.raises(ConversionError) as caught:
        compile(ir, {}, backend="openvino")
    said = str(caught.value)
    assert said.startswith("_Function cannot be converted to OpenVINO: unsupported operators:\n  ")
    assert "aten.special_i1.default 4 -> 4" in said
    assert ".cpp" not in said


def test_nothing_is_printed_written_or_reported(tmp_path: Path) -> None:
    """OpenVINO reports its use to Intel and writes files to the home folder; here it does neither."""
    program = """
import sys, torch, torch_ir
from torch_ir.backends import compile
ir = torch_ir.extract_ir(torch.nn.ReLU().eval(), (torch.ones(2),), strict=False)
compile(ir, {}, backend="openvino")(torch.ones(2))
sys.exit(any(name.startswith("openvino_telemetry") for name in sys.modules))
"""
    environment: dict[str, Any] = {**os.environ, "HOME": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-W", "ignore::FutureWarning:copyreg", "-c", program]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())
