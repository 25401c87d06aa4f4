"""Dynamic sizes: names, ranges, constraints, and runs at each size."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from tests.proof import agrees, captured, module, ops, verdict
from torch_ir import CaptureWarning, ExecutionError, ExportError, IRExecutor, export_model


def rows(count: int) -> Tensor:
    return torch.randn(count, 4)


LINEAR = module(lambda self, x: self.layer(x).relu().reshape(-1) * x.shape[0], layer=nn.Linear(4, 4))


# -- what the file says -----------------------------------------------------------------------------------------------


def test_expressions_ranges_and_bindings() -> None:
    """Shapes are expressions over the user's names; each symbol has a range and the place that binds it."""
    ir = captured(LINEAR, rows(5), dynamic_shapes={"x": {0: Dim("batch", min=2, max=64)}})
    document = json.loads(ir.to_json())
    assert document["graph_inputs"] == [{"name": "x", "shape": ["batch", 4], "dtype": "float32"}]
    assert document["symbols"] == {"batch": {"min": 2, "max": 64, "tensor": "x", "dim": 0}}
    assert document["graph_outputs"][0]["shape"] == ["4 * batch"]
    assert document["nodes"][-1]["attrs"] == {"other": {"$expr": "batch"}}


def test_sizes_take_no_nodes() -> None:
    """Arithmetic on sizes is in the expressions, not in the graph."""
    ir = captured(LINEAR, rows(5), dynamic_shapes={"x": {0: Dim("batch")}})
    assert ops(ir) == ["aten.linear.default", "aten.relu.default", "aten.reshape.default", "aten.mul.Tensor"]


def test_dim_without_bounds() -> None:
    """A Dim without bounds starts at 0: torch's own least sample of 2 is not the user's."""
    ir = captured(LINEAR, rows(5), dynamic_shapes={"x": {0: Dim("batch")}})
    assert ir.symbols["batch"].range == "0 <= batch"


def test_names_are_kept_when_dims_are_shared() -> None:
    """A Dim that several inputs share is one symbol under its name, in positional, keyword and nested inputs."""
    batch, width = Dim("batch", max=32), Dim("width")
    model = module(lambda self, d, *, mask: d["a"] + d["b"][0] * mask)
    ir = captured(
        model,
        {"a": rows(3), "b": [rows(3)]},
        kwargs={"mask": rows(3)},
        dynamic_shapes={
            "d": {"a": {0: batch, 1: width}, "b": [{0: batch, 1: width}]},
            "mask": {0: batch, 1: width},
        },
    )
    assert [tensor.shape for tensor in ir.graph_inputs] == [("batch", "width")] * 3
    assert {name: (symbol.tensor.name, symbol.dim) for name, symbol in ir.symbols.items()} == {
        "batch": ("d_a", 0),
        "width": ("d_a", 1),
    }
    executor = IRExecutor(ir, {})
    inner = ({"a": torch.ones(2, 7), "b": [torch.ones(2, 7)]},)
    assert torch.equal(executor(*inner, mask=torch.ones(2, 7)), torch.full((2, 7), 2.0))


def test_derived_dims() -> None:
    """`2*seq` and `seq + 1` are expressions over seq; seq is read off an input where it stands alone."""
    seq = Dim("seq", min=2, max=64)
    model = module(lambda self, longer, x, double: (torch.cat([x, double]).reshape(3, -1), longer[:-1] + x))
    inputs = (rows(5), rows(4), rows(8))
    ir = captured(model, *inputs, dynamic_shapes=({0: seq + 1}, {0: seq}, {0: 2 * seq}))
    assert [tensor.shape[0] for tensor in ir.graph_inputs] == ["seq + 1", "seq", "2 * seq"]
    assert (ir.symbols["seq"].range, ir.symbols["seq"].tensor.name) == ("2 <= seq <= 64", "x")
    assert agrees(ir, model, rows(8), rows(7), rows(14))
    with pytest.raises(ExecutionError, match=r"input 'double' has shape \[13, 4\], the graph takes \['2 \* seq', 4\]"):
        IRExecutor(ir, {})(rows(8), rows(7), rows(13))


def test_a_dim_that_never_stands_alone() -> None:
    """Where only `2*seq` is an input, seq is solved for, its range is the user's, and odd sizes are refused."""
    model = module(lambda self, x: x.reshape(2, -1))
    ir = captured(model, torch.randn(8), dynamic_shapes=({0: 2 * Dim("seq", min=2, max=64)},))
    assert (ir.symbols["seq"].range, ir.symbols["seq"].tensor.name) == ("2 <= seq <= 64", "x")
    assert agrees(ir, model, torch.randn(12))
    with pytest.raises(ExecutionError, match=r"input 'x' has size 13 in dimension 0, which must be 2 \* seq"):
        IRExecutor(ir, {})(torch.randn(13))


def test_automatic_dims() -> None:
    """`Dim.AUTO` finds the dynamic sizes: equal sizes get one symbol with a short name."""
    model = module(lambda self, x, y: x + y)
    ir = captured(model, rows(3), rows(3), dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}))
    assert [tensor.shape for tensor in ir.graph_inputs] == [("s0", 4), ("s0", 4)]
    assert agrees(ir, model, rows(7), rows(7))


def test_automatic_dims_that_do_not_vary_are_said() -> None:
    """If the model fixes a `Dim.AUTO` size, a warning names input, dimension and size."""

    def forward(self: Any, x: Tensor, y: Tensor) -> Tensor:
        for i in range(x.shape[0]):
            y = y + x[i]
        return y

    with pytest.warns(CaptureWarning, match="asked to vary does not: dimension 0 of 'x' is always 3$"):
        ir = captured(module(forward), rows(3), rows(5), dynamic_shapes=([Dim.AUTO(max=9), None], {0: Dim.AUTO}))
    assert [tensor.shape for tensor in ir.graph_inputs] == [(3, 4), ("s0", 4)]


# -- running at many sizes --------------------------------------------------------------------------------------------


def pooled(self: Any, x: Tensor) -> Tensor:
    return F.interpolate(F.max_pool2d(self.conv(x), 3, 2, 1), scale_factor=1.5)


def sliced(self: Any, x: Tensor) -> Any:
    n = x.shape[0]
    return x[:-3], x[-2:], torch.arange(-n // 2, 0), (-n) % 3, n - 7, -n // 4, n / 3, n**2


def attention(self: Any, x: Tensor) -> Tensor:
    batch, seq, _ = x.shape
    q, k, v = self.qkv(x).reshape(batch, seq, 3, 2, 4).permute(2, 0, 3, 1, 4)
    mask = torch.ones(seq, seq, dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(batch, seq, -1)


@pytest.mark.parametrize(
    ("model", "sample", "dims", "others"),
    [
        (LINEAR, (5, 4), {0: Dim("batch")}, [(1, 4), (2, 4), (64, 4), (0, 4)]),
        (
            module(pooled, conv=nn.Conv2d(1, 2, 3, padding=1)),
            (2, 1, 16, 24),
            {0: Dim("batch"), 2: Dim("h", min=8), 3: Dim("w", min=8)},
            [(1, 1, 8, 9), (3, 1, 32, 33)],
        ),
        (module(sliced), (9,), {0: Dim("n", min=5)}, [(5,), (6,), (7,), (20,)]),
        (
            module(attention, qkv=nn.Linear(8, 24)),
            (2, 5, 8),
            {0: Dim("batch"), 1: Dim("seq", max=32)},
            [(1, 1, 8), (1, 7, 8), (4, 1, 8), (3, 32, 8)],
        ),
    ],
    ids=["linear", "pooling", "slices", "attention"],
)
def test_one_extraction_runs_at_every_size(
    model: nn.Module, sample: tuple[int, ...], dims: dict[int, Any], others: list[tuple[int, ...]]
) -> None:
    """A graph extracted once returns the model's results at other sizes, including 1."""
    ir = captured(model, torch.randn(sample), dynamic_shapes=({**dict.fromkeys(range(len(sample))), **dims},))
    for size in (sample, *others):
        assert agrees(ir, model, torch.randn(size)), size


def test_verification_at_another_size() -> None:
    """Verification runs the graph at the sizes of the test inputs."""
    ir = captured(LINEAR, rows(5), dynamic_shapes={"x": {0: Dim("batch")}})
    report = verdict(ir, LINEAR, rows(9))
    assert report.is_valid, report
    assert report.output_details[0]["shape"] == [36]


def test_in_place_code_with_dynamic_sizes() -> None:
    """Functionalised code keeps names, ranges and constraints."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = x + 1
        y[:-1] = x[1:]
        self.seen += x.shape[0]
        return y

    model = module(forward, buffers={"seen": torch.zeros(())})
    ir = captured(model, rows(5), dynamic_shapes={"x": {0: Dim("time", min=3, max=9)}})
    assert ir.symbols["time"].range == "3 <= time <= 9"
    assert verdict(ir, model, rows(4)).is_valid


# -- sizes that cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((rows(1), rows(1)), "batch = 1 is out of range: 2 <= batch <= 8"),
        ((rows(9), rows(9)), "batch = 9 is out of range: 2 <= batch <= 8"),
        ((rows(4), rows(5)), r"input 'y' has shape \[5, 4\], the graph takes \['batch', 4\]"),
        ((torch.randn(4, 5), rows(4)), r"input 'x' has shape \[4, 5\], the graph takes \['batch', 4\]"),
        ((torch.randn(4), rows(4)), r"input 'x' has shape \[4\], the graph takes \['batch', 4\]"),
        ((rows(4).double(), rows(4)), "input 'x' is float64, the graph takes float32"),
    ],
    ids=["too small", "too large", "unequal", "static", "rank", "dtype"],
)
def test_wrong_sizes_are_refused(inputs: tuple[Tensor, Tensor], message: str) -> None:
    """Invalid inputs are rejected before anything runs, with a message."""
    batch = Dim("batch", min=2, max=8)
    ir = captured(module(lambda self, x, y: x + y), rows(4), rows(4), dynamic_shapes=({0: batch}, {0: batch}))
    with pytest.raises(ExecutionError, match=message):
        IRExecutor(ir, {})(*inputs)


def checked(self: Any, x: Tensor) -> Tensor:
    torch._check(x.shape[0] != 4)
    return x.reshape(-1, 3)


def branching(self: Any, x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] > 5 else x - 1


def special_at_one(self: Any, x: Tensor) -> Tensor:
    return x - 1 if x.shape[0] == 1 else x + 1


def special_when_empty(self: Any, x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] else x.new_zeros(1)


@pytest.mark.parametrize(
    ("forward", "good", "bad", "message"),
    [
        (special_at_one, 2, 1, "the graph holds only where s0 != 1, but s0 = 1"),
        (special_when_empty, 1, 0, "the graph holds only where s0 >= 1, but s0 = 0"),
        (checked, 9, 4, r"the graph holds only where s0 != 4, but s0 = 4"),
        (checked, 12, 8, r"the graph holds only where \(s0 % 3\) == 0, but s0 = 8"),
        (branching, 7, 5, "s0 = 5 is out of range: 6 <= s0"),
    ],
)
def test_constraints_are_kept_and_checked(forward: Callable[..., Any], good: int, bad: int, message: str) -> None:
    """The model's conditions on sizes are in the file as text, and an error shows that text."""
    model = module(forward)
    ir = captured(model, torch.randn(6), dynamic_shapes=({0: Dim.AUTO},))
    assert agrees(ir, model, torch.randn(good))
    with pytest.raises(ExecutionError, match=message):
        IRExecutor(ir, {})(torch.randn(bad))


def even(self: Any, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0] // 2, 2) if x.shape[0] % 2 == 0 else x


@pytest.mark.parametrize(
    ("forward", "dim", "message"),
    [
        (branching, Dim("n"), "0 <= n was asked for, but the model holds only where 6 <= n"),
        (branching, Dim("n", min=2, max=9), "2 <= n <= 9 was asked for, but the model holds only where 6 <= n <= 9"),
        (even, Dim("n"), r"n = \d*[13579] is within the range, but the model holds only where \(n % 2\) == 0"),
        (lambda self, x: x.reshape(2, 4), Dim("n"), "n, dimension 0 of 'x', is always 8"),
    ],
)
def test_a_promise_that_the_model_breaks(forward: Callable[..., Any], dim: Any, message: str) -> None:
    """A Dim that the model violates is an error with a counterexample."""
    with pytest.raises(ExportError, match=f"cannot vary as asked: .*{message}"):
        captured(module(forward), torch.randn(8), dynamic_shapes=({0: dim},))


def test_a_decision_within_the_range_is_said() -> None:
    """If the model treats an allowed size as a special case, a warning says so at capture."""
    told = "a size does not vary as asked: n = 1 is within the range, but the model holds only where n != 1"
    with pytest.warns(CaptureWarning, match=told):
        ir = captured(module(special_at_one), torch.randn(6), dynamic_shapes=({0: Dim("n", min=1)},))
    assert agrees(ir, module(special_at_one), torch.randn(2))
    captured(module(special_at_one), torch.randn(6), dynamic_shapes=({0: Dim("n", min=2)},))


def attending(self: Any, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """One step of attention with a cache; before 2.15, torch cannot prove that its sizes are fine."""
    keys = torch.cat([past, x], dim=2)
    wide = keys[:, :, None].expand(-1, -1, 2, -1, -1).reshape(keys.shape[0], 4, keys.shape[2], 8)
    return F.scaled_dot_product_attention(x.repeat(1, 2, 1, 1), wide, wide), keys


def attending_by_parity(self: Any, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """The same, with a condition that holds for every size and that no torch can prove."""
    attended, keys = attending(self, x, past)
    length = past.shape[2]
    return attended if (length * length + length) % 2 == 0 else -attended, keys


def test_a_promise_that_torch_cannot_prove() -> None:
    """A model that torch refuses is captured under the user's names; the unproved condition is a constraint."""
    model = module(attending_by_parity)
    batch, past = Dim("batch", min=1, max=16), Dim("past", min=1, max=64)
    shapes = ({0: batch}, {0: batch, 2: past})
    inputs = (torch.randn(3, 2, 1, 8), torch.randn(3, 2, 5, 8))
    with pytest.raises(ExportError, match="cannot vary as asked"):
        export_model(model, inputs, strict=False, dynamic_shapes=shapes)
    ir = captured(model, *inputs, dynamic_shapes=shapes)
    assert [tensor.shape for tensor in ir.graph_inputs] == [("batch", 2, 1, 8), ("batch", 2, "past", 8)]
    assert {symbol.range for symbol in ir.symbols.values()} == {"1 <= batch <= 16", "1 <= past <= 64"}
    assert "((past * (past + 1)) % 2) == 0" in ir.constraints
    for rows, length in ((1, 1), (2, 7), (5, 64)):
        assert agrees(ir, model, torch.randn(rows, 2, 1, 8), torch.randn(rows, 2, length, 8))
    with pytest.raises(ExecutionError, match="past = 65 is out of range: 1 <= past <= 64"):
        IRExecutor(ir, {})(torch.randn(1, 2, 1, 8), torch.randn(1, 2, 65, 8))


def test_derived_dims_that_torch_cannot_prove() -> None:
    """Of a Dim such as `past + 1` it is checked that the model agrees."""

    def masked(self: Any, x: Tensor, past: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        attended, keys = attending(self, x, past)
        return attended, keys * mask[:, None, :, None]

    past = Dim("past", min=1, max=64)
    inputs = (torch.randn(3, 2, 1, 8), torch.randn(3, 2, 5, 8), torch.randn(3, 6))
    ir = captured(module(masked), *inputs, dynamic_shapes=({}, {2: past}, {1: past + 1}))
    assert ir.graph_inputs[2].shape == (3, "past + 1")
    grown = Dim("grown", min=2, max=65)
    with pytest.raises(ExportError, match=r"grown, dimension 1 of 'mask', is always past \+ 1"):
        captured(module(masked), *inputs, dynamic_shapes=({}, {2: past}, {1: grown}))
