"""Lowering to the user's IR: handlers by name and by pattern, placeholders for the rest."""

import functools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import torch_ir
from tests.graphs import chain, mlp
from tests.lowering import accepting, kinds
from torch_ir import Declined, OpNode, Placeholder, Target, op
from torch_ir.errors import RegistryError

# -- one handler ------------------------------------------------------------------------------------------------------


def test_a_layer_is_what_the_handler_returns() -> None:
    """Around it stand the names of tensors, and the keys of weights under the names of their arguments."""
    npu = Target("npu")

    @npu.lowers("aten.linear.default")
    def gemm(node: OpNode) -> tuple[str, ...]:
        return ("gemm", node["weight"].key)

    lowered = npu.lower(mlp())
    first = lowered.layers[0]
    assert (first.name, first.kind, first.value) == ("linear", "aten.linear.default", ("gemm", "fc1.weight"))
    assert (first.inputs, first.outputs) == (("x",), ("linear",))
    assert first.weights == {"weight": "fc1.weight", "bias": "fc1.bias"}
    assert [layer.is_placeholder for layer in lowered] == [False, True, False]
    assert not lowered.is_complete


def test_what_nobody_takes_is_a_placeholder_and_a_row_of_the_work_list() -> None:
    lowered = accepting("aten.linear").lower(mlp())
    assert lowered.placeholders == ["relu"]
    assert isinstance(lowered.layers[1].value, Placeholder)
    assert lowered.layers[1].value.why == ("no lowering",)
    (row,) = lowered.missing
    assert str(row) == "aten.relu.default  1x8 -> 1x8  (no lowering)"
    assert (row.count, row.modules, row.nodes) == (1, ["relu"], ["relu"])


def test_rows_are_counted_by_operator_and_shapes() -> None:
    ir = chain("aten.neg.default", "aten.relu.default", "aten.abs.default", "aten.exp.default")
    ir.nodes[3].op_type = "aten.neg.default"
    rows = Target("npu").lower(ir).missing
    assert [str(row) for row in rows] == [
        "aten.neg.default  2x3 -> 2x3 x2  (no lowering)",
        "aten.relu.default  2x3 -> 2x3  (no lowering)",
        "aten.abs.default  2x3 -> 2x3  (no lowering)",
    ]


def test_the_report_names_the_missing_operators() -> None:
    assert accepting("aten.linear", "aten.relu").lower(mlp()).report() == "npu: all 3 layers are lowered."
    assert accepting("aten.linear").lower(mlp()).report() == (
        "npu: 2 of 3 layers are lowered.\n"
        "The following ops are not supported by npu yet:\n"
        "  operator           count  FLOPs   bytes  shapes, most work first  why\n"
        "  aten.relu.default      1  0.0 %  16.6 %  1x8 -> 1x8               no lowering\n"
        "They are placeholders, red in the picture."
    )


def folded_norms() -> torch_ir.IR:
    """Two convolutions whose batch norms are folded into nodes over weights."""
    with torch.device("meta"):
        pairs = [layer for _ in range(2) for layer in (nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3))]
        ir = torch_ir.extract_ir(nn.Sequential(*pairs, nn.ReLU()).eval(), (torch.empty(1, 3, 8, 8),))
    return torch_ir.optimize(ir, "basic")[0]


def test_nodes_over_weights_are_not_on_the_work_list() -> None:
    """A device does not need them: they are computed once, on the host, when weights are bound."""
    lowered = accepting("aten.conv2d").lower(folded_norms())
    assert [item.op_type for item in lowered.work_list] == ["aten.relu.default"]
    once = len(lowered) - 3
    assert len(lowered.computed_once) == once > 5
    first, *_, last = lowered.report().splitlines()
    assert first == "npu: 2 of 3 layers are lowered."
    assert last == f"{once} more layers over weights alone: computed once, on the host."
    complete = accepting("aten.conv2d", "aten.relu").lower(folded_norms())
    assert complete.work_list == []
    assert complete.report().startswith("npu: all 3 layers are lowered.\n")


def test_the_report_lists_few_reasons() -> None:
    """A handler that declines each node with a sentence of its own does not fill the screen."""
    npu = Target("npu")

    @npu.lowers("aten.relu.default")
    def relu(node: OpNode) -> Declined:
        return Declined(f"not {node.name}")

    ir = chain("aten.relu.default", "aten.neg.default", "aten.abs.default", "aten.exp.default", "aten.sin.default")
    for node in ir.nodes:
        node.op_type = "aten.relu.default"
    (item,) = npu.lower(ir).work_list
    assert len(item.reasons) == 5
    assert str(item).endswith("; and 3 other reasons)")


def test_the_work_list_has_a_row_per_operator_with_most_work_first() -> None:
    """Shares by hand: a product of 2x8 by 8x16 and one of 2x16 by 16x4; two activations of 2x16 and 2x4."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.GELU(), nn.Flatten(), nn.Softmax(-1))
        ir = torch_ir.extract_ir(model.eval(), (torch.empty(2, 8),))
    items = Target("npu").lower(ir).work_list
    names = ["aten.linear.default", "aten.gelu.default", "aten.softmax.int", "aten.flatten.using_ints"]
    assert [item.op_type for item in items] == names
    assert [item.count for item in items] == [2, 2, 1, 1]
    linear, gelu = items[0].to_dict(), items[1].to_dict()
    first, second = 2 * (2 * 8 * 16), 2 * (2 * 16 * 4)
    assert linear["flops"] == {"total": first + second, "share": 1.0}
    assert [shape["flops"] for shape in linear["shapes"]] == [first, second]
    assert linear["shapes"][0]["inputs"] == [[2, 8]]
    assert linear["shapes"][0]["outputs"] == [[2, 16]]
    moved = 4 * sum((2 * 8 + 8 * 16 + 16 + 2 * 16, 2 * 16 + 16 * 4 + 4 + 2 * 4, 2 * 2 * 16, 2 * 2 * 4, 2 * 2 * 4))
    assert gelu["bytes"] == {"total": 4 * 2 * (2 * 16 + 2 * 4), "share": 4 * 2 * (2 * 16 + 2 * 4) / moved}
    assert gelu["classes"] == ["torch.nn.modules.activation.GELU"]
    assert gelu["reasons"] == ["no lowering"]
    assert str(items[1]).endswith("2x16 -> 2x16 and 1 other  (no lowering)")


def test_the_work_list_of_open_sizes_is_ranked_and_has_no_shares() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    with torch.device("meta"):
        model = nn.Sequential(nn.ReLU(), nn.Linear(8, 8)).eval()
        ir = torch_ir.extract_ir(model, (torch.empty(4, 8),), dynamic_shapes=({0: batch},))
    lowered = Target("npu").lower(ir)
    assert [(item.op_type, item.share("bytes")) for item in lowered.work_list] == [
        ("aten.linear.default", None),
        ("aten.relu.default", None),
    ]
    assert "?" in lowered.report()


def test_a_handler_declines_with_a_reason() -> None:
    """`Declined` has a reason, None has none, an exception is one line; then the next coarser name is tried."""
    npu = Target("npu")

    @npu.lowers("aten.relu.default")
    def exact(node: OpNode) -> Any:
        return Declined("only\n4-D")

    @npu.lowers("aten.relu")
    def any_overload(node: OpNode) -> Any:
        raise ValueError("first\nsecond")

    @npu.lowers("aten.linear")
    def nothing(node: OpNode) -> Any:
        return None

    lowered = npu.lower(mlp())
    reasons = [layer.value.why for layer in lowered]
    assert reasons[1] == ("exact: only 4-D", "any_overload raised ValueError: first")
    assert reasons[0] == reasons[2] == ("nothing: it returned None",)


def test_the_exact_name_comes_before_the_base_name() -> None:
    npu = accepting("aten.relu")
    npu.lowers("aten.relu.default")(lambda node: "exact")
    assert npu.lower(chain("aten.relu.default")).layers[0].value == "exact"


# -- registering ------------------------------------------------------------------------------------------------------


def test_a_name_has_one_holder() -> None:
    """A second function is refused with the name of the first; the same one, defined again, is not a second."""
    npu = Target("npu")

    def define() -> None:
        @npu.lowers("aten.relu.default", op("aten.neg.default"))
        def relu(node: OpNode) -> str:
            return "relu"

    define()
    define()
    with pytest.raises(RegistryError, match=r"npu already lowers 'aten\.relu\.default' with .*define.<locals>.relu"):
        npu.lowers("aten.relu.default")(lambda node: None)
    with pytest.raises(RegistryError, match=r"npu already lowers 'aten\.neg\.default\(\)' with"):
        npu.lowers(op("aten.neg.default"))(lambda node: None)
    assert npu.lower(chain("aten.relu.default")).is_complete


@pytest.mark.parametrize("names", [("torch.nn.modules.conv.Conv2d",), ("torch.nn.Conv2d",), (nn.Conv2d,)])
def test_a_class_and_its_names_are_one(names: tuple[Any, ...]) -> None:
    npu = accepting(nn.Conv2d)
    with pytest.raises(RegistryError, match=r"already lowers 'torch\.nn\.Conv2d'"):
        npu.lowers(*names)(lambda node: None)


def test_any_callable_may_be_a_handler() -> None:
    """A partial has no name; it is shown by its repr."""
    npu = Target("npu")
    npu.lowers("aten.relu")(functools.partial(getattr, name="op_type"))
    npu.lowers("aten.neg")(str)
    with pytest.raises(RegistryError, match=r"npu already lowers 'aten\.relu' with functools\.partial\("):
        npu.lowers("aten.relu")(str)
    reason, text = [layer.value for layer in npu.lower(chain("aten.relu.default", "aten.neg.default"))]
    assert reason.why == ("partial raised TypeError: getattr() takes no keyword arguments",)
    assert text == "OpNode('neg', 'aten.neg.default')"


@pytest.mark.parametrize("thing", [3, None, [nn.Conv2d]])
def test_what_cannot_be_lowered_is_refused(thing: Any) -> None:
    with pytest.raises(RegistryError, match="is not an operator name, module class, torch function or pattern"):
        Target("npu").lowers(thing)


def test_lowers_needs_something() -> None:
    with pytest.raises(RegistryError, match="needs an operator, module, function or pattern"):
        Target("npu").lowers()


def test_a_handler_that_asks_for_what_is_not_captured_is_refused() -> None:
    npu = Target("npu")
    with pytest.raises(RegistryError, match=r"requests 'weigth', which .* does not provide; did you mean 'weight'"):

        @npu.lowers(op("aten.linear.default", weight="weight"))
        def linear(node: OpNode, weigth: Any) -> None:
            raise AssertionError

    with pytest.raises(RegistryError, match=r"requests 'extra', which 'aten\.relu' does not provide"):
        npu.lowers("aten.relu")(lambda node, extra: None)


def test_torch_is_not_imported_by_a_target() -> None:
    """A module of handlers, and lowering itself, run on a machine that has no torch."""
    program = """
import sys
from torch_ir import IR, Target, op
npu = Target("npu")
npu.lowers("torch.nn.Linear", "torch.flatten", "aten.relu", op("aten.neg.default"))(lambda node: 1)
print(npu.lower(IR([], [], [])).report())
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0


# -- patterns ---------------------------------------------------------------------------------------------------------


def test_a_pattern_makes_one_layer_of_several_nodes() -> None:
    """The handler gets the last node and its parameters; weights are named after the captures."""
    npu = Target("npu")

    @npu.lowers(op("aten.relu.default", self=op("aten.linear.default", weight="w").named("gemm")))
    def gemm_relu(node: OpNode, gemm: OpNode, w: Any) -> Any:
        return node.name, gemm.name, w.key

    lowered = npu.lower(mlp())
    first = lowered.layers[0]
    assert (first.kind, first.inputs, first.outputs) == ("npu.gemm_relu", ("x",), ("relu",))
    assert first.value == ("relu", "linear", "fc1.weight")
    assert first.weights == {"w": "fc1.weight", "p_fc1_bias": "fc1.bias"}
    assert lowered.placeholders == ["linear_1"]
    assert lowered.ir.check().nodes[0].op_type == "npu.gemm_relu"


def test_a_larger_pattern_comes_first() -> None:
    npu = Target("npu")
    relu = op("aten.relu.default")
    npu.lowers(relu)(lambda node: "one")
    npu.lowers(op("aten.neg.default", self=relu))(lambda node: "two")
    npu.lowers(op("aten.abs.default", self=op("aten.neg.default", self=relu)))(lambda node: "three")
    lowered = npu.lower(chain("aten.relu.default", "aten.neg.default", "aten.abs.default", "aten.exp.default"))
    assert [layer.value for layer in lowered][:1] == ["three"]
    assert lowered.placeholders == ["exp"]


def test_a_pattern_does_not_swallow_what_others_read() -> None:
    """A value inside a match that is read elsewhere would be lost, so the match is refused with the reason."""
    ir = chain("aten.neg.default", "aten.relu.default")
    ir.graph_outputs = [ir.nodes[1].output, ir.nodes[0].output]
    npu = Target("npu")

    @npu.lowers(op("aten.relu.default", self=op("aten.neg.default")))
    def both(node: OpNode) -> str:
        return "both"

    lowered = npu.lower(ir)
    assert lowered.layers[1].value.why == ("no lowering", "both: 'neg' is also read by 'return'")


def test_a_refused_pattern_leaves_its_nodes_to_finer_handlers() -> None:
    npu = accepting("aten.neg", "aten.relu")
    npu.lowers(op("aten.relu.default", self=op("aten.neg.default")))(lambda node: Declined("no"))
    lowered = npu.lower(chain("aten.neg.default", "aten.relu.default"))
    assert kinds(lowered) == ["aten.neg.default", "aten.relu.default"]
