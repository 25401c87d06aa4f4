"""Costs: FLOPs as torch counts them, bytes by simple rules, both also for dynamic sizes."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as torch_map
from torch.export import Dim
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import catalogue
from tests.architectures import NEEDS_VALUES, NOT_CAPTURED, Architecture, architectures
from tests.graphs import chain, everything, mlp, tensor, weight
from tests.proof import captured, captured_entry, module, quiet, to_meta
from torch_ir import IR, GraphError, OpNode, cost, extract_ir
from torch_ir.analysis.cost_model.traffic import SOMETIMES_VIEWS, VIEWS, is_view
from torch_ir.analysis.shapes.size_polynomials import product, total
from torch_ir.ir import evaluate
from torch_ir.ir.regroup.functions import outline
from torch_ir.ops.schema import find_operator, operator_names

SAMPLE = (
    "cnn", "conv3d", "densenet", "graph_conv", "grouped_query_attention", "gru", "lstm", "moe", "multihead_attention",
    "rnn", "transformer_encoder", "transposed_conv",
)  # fmt: skip
NOT_COUNTED = {"multi_input": "aten.bilinear.default"}  # torch's counter passes over it

WITHOUT_FORMULA = {"fft": ("aten.fft_rfft.default", "aten.fft_irfft.default", "aten.fft_fft2.default")}


def flops_of(model: nn.Module, *inputs: Any, **kwargs: Any) -> int:
    """FLOPs by torch's own counter, with every operator decomposed into counted ones."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        plain = torch.backends.mkldnn.flags(enabled=False)
        with torch.no_grad(), plain, sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(*inputs, **kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_total_flops()


def check_model(name: str) -> None:
    entry = catalogue.find(name)
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    costs = cost(captured_entry(name))
    uncounted = costs.by_op().get(NOT_COUNTED.get(name, ""))
    extra = uncounted.flops if uncounted else 0
    assert total([costs.flops, product(-1, extra)]) == flops_of(model, *inputs, **kwargs)
    assert costs.flops == product(2, costs.macs)
    assert costs.unknown == WITHOUT_FORMULA.get(name, ())


@pytest.mark.parametrize("name", SAMPLE)
def test_flops_of_models_are_those_that_torch_counts(name: str) -> None:
    check_model(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [e.name for e in catalogue.entries() if e.name not in (*SAMPLE, "while_loop")])
def test_flops_of_the_whole_catalogue(name: str) -> None:
    """`while_loop` apart: torch's counter cannot run under it."""
    check_model(name)


# -- architectures ----------------------------------------------------------------------------------------------------

# Not those that torch's counter sees, for these reasons.
UNLIKE_TORCH = {
    "big_bird": "the model computes what nobody reads, which is not in the graph",
    "qwen3_next": "where it is captured it multiplies, elsewhere it solves a triangular system, which counts nothing",
    "jetmoe": "the data decides how many tokens an expert gets",
    "xmod": "the data decides how many tokens an adapter gets",
    **dict.fromkeys(
        ("deberta", "deberta_v2", "deformable_detr", "blip_2", "perceiver"), "torch's counter fails on the model"
    ),
}

# What neither torch's counter nor ours counts.
UNCOUNTED = {
    "fnet": ("aten.fft_fftn.default",),
    "autoformer": ("aten.fft_rfft.default", "aten.fft_irfft.default"),
}


def check_architecture(architecture: Architecture) -> None:
    """The experts of a mixture run one by one for torch's counter, which passes over grouped products."""
    with torch.device("meta"):
        bare = architecture.build()
    model: Any = architecture.build()
    inputs = architecture.inputs()
    with quiet():
        costs = cost(extract_ir(bare, (), kwargs=to_meta(inputs)))
        if "transformers.grouped_mm_fallback.default" in costs.by_op():
            model.set_experts_implementation("eager")
    assert costs.flops == flops_of(model, **inputs)
    assert costs.unknown == UNCOUNTED.get(architecture.name, ())


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_flops_of_architectures_are_those_that_torch_counts(name: str) -> None:
    check_architecture(next(each for each in architectures() if each.name == name))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", architectures(), ids=lambda each: each.name)
def test_flops_of_every_architecture(architecture: Architecture) -> None:
    """Those that are captured without values, and that torch's counter can count."""
    if architecture.name not in {*NOT_CAPTURED, *NEEDS_VALUES, *UNLIKE_TORCH}:
        check_architecture(architecture)


F = torch.nn.functional
CALLS: list[tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = [
    (torch.mm, ((2, 3), (3, 4))),
    (torch.bmm, ((5, 2, 3), (5, 3, 4))),
    (torch.matmul, ((5, 1, 2, 3), (7, 3, 4))),
    (torch.addmm, ((4,), (2, 3), (3, 4))),
    (torch.baddbmm, ((5, 2, 4), (5, 2, 3), (5, 3, 4))),
    (torch.inner, ((2, 3), (4, 3))),
    (lambda a, b: torch.tensordot(a, b, dims=([0, 2], [1, 0])), ((2, 3, 4), (4, 2, 5))),
    (lambda x, w: F.conv1d(x, w, padding="same", dilation=2), ((2, 3, 9), (4, 3, 3))),
    (lambda x, w: F.conv2d(x, w, groups=2, stride=2), ((2, 4, 9, 9), (6, 2, 3, 3))),
    (lambda x, w: F.conv2d(x, w), ((4, 9, 9), (6, 4, 3, 3))),
    (lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2), ((2, 4, 5, 5), (4, 3, 3, 3))),
    (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), ((2, 4, 6, 8), (2, 4, 6, 8))),
    (lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), ((2, 4, 6, 8), (2, 2, 7, 8))),
    *(
        (lambda *tensors, e=equation: torch.einsum(e, *tensors), shapes)
        for equation, shapes in (
            ("ij,jk->ik", ((2, 3), (3, 4))),
            ("...ij,jk->...ik", ((2, 5, 3, 4), (4, 6))),
            ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
            ("ai,bi,ci->abc", ((2, 3), (4, 3), (5, 3))),
            ("ij,kl->il", ((2, 3), (4, 5))),
            ("ij,ij->ij", ((2, 3), (2, 3))),
            ("ij,jk", ((2, 3), (3, 4))),
        )
    ),
]


@pytest.mark.parametrize(("function", "shapes"), CALLS)
def test_flops_of_single_calls_are_those_that_torch_counts(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> None:
    model, inputs = module(lambda self, *tensors: function(*tensors)), [torch.randn(shape) for shape in shapes]
    assert cost(captured(model, *inputs)).flops == flops_of(model, *inputs)


def test_formulas_that_torch_does_not_count() -> None:
    """Matrix times vector, sums of products, grouped products: each multiplication once."""
    mv = OpNode("y", "aten.mv.default", [tensor("a", 3, 4), tensor("b", 4)], [tensor("y", 3)], args=["self", "vec"])
    added = OpNode(
        "y", "aten.addbmm.default", [tensor("s", 2, 4), tensor("a", 5, 2, 3), tensor("b", 5, 3, 4)],
        [tensor("y", 2, 4)], args=["self", "batch1", "batch2"],
    )  # fmt: skip
    experts = OpNode(
        "y", "aten._grouped_mm.default", [tensor("a", 10, 3), tensor("b", 4, 3, 5), tensor("o", 4, dtype="int32")],
        [tensor("y", 10, 5)], args=["self", "mat2", "offs"],
    )  # fmt: skip
    inner = OpNode(
        "y", "aten._grouped_mm.default", [tensor("a", 2, 30), tensor("b", 30, 5), tensor("o", 4, dtype="int32")],
        [tensor("y", 4, 2, 5)], args=["self", "mat2", "offs"],
    )  # fmt: skip
    found = [cost(IR([node], node.inputs, node.outputs)).macs for node in (mv, added, experts, inner)]
    assert found == [12, 5 * 2 * 3 * 4, 10 * 3 * 5, 2 * 30 * 5]


def test_a_node_that_is_not_called_as_its_operator_is() -> None:
    x, y = tensor("x", 2, 3), tensor("y", 2, 3)
    ir = IR([OpNode("y", "aten.linear.default", [x], [y], {"weight": None}, args=["input"])], [x], [y])
    assert cost(ir).macs == 2 * 3 * 3  # a row of the input for every element, for any weight
    ir = IR([OpNode("y", "aten.conv2d.default", [x], [y], {"weight": None}, args=["input"])], [x], [y])
    with pytest.raises(
        GraphError, match=r"OpNode\('y', 'aten.conv2d.default'\) does not match the arguments of its operator"
    ):
        cost(ir)
    for operator in ("linear", "relu", "embedding"):
        node = OpNode("y", f"aten.{operator}.default", [x], [y], args=["input"])
        ir = IR([node], [x], [y])
        node.inputs = ()
        with pytest.raises(GraphError, match="does not match the arguments of its operator, so its cost is unknown"):
            cost(ir)


# -- sizes that are open ----------------------------------------------------------------------------------------------


def test_open_sizes_give_expressions() -> None:
    """The expressions evaluate to the cost of the specialised graph."""
    model = module(lambda self, x: self.b(F.relu(self.a(x))).softmax(-1), a=nn.Linear(4, 8), b=nn.Linear(8, 3))
    ir = captured(model, torch.randn(6, 5, 4), dynamic_shapes=({0: Dim("batch"), 1: Dim("seq")},))
    costs = cost(ir)
    assert costs["linear"].flops == "64*batch*seq"
    assert costs.flops == "112*batch*seq"
    for sizes in ({"batch": 8, "seq": 2}, {"batch": 1, "seq": 100}):
        fixed = cost(ir, sizes=sizes)
        assert fixed.amounts() == tuple(evaluate(amount, sizes) for amount in costs.amounts())
    assert cost(ir, sizes={"seq": 2}).flops == "224*batch"


def test_attention_is_quadratic_and_strided_convolutions_keep_their_divisions() -> None:
    attention = module(lambda self, x: F.scaled_dot_product_attention(x, x, x))
    ir = captured(attention, torch.randn(1, 2, 6, 4), dynamic_shapes=({2: Dim("seq")},))
    assert cost(ir).flops == "32*seq*seq"
    convolution = module(lambda self, x: self.conv(x), conv=nn.Conv1d(2, 3, 3, stride=2))
    costs = cost(captured(convolution, torch.randn(1, 2, 15), dynamic_shapes=({2: Dim("length", min=8)},)))
    assert evaluate(costs.flops, {"length": 15}) == flops_of(convolution, torch.randn(1, 2, 15))


def test_sizes_are_checked() -> None:
    ir = captured(module(lambda self, x: x * 2), torch.randn(4, 2), dynamic_shapes=({0: Dim("batch", max=9)},))
    with pytest.raises(GraphError, match=r"unknown size 'bath'; did you mean 'batch'\?"):
        cost(ir, sizes={"bath": 3})
    with pytest.raises(GraphError, match=r"batch = 10 is out of range: .*batch <= 9"):
        cost(ir, sizes={"batch": 10})
    assert ir.symbols  # and the graph itself is as it was


def test_sizes_that_the_data_decides_can_be_assumed() -> None:
    ir = captured(module(lambda self, x: self.a(x[x[:, 0] > 0]), a=nn.Linear(4, 8)), torch.randn(6, 4))
    (name,) = ir.symbols
    assert cost(ir).flops == f"64*{name}"
    assert cost(ir, sizes={name: 3}).flops == 192


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_bytes_are_what_is_read_and_written() -> None:
    """A tensor that is read twice by one node counts once."""
    x, y = tensor("x", 2, 3, dtype="float16"), tensor("y", 2, 3, dtype="float16")
    row = cost(IR([OpNode("y", "aten.mul.Tensor", [x, x], [y], args=["self", "other"])], [x], [y]))["y"]
    assert (row.bytes_read, row.bytes_written, row.bytes, row.flops) == (12, 12, 24, 0)


def test_views_move_nothing_and_copies_do() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.view(3, 8).t()  # views
        z = y.contiguous()  # a copy, as y is not packed
        return (z.contiguous().reshape(-1) + 1).half()  # two views, and a copy into another dtype

    costs = cost(captured(module(forward), torch.randn(2, 12)))
    moved = {row.node.name: row.bytes for row in costs.nodes}
    assert {name: size for name, size in moved.items() if size} == {
        "contiguous": 192, "add": 192, **{name: 144 for name in moved if "to" in name.split("_")},
    }  # fmt: skip


def test_every_view_of_torch_is_known() -> None:
    """By its schema, a view's result aliases its input; a few of the list are composites of views."""
    found = set()
    for name in operator_names("aten"):
        operator = find_operator(name)
        assert isinstance(operator, torch._ops.OpOverload)
        aliases = [result.alias_info for result in operator._schema.returns if result.alias_info is not None]
        if aliases and not any(alias.is_write for alias in aliases):
            found.add(name.rpartition(".")[0])
    assert {name for name in found - VIEWS - SOMETIMES_VIEWS if not name.startswith("aten._")} == {
        "aten.coalesce", "aten.pin_memory", "aten.slice_inverse",
    }  # fmt: skip
    assert VIEWS - found == {"aten._unsafe_view", "aten.broadcast_tensors", "aten.meshgrid"}


def test_a_look_up_reads_rows_and_not_the_table() -> None:
    model = module(lambda self, ids: self.table(ids), table=nn.Embedding(1000, 8))
    row = cost(captured(model, torch.zeros(2, 3, dtype=torch.int64))).nodes[0]
    assert (row.bytes_read, row.bytes_written) == (6 * 8 + 6 * 8 * 4, 6 * 8 * 4)


def test_repeated_elements_count_once_and_assertions_not_at_all() -> None:
    ir = captured(module(lambda self, x: x.expand(5, 4) + 1), torch.randn(1, 4))
    assert cost(ir)["add"].bytes_read == 16
    asserted = OpNode("a", "aten._assert_async.default", [tensor("x", 4)], [], args=["self"])
    assert cost(IR([asserted], asserted.inputs, [])).bytes == 0


def test_dropout_is_work_in_training_only() -> None:
    for train in (False, True):
        x, y = tensor("x", 2), tensor("y", 2)
        node = OpNode("y", "aten.dropout.default", [x], [y], {"p": 0.5, "train": train}, args=["input"])
        assert is_view(node) is not train


# -- functions --------------------------------------------------------------------------------------------------------


def test_a_call_costs_what_its_body_costs() -> None:
    ir = mlp()
    before = cost(ir)
    outline(ir, ir.nodes[:2], "front")
    after = cost(ir)
    assert after.amounts() == before.amounts()
    assert after["relu"].flops == before["linear"].flops
    assert after.functions["front"].flops == before["linear"].flops


def test_of_a_branch_the_dearer_side_counts() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.a(x) @ self.a(x).t(), lambda x: self.a(x)[:, :3] * 1, (x,))

    ir = captured(module(forward, a=nn.Linear(4, 8)), torch.randn(3, 4))
    assert sorted(body.flops for body in cost(ir).functions.values()) == [192, 2 * 192 + 144]
    assert cost(ir).flops == 2 * 192 + 144


def test_loops_count_once_or_for_every_item() -> None:
    """The trip count of `while_loop` is unknown; `scan` and `map` run once per item."""
    model = {"a": nn.Linear(4, 4)}

    def looped(self: Any, x: torch.Tensor) -> Any:
        return while_loop(lambda x: x.sum() < 9, lambda x: (self.a(x) * 1,), (x,))

    def scanned(self: Any, x: torch.Tensor) -> Any:
        return scan(lambda c, y: (c + y, self.a(y)), torch.zeros(4), x)

    def mapped(self: Any, x: torch.Tensor) -> Any:
        return torch_map(lambda y: self.a(y), x)

    x = torch.randn(5, 4)
    assert cost(captured(module(looped, **model), x)).flops == 2 * 5 * 16
    assert cost(captured(module(scanned, **model), x)).flops == 5 * 2 * 16
    assert cost(captured(module(mapped, **model), x)).flops == 5 * 2 * 16


# -- asking -----------------------------------------------------------------------------------------------------------


def test_roll_ups_add_up() -> None:
    entry = catalogue.find("transformer_encoder")
    costs = cost(captured(entry.build(), *entry.inputs()))
    for rolled in (costs.by_op(), costs.by_module(), costs.by_module(depth=1)):
        assert total(work.flops for work in rolled.values()) == costs.flops
        assert total(work.bytes for work in rolled.values()) == costs.bytes
    assert next(iter(costs.by_op())) == "aten.linear.default"
    assert set(costs.by_module(depth=1)) <= {"", *(name.partition(".")[0] for name in costs.by_module())}


def test_intensity_is_flops_per_byte() -> None:
    """Sizes that are open count as 1024; where nothing moves there is none."""
    work = cost(mlp())["linear"]
    assert work.intensity == 64 / (4 * (4 + 32 + 8 + 8))
    ir = captured(module(lambda self, x: x @ x.t()), torch.randn(6, 4), dynamic_shapes=({0: Dim("n")},))
    costs = cost(ir)
    assert costs["matmul"].intensity == pytest.approx(8 * 1024**2 / evaluate(costs["matmul"].bytes, {"n": 1024}))
    assert costs["t"].intensity == 0


def test_a_node_is_asked_for_by_name() -> None:
    assert cost(mlp())["linear"].macs == 32
    with pytest.raises(KeyError, match="no node is called 'liner'; did you mean 'linear'"):
        cost(mlp())["liner"]


def test_operators_of_others_are_named() -> None:
    """Operators that are not torch's and have no body count no FLOPs, and are listed."""
    assert cost(chain("aten.relu.default", "mylib.mix.default", "opaque.numpy")).unknown == (
        "mylib.mix.default",
        "opaque.numpy",
    )
    assert cost(everything()).unknown == ()


def test_arguments_without_names_are_named_first() -> None:
    """Files of the documented format list tensors by position; the graph stays as it is."""
    x, w, y = tensor("x", 2, 4), weight("w", 3, 4), tensor("y", 2, 3)
    ir = IR([OpNode("y", "aten.linear.default", [x, w], [y])], [x], [y], params=[w])
    assert cost(ir).macs == 24
    assert not ir.nodes[0].has_named_args


def test_no_torch_is_needed() -> None:
    program = (
        "import sys, torch_ir; from tests.graphs import mlp; "
        "assert torch_ir.cost(mlp()).macs == 48; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
