"""The back end `iree`: models compiled through MLIR and run return the same results as eager."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import catalogue
from tests.graphs import tensor
from tests.proof import captured, module
from torch_ir import IR, ExecutionError, OpNode, TorchIRError, extract_ir
from torch_ir.backends import Compiled, compile
from torch_ir.ir import Dtype, Expr, Symbol, evaluate
from torch_ir.llm import extract_llm

pytest.importorskip("iree.compiler", reason="torch-ir[mlir] is not installed")
pytest.importorskip("iree.runtime", reason="torch-ir[mlir] is not installed")

UNSUPPORTED = {"embedding_bag", "fft", "gru", "message_passing"}  # of the catalogue; docs/mlir.md has the reasons


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A cache of compiled modules for these tests."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("TORCH_IR_CACHE", str(folder))
        yield folder


def equal(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


def compiled(model: nn.Module, *inputs: Any, **options: Any) -> Compiled:
    return compile(captured(model, *inputs, **options), model.state_dict(), backend="iree")


def proved(model: nn.Module, *inputs: Any) -> None:
    """Compile a model and compare one call."""
    with torch.no_grad():
        equal(compiled(model, *inputs)(*inputs), model(*inputs))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )


def depthwise() -> nn.Module:
    """The block of MobileNet: widen, filter each channel, narrow, all with batch norm."""
    return nn.Sequential(
        nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1),
    )  # fmt: skip


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)


@pytest.mark.parametrize(
    ("build", "shape"), [(small_cnn, (2, 3, 8, 8)), (depthwise, (1, 4, 9, 9)), (encoder, (2, 5, 8))]
)
def test_a_network_gives_what_eager_gives(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Convolutions with batch norm and pooling, depthwise ones, and attention."""
    torch.manual_seed(0)
    model = build().eval()
    for norm in (part for part in model.modules() if isinstance(part, nn.BatchNorm2d)):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    proved(model, torch.randn(shape))


def test_a_decoder_with_its_cache() -> None:
    """Nested inputs and outputs; the graph has them flattened."""
    entry = catalogue.find("decoder_kv_cache")
    torch.manual_seed(0)
    proved(entry.build(), *entry.inputs())


def test_one_module_for_every_batch() -> None:
    """The batch is read off the input, at any size, one included; the arithmetic on it is IREE's."""
    torch.manual_seed(0)
    parts = {"conv": nn.Conv1d(2, 4, 3), "head": nn.Linear(4, 3)}

    def forward(self: Any, x: Tensor) -> Tensor:
        mixed = torch.relu(self.conv(x)).mean(-1)
        return self.head(torch.cat([mixed, mixed * x.shape[0]])).reshape(x.shape[0] * 3, -1)

    model = module(forward, **parts)
    runs = compiled(model, torch.randn(4, 2, 6), dynamic_shapes={"x": {0: Dim("batch", min=1, max=64)}})
    with torch.no_grad():
        for batch in (1, 2, 7):
            x = torch.randn(batch, 2, 6)
            equal(runs(x), model(x))


def test_arithmetic_on_sizes() -> None:
    """Size expressions mean the same in Python and IREE, including division of negative numbers."""
    texts = [
        "n + 3",
        "2*n - 1",
        "-n // 2",
        "(n - 9) % 4",
        "max(n, 4, 6)",
        "min(n, 4)",
        "n**3",
        "sqrt(n) * 3 + n / 4 - 1",
    ]
    x = tensor("x", "n")
    nodes = [
        OpNode(
            f"full_{index}",
            "aten.full.default",
            [],
            [tensor(f"full_{index}", dtype="float64")],
            {"size": [], "fill_value": Expr(text), "dtype": Dtype("float64")},
            args=[],
        )
        for index, text in enumerate(texts)
    ]
    symbols = [Symbol("n", 1, 99, x, 0)]
    runs = compile(IR(nodes, [x], [node.outputs[0] for node in nodes], symbols=symbols), backend="iree", level=None)
    for size in (1, 2, 7, 10):
        wanted = [torch.tensor(evaluate(text, {"n": size}), dtype=torch.float64) for text in texts]
        equal(list(runs.run([torch.zeros(size)])), wanted)


def test_buffers_change_from_call_to_call() -> None:
    """The state is kept outside the module that IREE runs."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            self.calls += 1
            return x * self.calls, self.calls

    model, x = Counter().eval(), torch.ones(3)
    runs = compiled(model, x)
    for _ in range(3):
        equal(runs(x), model(x))


def test_dtypes_go_in_and_come_out() -> None:
    """Also dtypes that numpy lacks, and tensors without elements or dimensions."""
    model = module(
        lambda self, a, b, c, d, e: (a * 2, ~b, b.any(), c + 1, d.double().sum(), e + 1, (e.to(torch.int8), d.half()))
    )
    inputs = (
        torch.tensor([1.5, -2], dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([250, 3], dtype=torch.uint8),
        torch.tensor([[1.5], [2.5]]),
        torch.tensor(7),
    )
    proved(model, *inputs)


def test_what_depends_on_data_and_what_may_not_be() -> None:
    """A data-dependent size, and the assertion about it, which the executor checks."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        size = x.sum().item()
        torch._check(size >= 0)
        torch._check(size < 10)
        return torch.ones(size)

    runs = compile(
        captured(module(forward), torch.tensor([1, 2])), backend="iree", verify=False
    )  # random inputs would break the assertion
    equal(runs(torch.tensor([3, 4])), torch.ones(7))
    with pytest.raises(ExecutionError, match="the graph holds only where u0 <= 9"):
        runs(torch.tensor([30, 4]))


@pytest.mark.parametrize("name", ["control_flow", "while_loop"])
def test_branches_and_loops(name: str) -> None:
    """Both outcomes of a branch, and loops with data-dependent trip counts."""
    entry = catalogue.find(name)
    torch.manual_seed(0)
    model, (x,) = entry.build(), entry.inputs()
    runs = compiled(model, x)
    with torch.no_grad():
        for value in (x.abs(), -x.abs(), x * 0):
            equal(runs(value), model(value))


def test_operators_that_iree_refuses_are_taken_apart() -> None:
    """IREE fails on `isfinite` and on `prelu` of images, and stops at instance norm without weights."""
    torch.manual_seed(0)
    parts = {"norm": nn.InstanceNorm2d(3), "prelu": nn.PReLU(3)}
    model = module(lambda self, x: (self.prelu(self.norm(x)), torch.isfinite(x)), **parts)
    proved(model, torch.randn(2, 3, 4, 5))


def test_what_it_cannot_compile_is_listed_by_nodes() -> None:
    """One sentence, and operator, node and shapes of each; no stack trace."""
    graph = captured(module(lambda self, x: x.relu().as_strided((2, 2), (1, 1))), torch.randn(5))
    with pytest.raises(ExecutionError) as caught:
        compile(graph, backend="iree")
    assert str(caught.value).splitlines() == [
        "IREE does not support 1 of the graph's operators:",
        "  aten.as_strided.default  (as_strided)  float32[5] -> float32[2, 2]",
    ]


def test_compiled_modules_are_kept_and_hold_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time nothing is compiled, whatever the weights."""
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path))
    model, other, x = nn.Linear(64, 64).eval(), nn.Linear(64, 64).eval(), torch.randn(2, 64)
    graph = captured(model, x)
    compile(graph, model.state_dict(), backend="iree")
    (kept,) = (tmp_path / "iree").iterdir()
    assert model.weight.detach().numpy().tobytes()[:64] not in kept.read_bytes()
    monkeypatch.setattr("iree.compiler.tools.compile_str", None)  # were it called, it would fail
    with torch.no_grad():
        equal(compile(graph, other.state_dict(), backend="iree")(x), other(x))


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code is then not cached."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path / "file"))
    proved(module(lambda self, x: x + 1), torch.ones(2))


@pytest.mark.slow
def test_a_language_model_from_prompt_to_tokens() -> None:
    """Prefill and decode as two modules over one table of weights; batch, prompt and past are of any length."""
    transformers = pytest.importorskip("transformers", reason="torch-ir[transformers] is not installed")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 50}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    weights = transformers.LlamaForCausalLM(config).eval().state_dict()
    graph = extract_llm(config)
    entries = (graph, graph.functions["decode"])
    prefill, decode = (compile(entry, weights, backend="iree") for entry in entries)
    wanted_prefill, wanted_decode = (compile(entry, weights, backend="torch", level=None) for entry in entries)
    for shape in ((1, 3), (2, 7)):
        ids = torch.randint(50, shape)
        results = prefill.run([ids])
        equal(results, wanted_prefill.run([ids]))
        for _ in range(3):
            given = [results[0][:, -1].argmax(-1, keepdim=True), *results[1:]]
            results = decode.run(given)
            equal(results, wanted_decode.run(given))


@pytest.mark.slow
@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_the_catalogue(entry: catalogue.Entry) -> None:
    """Every model runs and equals eager, or is listed as unsupported on the page."""
    torch.manual_seed(0)
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    graph = extract_ir(copy.deepcopy(model), inputs, kwargs=kwargs, strict=False)
    if entry.name in UNSUPPORTED:
        with pytest.raises(TorchIRError, match="does not support"):
            compile(graph, model.state_dict(), backend="iree")
        return
    runs = compile(graph, model.state_dict(), backend="iree")
    with torch.no_grad():
        got = runs(*copy.deepcopy(inputs), **copy.deepcopy(kwargs))
        torch.testing.assert_close(got, model(*inputs, **kwargs), rtol=1e-3, atol=1e-4, equal_nan=True)


def overlapping(x: Tensor) -> Tensor:
    """Parts of a tensor that are written over others of its parts."""
    y = x.slice_scatter(x[:, :2], 1, 1, 3)
    y = y.slice_scatter(y[:2] * 1, 0, -2)
    y = y.slice_scatter(y[:, :2], 1, 0, 4, 2)
    y = y.select_scatter(y[-1], 0, -2)
    z = y.clone()
    z[:, 1:] = y[:, :-1]
    return z


def test_slices_of_a_tensor_may_be_written_over_it() -> None:
    """At fixed and at symbolic sizes, with steps and negative bounds."""
    model = module(lambda self, x: overlapping(x))
    proved(model, torch.randn(5, 4))
    open_sizes = captured(model, torch.randn(5, 4), dynamic_shapes=({0: Dim("n", min=3, max=64)},))
    run = compile(open_sizes, {}, backend="iree")
    for rows in (3, 7):
        x = torch.randn(rows, 4)
        equal(run(x), overlapping(x))


@pytest.mark.parametrize("name", ["index_copy", "index_add"])
def test_indexed_writes_of_a_part_of_the_tensor_are_refused(name: str) -> None:
    """IREE would overwrite elements that it has yet to read; what is computed from the tensor is written apart."""

    def write(x: Tensor, part: Tensor) -> Tensor:
        changed: Tensor = getattr(x, name)(1, torch.tensor([1, 2]), part)
        return changed

    with pytest.raises(ExecutionError, match="overwrites elements that it has yet to read"):
        compiled(module(lambda self, x: write(x, x[:, :2])), torch.randn(3, 4))
    proved(module(lambda self, x: write(x, x[:, :2] * x[:, 2:])), torch.randn(3, 4))


def test_writes_into_tensors_of_zeros_of_a_symbolic_size_are_refused() -> None:
    """IREE would write into all of them; at fixed sizes, it copies them."""

    def forward(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        at = torch.zeros(1, 4, dtype=torch.int64)
        return x.new_zeros(x.shape).scatter_add(0, at, x[:1]), torch.zeros_like(x)

    proved(module(forward), torch.randn(5, 4))
    with pytest.raises(ExecutionError, match="writes into all tensors of the same size and value"):
        compiled(module(forward), torch.randn(5, 4), dynamic_shapes=({0: Dim("n", min=3, max=64)},))
