"""Operator sets: what `to_opset` leaves and reports, and the fused operators against their page and their files."""

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.proof import assert_near, captured, module
from torch_ir import IRExecutor, extract_ir, load_ir, optimize, to_opset
from torch_ir.errors import CommandError
from torch_ir.passes.fuse.fused_layers import ACTIVATIONS, CONVOLUTIONS, GATES, LAYERS

PAGE = Path(__file__).parents[1] / "docs" / "operator-sets.md"
STORED = Path(__file__).parent / "data" / "format_1" / "fused.json"
pytestmark = pytest.mark.usefixtures("_seeded")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(self.fc(self.norm(x)))


# -- to_opset ---------------------------------------------------------------------------------------------------------


def test_core_aten_is_the_set_that_torch_tags() -> None:
    """Every operator has torch's tag, and the results are those of the model."""
    model, x = nn.Sequential(Layer(), Layer(), nn.Softmax(-1)).eval(), torch.randn(2, 4)
    graph, report = to_opset(captured(model, x), "core-aten")
    assert report.is_complete
    assert (report.name, report.torch) == ("core-aten", torch.__version__.partition("+")[0])
    for node in graph.nodes:
        _, name, overload = node.op_type.split(".")
        assert torch.Tag.core in getattr(getattr(torch.ops.aten, name), overload).tags
    assert sum(report.used.values()) == len(graph.nodes)
    assert report.used.keys() <= report.operators
    with torch.no_grad():
        assert_near(IRExecutor(graph, model.state_dict())(x), model(x))
    assert str(report).endswith(f": complete, {len(report.used)} operators used")


def test_prims_leave_what_has_no_reference() -> None:
    """A matrix product is left, with its shapes and the reason; everything else is a primitive."""
    model, x = nn.Sequential(Layer(), Layer()).eval(), torch.randn(2, 4)
    graph, report = to_opset(captured(model, x).fold_blocks(), "prims")
    assert [node.op_type for node in graph.nodes] == [f"{__name__}.Layer"] * 2  # the function is decomposed, and kept
    (left,) = report.left
    assert str(left) == "aten.mm.default  1x  2x4 4x4 -> 2x4  (torch has no decomposition of it)"
    assert all(name.startswith("prims.") for name in report.used)
    with torch.no_grad():
        assert_near(IRExecutor(graph, model.state_dict())(x), model(x))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32])
def test_primitives_return_the_dtypes_that_the_graph_states(dtype: torch.dtype) -> None:
    """Torch's kernels of some primitives return int64 for narrower integers: these operators are left as they are."""

    def computed(x: Tensor) -> tuple[Tensor, ...]:
        return (x.cumsum(0, dtype=torch.int32), x.sum(dtype=dtype), x.prod(0, dtype=torch.int16), x + x, x.signbit())

    x = torch.tensor([0, 1, 1, 3]).to(dtype)
    graph, _ = to_opset(captured(module(lambda _, x: computed(x)), x), "prims")
    for found, tensor, wanted in zip(IRExecutor(graph, {})(x), graph.graph_outputs, computed(x), strict=True):
        assert str(found.dtype) == f"torch.{tensor.dtype}"
        assert_near(found, wanted)


@pytest.mark.parametrize("taken", [lambda y: y[:, 1:], lambda y: y.narrow(1, 0, 2), lambda y: y.diagonal()])
def test_parts_of_views_are_taken_from_the_view(taken: Callable[[Tensor], Tensor]) -> None:
    """Torch's primitives take them from the storage, whose first element need not be that of the view."""
    model, x = module(lambda _, x: taken(x.chunk(2, 1)[1]) * 2), torch.randn(4, 6)
    graph, _ = to_opset(captured(model, x), "prims")
    assert_near(IRExecutor(graph, {})(x), model(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_batch_norm_of_half_precision_becomes_primitives(dtype: torch.dtype) -> None:
    """Its kernel returns empty statistics in inference, and torch's shape rule others; nothing reads them."""
    model, x = nn.BatchNorm1d(3).to(dtype).eval(), torch.randn(4, 3).to(dtype)
    model.running_var.uniform_(0.5, 2)
    graph, report = to_opset(captured(model, x), "prims")
    assert report.is_complete, str(report)
    with torch.no_grad():
        torch.testing.assert_close(IRExecutor(graph, model.state_dict())(x), model(x))


@pytest.mark.parametrize("part", ["real", "imag"])
def test_parts_of_conjugated_numbers_stay(part: str) -> None:
    """Torch's decomposition does not read them; the one of other numbers of the same shape is not used for them."""
    model = module(lambda _, x: (getattr(x * 1j, part), getattr((x * 2).conj(), part)))
    x = torch.randn(2, 3, dtype=torch.complex64)
    graph, report = to_opset(captured(model, x), "core-aten")
    assert {left.op_type: left.nodes for left in report.left}[f"aten.{part}.default"] == 1
    for found, wanted in zip(IRExecutor(graph, {})(x), model(x), strict=True):
        assert_near(found, wanted)


def test_a_list_of_operators_is_a_set_too() -> None:
    """Overloads are meant by the name alone, and fused operators that are not listed are inlined."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(2, 4)
    fused, _ = optimize(captured(model, x), "full")
    graph, report = to_opset(fused, ["aten.addmm", "aten.permute", "aten.relu"])
    assert report.is_complete
    assert {node.op_type for node in graph.nodes} <= report.operators
    kept, report = to_opset(fused, ["fused.linear_relu"])
    assert [node.op_type for node in kept.nodes] == ["fused.linear_relu"]
    assert [left.op_type for left in report.left] == [], "what is inside an allowed call is not left"
    assert to_opset(fused, "core")[1].digest == to_opset(fused, "core-aten")[1].digest


def test_open_sizes_are_decomposed_where_the_rule_holds_for_all() -> None:
    """And the graph runs at other sizes."""
    model = Layer().eval()
    ir = captured(model, torch.randn(3, 4), dynamic_shapes={"x": {0: Dim("rows", min=2)}})
    graph, report = to_opset(ir, "core-aten")
    assert report.is_complete, str(report)
    x = torch.randn(5, 4)
    with torch.no_grad():
        assert_near(IRExecutor(graph, model.state_dict())(x), model(x))


def test_slices_of_one_projection_are_decomposed_with_open_sizes() -> None:
    """The strides of query, key and value, such as `24 * seq`, are no product of their own sizes."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = (part.transpose(1, 2) for part in self.qkv(x).unflatten(-1, (3, 2, 4)).unbind(2))
            return nn.functional.scaled_dot_product_attention(query, key, value)

    model = Attention().eval()
    shapes = {"x": {0: Dim("batch", min=1, max=6), 1: Dim("seq", min=1, max=24)}}
    graph, report = to_opset(captured(model, torch.randn(2, 5, 8), dynamic_shapes=shapes), "core-aten")
    assert report.is_complete, str(report)
    for size in ((1, 1), (3, 24)):
        x = torch.randn(*size, 8)
        with torch.no_grad():
            assert_near(IRExecutor(graph, model.state_dict())(x), model(x))


@pytest.mark.parametrize(("given", "said"), [("core-atem", "core-aten"), (["aten.adm"], "aten.a"), ([], "empty")])
def test_unknown_sets_are_one_sentence(given: Any, said: str) -> None:
    """With the nearest name."""
    with pytest.raises(CommandError, match=said):
        to_opset(captured(module(lambda self, x: x + 1), torch.ones(2)), given)


# -- fused operators --------------------------------------------------------------------------------------------------


def rows() -> dict[str, list[str]]:
    """The table of the page: the columns of each operator, or family of operators."""
    found = re.findall(r"^\| `fused\.(\w+)` \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: [column.strip() for column in rest.split("|")] for name, rest in found}


def names_of(kind: str) -> list[str]:
    (line,) = re.findall(rf"^- {kind}: (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return re.findall(r"`(\w+)`", line)


def family_of(name: str) -> str:
    """The row of the table for an operator."""
    kinds = {kind: "|".join(names_of(kind)) for kind in ("LAYER", "CONVOLUTION", "ACTIVATION", "GATE")}
    found = [
        row
        for row in rows()
        if re.fullmatch(re.sub("|".join(kinds), lambda match: f"(?:{kinds[match[0]]})", row), name)
    ]
    assert len(found) == 1, f"fused.{name} is documented {len(found)} times"
    return found[0]


def short(names: tuple[str, ...]) -> list[str]:
    return sorted(name.removeprefix("aten.").removesuffix(".default") for name in names)


def test_every_fused_operator_is_on_the_page() -> None:
    """The lists are those of the passes, and each combination is one row."""
    lists = {"LAYER": LAYERS, "CONVOLUTION": CONVOLUTIONS, "ACTIVATION": ACTIVATIONS, "GATE": GATES}
    assert {kind: names_of(kind) for kind in lists} == {kind: short(names) for kind, names in lists.items()}
    layers, convolutions, activations = short(LAYERS), short(CONVOLUTIONS), short(ACTIVATIONS)
    made = [f"{layer}_{activation}" for layer, activation in product(layers, activations)]
    made += [f"{one}_add" for one in convolutions]
    made += [f"{one}_add_{activation}" for one, activation in product(convolutions, activations)]
    made += [f"{gate}_{end}" for gate, end in product(short(GATES), ("mul", "mlp"))]
    assert {family_of(name) for name in [*made, "rms_norm", "rotary", "elementwise"]} == set(rows())


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, gate)) * F.linear(x, up), down)


F = nn.functional
ROWS, SQUARE = torch.randn(2, 4), torch.randn(4, 4)
IMAGES = [torch.randn(1, 2, 3, 3), torch.randn(2, 2, 1, 1), torch.randn(1, 2, 3, 3)]
CALLS: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
    "linear_relu": (lambda x, w, b: torch.relu(F.linear(x, w, b)), [ROWS, SQUARE, ROWS[0]]),
    "conv2d_add": (lambda x, w, o: F.conv2d(x, w) + o, IMAGES),
    "conv2d_add_silu": (lambda x, w, o: F.silu(F.conv2d(x, w) + o), IMAGES),
    "silu_mul": (lambda gate, up: F.silu(gate) * up, [ROWS, ROWS + 1]),
    "gelu_mlp": (gated_mlp, [ROWS, SQUARE, SQUARE + 1, SQUARE + 2]),
    "rms_norm": (rms, [ROWS, ROWS[0]]),
    "rotary": (rotated, [ROWS, ROWS + 1, ROWS + 2]),
}
PASSES = ["fuse-norms", "fuse-rotary", "fuse-gates:whole=true", "fuse-activations"]


@pytest.mark.parametrize("name", CALLS)
def test_a_fused_operator_is_as_documented(name: str) -> None:
    """It has the arguments and attributes of its row, and computes what the function does."""
    function, inputs = CALLS[name]
    graph, _ = optimize(captured(module(lambda self, *given: function(*given)), *inputs), passes=PASSES)
    (call,) = graph.nodes
    assert call.op_type == f"fused.{name}"
    _, arguments, attributes, since = rows()[family_of(name)]
    assert set(call.args) <= set(re.findall(r"`(\w+)`", arguments))
    assert set(call.attrs) - {"function"} == set(re.findall(r"`(\w+)`", attributes))
    assert since == "0.1.0"
    assert_near(IRExecutor(graph, {})(*inputs), function(*inputs))


def test_files_with_fused_operators_load_for_ever() -> None:
    """A file of the first format: it runs with the meaning of the page, and inlines to ATen."""
    ir = load_ir(STORED)
    names = [node.op_type.removeprefix("fused.") for node in ir.nodes if node.is_call]
    assert set(names) == set(CALLS)
    inputs = [tensor for _, given in CALLS.values() for tensor in given]
    wanted = [function(*given) for function, given in CALLS.values()]
    assert_near(list(IRExecutor(ir, {})(*inputs)), wanted)
    assert all(node.op_type.startswith("aten.") for node in ir.at_level("aten").nodes)


# Each function with one of the sizes, and with the others where every sweep is in full.
ROLLED = [
    pytest.param(function, named, marks=() if place == number else pytest.mark.slow)
    for place, function in enumerate(("roll", "fftshift", "ifftshift"))
    for number, named in enumerate((("n", 200), ("length", 4000), ("t", None)))
]


@pytest.mark.parametrize(("function", "named"), ROLLED)
def test_halves_of_odd_sizes_are_decomposed(function: str, named: tuple[str, int | None]) -> None:
    """The decomposition rolls by `n - n // 2`, which is `n // 2` at even sizes only."""

    class Rolled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.roll(x.shape[0] // 2, 0) if function == "roll" else getattr(torch.fft, function)(x)

    rows = Dim(named[0], min=2, max=named[1])
    ir = extract_ir(Rolled().eval(), (torch.arange(8.0),), strict=False, dynamic_shapes=({0: rows},))
    for name in ("core-aten", "prims"):
        made, _ = to_opset(ir, name)
        for size in range(2, 14):
            x = torch.arange(float(size))
            assert torch.equal(IRExecutor(made)(x), Rolled()(x))


def test_a_size_that_is_written_otherwise_is_the_same_output() -> None:
    """A pass may replace `4 * m // m` in the shape of an output by 4."""

    class Padded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.pad(x, (0, -x.shape[0] % 4)).reshape(-1, 4) * 2

    rows = Dim("n", min=8, max=200)
    ir = extract_ir(Padded().eval(), (torch.arange(24.0),), strict=False, dynamic_shapes=({0: rows},))
    better, _ = optimize(ir, "full")
    x = torch.arange(13.0)
    assert torch.equal(IRExecutor(better)(x), Padded()(x))


@pytest.mark.parametrize("limit", [3, 6])
def test_attributes_that_differ_at_small_sizes_are_decomposed(limit: int) -> None:
    """`max(0, limit - n)` is 0 at most sizes, and `min(n, limit)` is `limit`."""

    class Padded(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            rows = x.shape[0]
            return nn.functional.pad(x, (0, 0, 0, max(0, limit - rows))), x[: min(rows, limit)] * 2

    ir = extract_ir(Padded().eval(), (torch.ones(9, 4),), strict=False, dynamic_shapes=({0: Dim.AUTO},))
    for graph in (to_opset(ir, "core-aten")[0], to_opset(ir, "prims")[0], optimize(ir, "full")[0]):
        for size in range(9):
            x = torch.randn(size, 4)
            assert all(map(torch.equal, IRExecutor(graph)(x), Padded()(x)))
