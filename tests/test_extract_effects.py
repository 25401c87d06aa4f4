"""extract_ir: writes, regions, custom operators and control flow are captured exactly, in functional form."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as torch_map
from torch.export import Dim
from torch.nn.attention.flex_attention import flex_attention

from tests.proof import captured, module, ops, proved, quiet, verdict
from torch_ir import (
    IR,
    CaptureWarning,
    ConversionError,
    IRExecutor,
    extract_ir,
)

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


# -- writing ---------------------------------------------------------------------------------------------------------


def views(self: Any, x: Tensor) -> Any:
    y = x * 2
    y[1:3] = 5.0
    y[:, 0].mul_(3)
    y.t()[1].add_(1)
    y[0, 2] += 1
    return y


def masked(self: Any, x: Tensor) -> Any:
    y = x.clone()
    y.masked_fill_(y > 0, -1.0)
    y[y < -0.5] = 7.0
    return y


def two_views(self: Any, x: Tensor) -> Any:
    y = x * 1
    a, b = y[:2], y[1:]
    a.add_(1)
    b.mul_(2)
    a.sub_(3)
    b.add_(a.sum())
    return y, a, b


def same_view(self: Any, x: Tensor) -> Any:
    y = x + 1
    y.view(3, 4).add_(1)
    z = y.detach()
    z.mul_(2)
    return y, z


def expanded(self: Any, x: Tensor) -> Any:
    y = x[:1] + 1
    wide = y.expand(3, 4)
    y.add_(1)
    return wide * 1


def idle_dropout(self: Any, x: Tensor) -> Any:
    y = x + 1
    z = F.dropout(y, 0.5, training=False)
    z.add_(1)
    return y, z


def idle_dropout_of_input(self: Any, x: Tensor) -> Any:
    F.dropout(x, 0.5, training=False).add_(1)
    return x * 2


def promotion(self: Any, x: Tensor) -> Any:
    y = x + 1
    y.add_(torch.full((4,), 0.1, dtype=torch.float64))
    n = torch.arange(4)
    n *= 2
    return y, n


def augmented(self: Any, x: Tensor) -> Any:
    y = x * 2
    y += 1
    y *= 2
    y /= 3
    y -= 1
    y **= 2
    y //= 2
    return y


def reshaping(self: Any, x: Tensor) -> Any:
    y = x + 1
    y.transpose_(0, 1).add_(1)
    y.unsqueeze_(0)
    y.squeeze_()
    return y


def chunks(self: Any, x: Tensor) -> Any:
    y = x + 1
    a, b = y.chunk(2, 1)
    a.add_(1)
    b.copy_(a)
    first, *_ = y.unbind(0)
    first.relu_()
    return y, a


def out_argument(self: Any, x: Tensor) -> Any:
    out = torch.empty(3, 4)
    torch.add(x, 1, out=out)
    return out


def complex_parts(self: Any, x: Tensor) -> Any:
    y = torch.complex(x, x * 2)
    y.real.add_(1)
    torch.view_as_real(y)[..., 1].mul_(2)
    return y, y.conj(), y.conj().imag


def input_written(self: Any, x: Tensor) -> Any:
    x.add_(1)
    x[0].mul_(2)
    return x * 2


def input_written_and_returned(self: Any, x: Tensor) -> Any:
    return x.relu_()


@pytest.mark.parametrize(
    "forward",
    [
        views,
        masked,
        two_views,
        same_view,
        expanded,
        idle_dropout,
        idle_dropout_of_input,
        promotion,
        augmented,
        reshaping,
        chunks,
        out_argument,
        complex_parts,
        input_written,
        input_written_and_returned,
    ],
    ids=lambda forward: forward.__name__,
)
def test_in_place_code(forward: Callable[..., Any]) -> None:
    """Code that writes in place becomes a graph that writes to nothing and leaves the same values behind."""
    ir = proved(module(forward), X)
    assert not [node for node in ir.nodes if node.op_type.split(".")[1].endswith("_")]


def test_in_place_keeps_operators_whole() -> None:
    """`relu_` after a convolution is `relu`: one node, no copies, and nothing else is taken apart."""
    model = module(
        lambda self, x: self.norm(self.act(self.conv(x))),
        conv=nn.Conv2d(3, 4, 3),
        act=nn.ReLU(inplace=True),
        norm=nn.BatchNorm2d(4),
    )
    assert ops(proved(model, torch.randn(1, 3, 8, 8))) == [
        "aten.conv2d.default",
        "aten.relu.default",
        "aten.batch_norm.default",
    ]


def test_inputs_that_are_written_are_said() -> None:
    """An input that the model changes is in `mutations`; running the graph leaves the caller's input alone."""
    ir = proved(module(input_written), X)
    assert [(target.name, value.producer_node) for target, value in ir.mutations] == [("x", "select_scatter")]
    given = torch.ones(3, 4)
    IRExecutor(ir, {})(given)
    assert torch.equal(given, torch.ones(3, 4))


def test_buffers_that_are_written() -> None:
    """Buffers may be added to, sliced into and assigned; the graph contains their new values."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self.count += 1
        self.mean[1:3] = x[0, 1:3]
        self.total = self.total + x.sum(0)
        return x * self.count + self.mean + self.total

    model = module(forward, buffers={"count": torch.tensor(0), "mean": torch.zeros(4), "total": torch.zeros(4)})
    ir = proved(model, X)
    assert [target.key for target, _ in ir.mutations] == ["count", "mean", "total"]


def test_buffers_that_share_memory() -> None:
    """A buffer that shows in another may be read; where one is written to, torch would miss it, and it is refused."""

    def reading(self: Any, x: Tensor) -> Tensor:
        return x + self.whole + self.part.sum()

    def writing(self: Any, x: Tensor) -> Tensor:
        self.whole.add_(1)
        return x + self.part.sum()

    whole = torch.ones(4)
    buffers = {"whole": whole, "part": whole[1:]}
    model = module(reading, buffers=buffers)
    assert verdict(extract_ir(model, (X,), strict=False), model, X).is_valid
    with pytest.raises(ConversionError, match="forward writes to 'whole', which shares its memory with 'part'"):
        extract_ir(module(writing, buffers=buffers), (X,), strict=False)
    extract_ir(module(writing, buffers={**buffers, "part": whole[1:].clone()}), (X,), strict=False)


def test_batch_norm_in_training() -> None:
    """In training, capture warns, batch statistics are used, and running statistics are updated."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.instance(self.norm(self.norm(x)))

    model = module(
        forward, norm=nn.BatchNorm1d(4), instance=nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    ).train()
    with pytest.warns(CaptureWarning, match=r"Model is in training mode.*call model.eval\(\)"):
        ir = captured(model, torch.randn(2, 4, 3))
    report = verdict(ir, model, torch.randn(2, 4, 3))
    assert report.is_valid, report
    assert {item["name"] for item in report.output_details} >= {
        "norm.running_mean afterwards",
        "norm.num_batches_tracked afterwards",
        "instance.running_var afterwards",
    }
    assert report.output_details[0]["name"] == "output"


# -- regions, custom operators, control flow -------------------------------------------------------------------------


def test_autocast_and_grad_regions_dissolve() -> None:
    """Autocast becomes explicit casts; no_grad and enable_grad leave no trace."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.layer(x)
        with torch.enable_grad():
            x = self.layer(x)
            x.add_(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.layer(x)
            x.relu_()
        return x

    ir = proved(module(forward, layer=nn.Linear(4, 4)), X)
    assert ir.functions == {}
    assert ir.graph_outputs[0].dtype == "bfloat16"
    assert not [op for op in ops(ir) if op.startswith("higher_order.")]


@pytest.mark.parametrize("is_outer", [False, True])
def test_autocast_reaches_the_parts_of_an_operator(is_outer: bool) -> None:
    """In eager mode, the products inside einsum are cast to bfloat16, and reflection pads to float32."""

    def forward(self: Any, x: Tensor, image: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not is_outer or torch.is_autocast_enabled("cpu")):
            product = torch.einsum("bi,ci->bc", x, self.layer(x))
            wide = nn.functional.pad(nn.functional.relu(self.mix(image)), (1, 1, 1, 1), mode="reflect")
            states = self.cell(x)
            return product, wide, states, x.reshape(-1), torch.tensordot(x, x, ([0], [0]))

    layers = {"layer": nn.Linear(4, 4), "mix": nn.Conv2d(2, 2, 1), "cell": nn.GRUCell(4, 4)}
    model, given = module(forward, **layers), (torch.randn(3, 4), torch.randn(1, 2, 4, 4))
    for sizes in (None, ({0: Dim("batch", min=2, max=9)}, None)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_outer), torch.no_grad():
            ir = extract_ir(model, given, strict=False, dynamic_shapes=sizes)
            wanted = model(*given)
        assert [each.dtype for each in wanted[:2]] == [torch.bfloat16, torch.float32]
        for made, value in zip(IRExecutor(ir, model.state_dict())(*given), wanted, strict=True):
            assert made.dtype == value.dtype
            assert torch.equal(made, value)
        assert "aten.einsum.default" not in ops(ir)


@torch.library.custom_op("torch_ir_tests::gate", mutates_args=())
def gate(x: Tensor, y: Tensor, k: float = 2.0) -> Tensor:
    return torch.sigmoid(x) * y * k


@gate.register_fake
def _(x: Tensor, y: Tensor, k: float = 2.0) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("torch_ir_tests::bump", mutates_args={"x"})
def bump(x: Tensor, by: float) -> Tensor:
    x.add_(by)
    return x.sum()


@bump.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return x.new_empty(())


@torch.library.custom_op("torch_ir_tests::stack", mutates_args=())
def stack(tensors: list[Tensor], scale: Tensor | None = None, n: int = 3) -> list[Tensor]:
    return [tensor * n for tensor in tensors]


@stack.register_fake
def _(tensors: list[Tensor], scale: Tensor | None = None, n: int = 3) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in tensors]


def test_custom_operators() -> None:
    """An operator of torch.library is one node with its arguments by name, and runs with nothing registered."""
    ir = proved(module(lambda self, x: stack([gate(x, x + 1, 3.0), x])[0]), X)
    assert ops(ir) == ["aten.add.Tensor", "torch_ir_tests.gate.default", "torch_ir_tests.stack.default"]
    assert ir.nodes[1]["k"] == 3.0
    assert [tensor.name for tensor in ir.nodes[2]["tensors"]] == ["gate", "x"]
    assert (ir.nodes[2]["scale"], ir.nodes[2]["n"]) == (None, 3)


def test_custom_operator_that_writes() -> None:
    """An operator that writes becomes functional: its results are followed by the new values."""

    def forward(self: Any, x: Tensor) -> Any:
        y = x * 2
        total = bump(y, 1.0)
        bump(x[1:], 2.0)
        bump(self.seen, 3.0)
        return y, total, self.seen * 2

    ir = proved(module(forward, buffers={"seen": torch.zeros(2)}), X)
    calls = [node for node in ir.nodes if node.op_type == "torch_ir_tests.bump.default"]
    assert [len(node.outputs) for node in calls] == [2, 2, 2]
    assert calls[0].outputs[1].shape == (3, 4)
    assert [target.name for target, _ in ir.mutations] == ["b_seen", "x"]


def test_cond() -> None:
    """`torch.cond` keeps both branches as functions, nested ones inside; weights in closures become operands."""

    def forward(self: Any, x: Tensor) -> Tensor:
        def large(x: Tensor) -> Tensor:
            return torch.cond(x.max() > 5, lambda x: self.layer(x), lambda x: x * self.scale, (x,))

        def small(x: Tensor) -> Tensor:
            y = x - 1
            y.relu_()
            return y

        return torch.cond(x.sum() > 0, large, small, (x,)) + 1

    model = module(forward, layer=nn.Linear(4, 4), buffers={"scale": torch.randn(4)})
    ir = proved(model, X)
    assert ops(ir)[-2:] == ["higher_order.cond", "aten.add.Tensor"]
    assert [len(body.functions) for body in ir.functions.values()] == [2, 0]
    for x in (torch.ones(3, 4) * 9, torch.ones(3, 4), -torch.ones(3, 4)):
        assert verdict(ir, model, x).is_valid


def test_cond_of_nested_results() -> None:
    """Branches may return nested results."""

    def forward(self: Any, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (x + 1, {"k": x * 2}), lambda x: (x - 1, {"k": x * 1}), (x,))

    ir = proved(module(forward), X)
    assert verdict(ir, module(forward), -X).is_valid


def test_while_loop() -> None:
    """`while_loop` over tensors and over a Python number, with a weight in its closure."""

    def forward(self: Any, x: Tensor) -> Any:
        steps, x = while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, self.layer(x)), (torch.tensor(0), x))
        count, x = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, x))
        return steps, count, x

    assert ops(proved(module(forward, layer=nn.Linear(4, 4)), X)).count("higher_order.while_loop") == 2


def test_scan_and_map() -> None:
    """`scan`, `associative_scan` and `map` with closures."""

    def forward(self: Any, x: Tensor) -> Any:
        carried, rows = scan(lambda c, x: (c + self.layer(x), c * 2), torch.zeros(4), x)
        mapped = torch_map(lambda row, bias: self.layer(row) + bias, x, self.layer.bias * 2)
        summed = associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")
        return carried, rows, mapped, summed

    found = ops(proved(module(forward, layer=nn.Linear(4, 4)), X))
    assert {"higher_order.scan", "higher_order.map_impl"} <= set(found)


def test_vmap_and_checkpoint_dissolve() -> None:
    """`vmap` and activation checkpointing are traced through."""

    def forward(self: Any, x: Tensor) -> Any:
        x = torch.utils.checkpoint.checkpoint(lambda x: self.layer(x).relu(), x, use_reentrant=False)
        return torch.vmap(lambda row: self.layer(row) * row.sum())(x)

    assert not [op for op in ops(proved(module(forward, layer=nn.Linear(4, 4)), X)) if not op.startswith("aten.")]


def test_flex_attention() -> None:
    """Flex attention keeps its score function."""

    def causal(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(query >= key, score, -float("inf"))

    model = module(lambda self, q: flex_attention(q, q, q, score_mod=causal))
    q = torch.randn(1, 2, 16, 8)
    ir = IR.from_json(extract_ir(model, (q,), strict=False).to_json())
    report = verdict(ir, model, q)
    assert report.is_valid, report
    assert "higher_order.flex_attention" in ops(ir)


@pytest.mark.parametrize("capture", ["auto", "export", "record"])
def test_another_shape_for_what_idle_dropout_passed_on(capture: str) -> None:
    """Idle dropout returns its input, which torch treats as a view: a change of both shapes would be lost."""

    def forward(self: Any, x: Tensor) -> Any:
        y = x * 2
        z = torch.dropout(y, 0.5, False)
        z.t_()
        return y, z

    with quiet(), pytest.raises(ConversionError, match="result of an inactive dropout, which is its input; clone it"):
        extract_ir(module(forward), (X.clone(),), strict=False, capture=capture)
