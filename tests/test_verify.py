"""Verification: what it says, what it must catch, and what it must not mistake for an error."""

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import catalogue
from catalogue import Entry
from tests.proof import captured, module, verdict
from torch_ir import (
    IR,
    CaptureWarning,
    OpNode,
    TensorMeta,
    VerificationReport,
    WeightLoadError,
    verify_ir,
    verify_ir_with_state_dict,
)
from torch_ir.ir import Expr, Param

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
LAYER = module(lambda self, x: self.layer(x).relu(), layer=nn.Linear(4, 4))


def fails(ir: IR, model: nn.Module, *inputs: Any) -> str:
    """The reason for which a wrong graph is refused."""
    report = verdict(ir.check(), model, *inputs)
    assert not report.is_valid, f"{report}\n{ir}"
    assert str(report).startswith("Verification FAILED")
    return report.error_message or ""


# -- the report -------------------------------------------------------------------------------------------------------


def test_report_of_success(tmp_path: Path) -> None:
    """The documented fields, and a text that starts with the verdict."""
    torch.save(LAYER.state_dict(), tmp_path / "w.pt")
    ok, report = verify_ir(captured(LAYER, X), tmp_path / "w.pt", LAYER, (X,))
    assert ok is True
    assert str(report).startswith("Verification PASSED\n")
    assert (report.is_valid, report.num_outputs, report.error_message) == (True, 1, None)
    assert (report.max_diff, report.mean_diff) == (0.0, 0.0)
    (item,) = report.output_details
    assert {key: item[key] for key in ("index", "name", "shape", "dtype", "is_close", "max_diff", "mean_diff")} == {
        "index": 0,
        "name": "output",
        "shape": [3, 4],
        "dtype": "float32",
        "is_close": True,
        "max_diff": 0.0,
        "mean_diff": 0.0,
    }
    documented = ["is_valid", "max_diff", "mean_diff", "num_outputs", "output_details", "error_message"]
    assert [field.name for field in fields(VerificationReport)][:6] == documented


def test_report_of_failure() -> None:
    """A failed report says which output is off, how far, and how many elements."""
    model = module(lambda self, x: {"good": x + 1, "bad": x * 2})
    ir = captured(model, X)
    ir.node("mul").attrs["other"] = 3
    ok, report = verify_ir_with_state_dict(ir, {}, model, (X,))
    assert ok is False
    assert report.error_message == "output['bad']: 12 of 12 elements are too far off"
    assert [item["is_close"] for item in report.output_details] == [True, False]
    assert math.isclose(report.max_diff, X.abs().max().item(), rel_tol=1e-5)
    lines = str(report).splitlines()
    assert lines[0] == "Verification FAILED"
    assert lines[1] == "  output['bad']: 12 of 12 elements are too far off"
    assert any("DIFFERS" in line and "output['bad']" in line for line in lines)


def test_wrong_weights_are_a_failure() -> None:
    """Weights that do not fit give a failed report with the reason; a file that cannot be read is an error."""
    ir = captured(LAYER, X)
    ok, report = verify_ir_with_state_dict(ir, {"layer.weight": torch.ones(4, 4)}, LAYER, (X,))
    assert not ok
    assert "'layer.bias' is missing" in str(report)
    with pytest.raises(WeightLoadError):
        verify_ir(ir, "no_such_file.pt", LAYER, (X,))


def test_wrong_inputs_are_a_failure() -> None:
    """Inputs that the graph does not take give a failed report."""
    ok, report = verify_ir_with_state_dict(captured(LAYER, X), LAYER.state_dict(), LAYER, ())
    assert not ok
    assert "expected 1 items, got 0" in str(report)


def test_tolerances_can_be_given() -> None:
    """The caller's tolerances hold instead of those of the dtype."""
    ir = captured(LAYER, X)
    weights = {name: value * 1.001 for name, value in LAYER.state_dict().items()}
    assert not verify_ir_with_state_dict(ir, weights, LAYER, (X,))[0]
    assert verify_ir_with_state_dict(ir, weights, LAYER, (X,), rtol=1e-2, atol=1e-2)[0]
    assert not verify_ir_with_state_dict(ir, weights, LAYER, (X,), rtol=0.0, atol=1e-9)[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_each_dtype_has_its_tolerance(dtype: torch.dtype) -> None:
    """A right graph passes in every dtype though its sums run in another order; a wrong one does not."""
    width = 64
    model = module(
        lambda self, x: F.softmax(self.second(F.gelu(self.first(x))), -1),
        first=nn.Linear(width, width),
        second=nn.Linear(width, width),
    ).to(dtype)
    x = torch.randn(16, width, dtype=dtype)
    ir = captured(model, x)
    first = ir.node("linear")
    product = TensorMeta("product", (16, width), str(dtype).removeprefix("torch."))
    turned = TensorMeta("turned", (width, width), product.dtype)
    nodes = [
        OpNode("turned", "aten.t.default", [first["weight"]], [turned], args=["self"]),
        OpNode("product", "aten.mm.default", [first["input"], turned], [product], args=["self", "mat2"]),
        OpNode(
            "linear", "aten.add.Tensor", [product, first["bias"]], first.outputs, {"alpha": 1}, args=["self", "other"]
        ),
    ]
    first.inputs = ()
    ir.nodes[:1] = nodes
    report = verdict(ir.check(), model, x)
    assert report.is_valid, report
    ir.nodes[2].attrs["alpha"] = 0
    assert not verdict(ir, model, x).is_valid


# -- what must be caught ----------------------------------------------------------------------------------------------


def test_tiny_outputs_that_are_all_wrong() -> None:
    """The tolerance shrinks with the scale of the output: values of 1e-8 that are off by half do not pass."""
    model = module(lambda self, x: x * 1e-8)
    ir = captured(model, X)
    ir.node("mul").attrs["other"] = 1.5e-8
    assert "12 of 12 elements are too far off" in fails(ir, model, X)
    ir.node("mul").attrs["other"] = 0.0
    assert "too far off" in fails(ir, model, X)


def test_integers_off_by_one() -> None:
    """Integers must be equal, however large."""
    model = module(lambda self, x: x + 2**53)
    x = torch.arange(4)
    ir = captured(model, x)
    ir.node("add").attrs["other"] = 2**53 + 1
    assert "4 of 4 elements differ, and torch.int64 must be equal" in fails(ir, model, x)


def test_booleans_must_be_equal() -> None:
    model = module(lambda self, x: x > 0)
    ir = captured(model, X)
    ir.node("gt").attrs["other"] = 0.5
    assert "must be equal" in fails(ir, model, torch.tensor([[0.2, 1.0, -1.0, 0.7]] * 3))


def test_conjugated_complex() -> None:
    """Complex numbers are compared in both parts."""
    model = module(lambda self, x: torch.complex(x, x * 2).resolve_conj() * 1j)
    ir = captured(model, X)
    ir.node("mul_1").attrs["other"] = -1j
    assert "too far off" in fails(ir, model, X)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_special_values_in_another_place(special: float) -> None:
    """NaN and infinities must be where the model has them, and of the same sign."""
    model = module(lambda self, x: torch.where(x > 0, x, special))
    ir = captured(model, X)
    ir.node("gt").attrs["other"] = 0.5
    x = torch.tensor([[0.2, 1.0, -1.0, 0.7]] * 3)
    assert fails(ir, model, x) == "output: NaN or infinity in different places"
    ir = captured(model, X)
    ir.node("where").attrs["other"] = math.inf if special != math.inf else -math.inf
    assert "NaN or infinity in different places" in fails(ir, model, x)


def test_a_swapped_complex_infinity() -> None:
    """A complex infinity is compared part by part."""
    model = module(lambda self, x: torch.complex(x, x * math.inf))
    ir = captured(model, X)
    ir.node("mul").attrs["other"] = -math.inf
    assert fails(ir, model, X) == "output: NaN or infinity in different places"


def test_wrong_dtype() -> None:
    """Equal numbers of another dtype are not equal."""
    model = module(lambda self, x: x.to(torch.float64))
    ir = captured(model, X)
    ir.node("to").attrs["dtype"] = type(ir.node("to")["dtype"])("float32")
    ir.node("to").output.dtype = "float32"
    assert fails(ir, model, X) == "output: dtype torch.float32 instead of torch.float64"


def test_wrong_shape() -> None:
    """Equal numbers in another shape are not equal."""
    model = module(lambda self, x: x.sum(1, keepdim=True))
    ir = captured(model, X)
    ir.node("sum_1").attrs["keepdim"] = False
    ir.node("sum_1").output.shape = (3,)
    assert fails(ir, model, X) == "output: shape [3] instead of [3, 1]"


@pytest.mark.parametrize(("shape", "dtype"), [((3, 5), "float32"), ((12,), "float32"), ((3, 4), "float16")])
@pytest.mark.parametrize("name", ["linear", "relu"])
def test_wrong_declarations(name: str, shape: tuple[int, ...], dtype: str) -> None:
    """A tensor that is not what the graph declares it to be is caught, in the middle of the graph too."""
    ir = captured(LAYER, X)
    ir.node(name).output.shape, ir.node(name).output.dtype = shape, dtype
    expected = f"{name!r} of {ir.node(name)!r} is declared {dtype}{list(shape)}, but is float32[3, 4]"
    assert fails(ir, LAYER, X) == expected


def test_a_missing_output() -> None:
    """A graph that returns less, or more, than the model is refused."""
    model = module(lambda self, x: (x + 1, x * 2))
    first, both = captured(module(lambda self, x: x + 1), X), captured(model, X)
    assert fails(first, model, X) == "the model returns 2 values, the graph 1"
    assert fails(both, module(lambda self, x: x + 1), X) == "the model returns 1 values, the graph 2"


def test_other_dict_keys() -> None:
    """Outputs under other names are other outputs."""
    ir = captured(module(lambda self, x: {"a": x + 1, "b": x}), X)
    other = module(lambda self, x: {"a": x + 1, "c": x})
    assert fails(ir, other, X) == "the model returns output['a'], output['c'], the graph output['a'], output['b']"
    nested = module(lambda self, x: {"a": x + 1, "b": [x]})
    assert "output['b'][0]" in fails(ir, nested, X)


def test_other_numbers_and_strings() -> None:
    """Outputs that are no tensors must be equal, and of the same type."""
    ir = captured(module(lambda self, x: [x, 3, "a", None, True]), X)
    for others in (
        (4, "a", None, True),
        (3, "b", None, True),
        (3, "a", 0, True),
        (3, "a", None, 1),
        (3.0, "a", None, True),
    ):
        assert "instead of" in fails(ir, module(lambda self, x, others=others: [x, *others]), X)


def counting(self: Any, x: Tensor) -> Tensor:
    self.count.add_(1)
    return x * 2


def test_a_forgotten_buffer_update() -> None:
    """What the model changes and the graph does not is caught, though the outputs are right."""
    model = module(counting, buffers={"count": torch.zeros(())})
    ir = captured(model, X)
    ir.mutations = []
    assert fails(ir, model, X) == "count afterwards: the model changes it, the graph does not"


def test_a_wrong_buffer_update() -> None:
    """The new value of a buffer is compared like an output."""
    model = module(counting, buffers={"count": torch.zeros(())})
    ir = captured(model, X)
    ir.node("add").attrs["other"] = 2
    assert fails(ir, model, X) == "count afterwards: 1 of 1 elements are too far off"


def test_a_buffer_update_that_the_model_does_not_do() -> None:
    """What the graph changes and the model does not is caught as well."""
    ir = captured(module(counting, buffers={"count": torch.zeros(())}), X)
    model = module(lambda self, x: x * 2, buffers={"count": torch.zeros(())})
    assert fails(ir, model, X) == "count afterwards: 1 of 1 elements are too far off"


def test_a_forgotten_input_mutation() -> None:
    """Inputs that the model writes to are part of its results."""

    def forward(self: Any, x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return x * 2

    model = module(forward)
    ir = captured(model, X, X)
    ir.mutations = []
    assert fails(ir, model, X, X) == "input 1 afterwards: the model changes it, the graph does not"


def test_a_model_without_outputs() -> None:
    """Where neither side returns or changes anything, nothing is proved."""
    model = module(lambda self, x: None)
    assert fails(captured(model, X), model, X) == "nothing was compared: neither side returned or changed a tensor"


def test_swapped_inputs() -> None:
    """The order of arguments counts."""
    model = module(lambda self, x, y: x - y)
    ir = captured(model, X, X)
    node = ir.node("sub")
    node.inputs = node.inputs[::-1]
    assert "too far off" in fails(ir, model, X, X * 3)


def test_a_dropped_node() -> None:
    """A graph without one of its nodes is another graph."""
    ir = captured(LAYER, X)
    relu = ir.node("relu")
    relu.output.replace_all_uses_with(relu["self"])
    ir.nodes.remove(relu)
    relu.inputs = ()
    assert "too far off" in fails(ir, LAYER, X)


def test_a_wrong_constant() -> None:
    """Constants that the graph holds are used as they are, not as the model has them."""
    model = module(lambda self, x: x * self.scale, scale=torch.full((4,), 2.0))
    ir = captured(model, X)
    scale = ir.params[0]
    assert scale.param is not None
    assert scale.param.data is not None
    data = type(scale.param.data)((4,), "float32", torch.full((4,), 3.0).numpy().tobytes())
    scale.param = Param(scale.param.keys, scale.param.kind, data)
    assert "too far off" in fails(ir, model, X)


def test_a_wrong_size() -> None:
    """A symbolic size that is computed wrongly is caught."""
    model = module(lambda self, x: (x * x.shape[0], x.shape[0] + 1))
    ir = captured(model, X, dynamic_shapes=({0: torch.export.Dim("batch")},))
    ir.node("mul").attrs["other"] = Expr("batch + 1")
    assert "too far off" in fails(ir, model, X)


# -- what is no error -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: x / 0,
        lambda self, x: torch.full_like(x, math.nan),
        lambda self, x: torch.where(x > 0, math.inf, -math.inf) + x,
        lambda self, x: torch.complex(x / 0, x * math.nan),
        lambda self, x: {"nested": [(x, {"deep": x * 2})], "number": 3, "none": None},
        lambda self, x: (x, x, [x]),
        lambda self, x: (x[:0], x + 1),
        lambda self, x: x.to_sparse(),
        lambda self, x: x.to(torch.float8_e4m3fn),
        lambda self, x: (x > 0, x.long(), x.to(torch.uint8), x.half()),
    ],
    ids=["inf", "nan", "mixed", "complex", "nested", "twice", "empty", "sparse", "float8", "integers"],
)
def test_no_false_alarms(forward: Callable[..., Any]) -> None:
    """NaN equals NaN, infinities equal themselves, and any structure, layout or dtype compares with its like."""
    model = module(forward)
    report = verdict(captured(model, X), model, X)
    assert report.is_valid, report


def test_in_place_models_are_no_alarm() -> None:
    """Models that write to inputs and buffers pass, and what they write is listed."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        self.total += x.sum()
        return x + self.total

    model = module(forward, buffers={"total": torch.zeros(())})
    report = verdict(captured(model, X), model, X)
    assert report.is_valid, report
    assert [item["name"] for item in report.output_details] == ["output", "total afterwards", "input 0 afterwards"]


def test_hand_written_graphs_need_no_structure() -> None:
    """A graph of the documented format lists its outputs; the model may nest them as it likes."""
    x, y, z = (TensorMeta(name, (3, 4), "float32") for name in "xyz")
    nodes = [OpNode("y", "aten.relu.default", [x], [y]), OpNode("z", "aten.neg.default", [x], [z])]
    ir = IR(nodes, [x], [y, z])
    assert verdict(ir, module(lambda self, x: {"a": x.relu(), "b": [-x]}), X).is_valid
    assert verdict(IR(nodes[:1], [x], [y]), module(lambda self, x: x.relu()), X).is_valid


def test_random_operators_see_the_same_numbers() -> None:
    """Dropout in training and random tensors are compared under the same seed; the caller's seed is not used up."""
    model = module(
        lambda self, x: self.drop(x) + torch.randn(3, 4) + torch.bernoulli(x.sigmoid()), drop=nn.Dropout(0.5)
    ).train()
    with pytest.warns(CaptureWarning, match="training mode"):
        ir = captured(model, X)
    state = torch.get_rng_state()
    for _ in range(2):
        report = verdict(ir, model, X)
        assert report.is_valid, report
    assert torch.equal(state, torch.get_rng_state())


# -- nothing is touched -----------------------------------------------------------------------------------------------


def test_inputs_weights_and_model_stay_as_they_are() -> None:
    """Verification changes neither the inputs, nor the state dict, nor the model's own buffers."""

    def forward(self: Any, x: Tensor, *, d: dict[str, Tensor]) -> Tensor:
        x.mul_(2)
        d["y"].add_(1)
        self.total += x.sum()
        self.last = self.last + 1
        return self.norm(x) + self.total + self.last

    model = module(forward, norm=nn.BatchNorm1d(4), buffers={"total": torch.zeros(()), "last": torch.zeros(())}).train()
    x, y, weights = X.clone(), X.clone(), model.state_dict()
    objects = dict(model.named_buffers())
    before = {name: value.clone() for name, value in weights.items()}
    with pytest.warns(CaptureWarning):
        ir = captured(model, X, kwargs={"d": {"y": X}})
    for _ in range(2):
        report = verdict(ir, model, x, kwargs={"d": {"y": y}})
        assert report.is_valid, report
    assert torch.equal(x, X)
    assert torch.equal(y, X)
    assert all(torch.equal(weights[name], value) for name, value in before.items())
    assert all(value is objects[name] for name, value in model.named_buffers())


# -- inputs that hide mistakes ----------------------------------------------------------------------------------------


def test_zeros_hide_nothing() -> None:
    """Where the given inputs agree, others drawn from them are compared, and the report says on how many."""
    model = module(lambda self, x: x * 2)
    ir = captured(model, X)
    zeros = torch.zeros(3, 4)
    report = verdict(ir, model, zeros)
    assert report.is_valid, report
    assert report.trials == 6
    assert "on 6 sets of inputs" in str(report)
    assert any("'x' holds one value only" in note for note in report.notes)
    ir.node("mul").attrs["other"] = 3
    assert fails(ir, model, zeros) == "on shuffled inputs: output: 12 of 12 elements are too far off"
    assert verdict(ir, model, zeros, probe=False).is_valid


@pytest.mark.parametrize(
    ("forward", "node", "attribute", "value"),
    [
        (lambda self, x: x.clamp(max=50.0), "clamp", "max", 60.0),
        (lambda self, x: torch.where(x > 0, x, 1.0), "gt", "other", -1e-12),
        (lambda self, x: F.layer_norm(x, (4,)), "layer_norm", "eps", 1.1e-5),
    ],
    ids=["a bound", "a comparison", "an epsilon"],
)
def test_values_that_the_given_inputs_do_not_reach(
    forward: Callable[..., Any], node: str, attribute: str, value: float
) -> None:
    """Large inputs meet bounds, zeros tell comparisons apart, and float64 tells a small mistake from rounding."""
    model = module(forward)
    ir = captured(model, X)
    assert verdict(ir, model, X).is_valid
    ir.node(node).attrs[attribute] = value
    assert verdict(ir, model, X, rtol=1e-3, atol=1e-3, probe=False).is_valid
    assert "on " in fails(ir, model, X) or "not rounding" in fails(ir, model, X)


def test_ones_and_zeros_of_an_untrained_model() -> None:
    """Weights of one value are told apart by drawing others, for both sides alike."""
    model = module(lambda self, x: self.norm(x), norm=nn.BatchNorm1d(4))
    ir = captured(model, X)
    assert verdict(ir, model, X).is_valid
    weight, variance = (next(p for p in ir.params if p.key == f"norm.{name}") for name in ("weight", "running_var"))
    weight.param, variance.param = variance.param, weight.param
    assert fails(ir, model, X).startswith("on shuffled inputs: output: ")


def test_what_a_module_computed_from_its_weights() -> None:
    """A module that keeps such values gets no others for its weights: it would not notice."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return x + self.bias * 2
        self.doubled = getattr(self, "doubled", self.bias.detach() * 2)
        return x + self.doubled

    model = module(forward, bias=nn.Parameter(torch.zeros(4)))
    report = verdict(captured(model, X), model, X)
    assert report.is_valid, report


def test_numbers_that_should_be_sizes() -> None:
    """Where sizes may vary, others are tried."""
    model = module(lambda self, x: x.sum(0) / x.shape[0])
    ir = captured(model, X, dynamic_shapes=({0: torch.export.Dim("batch")},))
    report = verdict(ir, model, X)
    assert report.is_valid, report
    assert report.trials == 8
    ir.node("div").attrs["other"] = 3
    assert fails(ir, model, X).startswith("on inputs with batch = 4: output: ")


def test_inputs_outside_the_domain_of_the_model() -> None:
    """What the model refuses is left out, and said."""
    model = module(lambda self, x: torch.linalg.cholesky(x @ x.mT + 1e-3 * torch.eye(3)))
    square = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    refusing = module(lambda self, x: torch.linalg.cholesky(x))
    positive = square @ square.mT + torch.eye(3)
    report = verdict(captured(refusing, positive), refusing, positive)
    assert report.is_valid, report
    assert any(note.startswith("the model refuses inputs of zeros: linalg.cholesky") for note in report.notes)
    assert verdict(captured(model, square), model, square).is_valid


# -- weights and structure --------------------------------------------------------------------------------------------


def test_weights_that_are_not_the_models() -> None:
    """One element of one weight that differs is named, though no output shows it."""
    ir = captured(LAYER, X)
    weights = {name: value.clone() for name, value in LAYER.state_dict().items()}
    weights["layer.weight"][1, 2] += 1e-7
    ok, report = verify_ir_with_state_dict(ir, weights, LAYER, (X,))
    assert not ok
    assert report.error_message == "weight 'layer.weight' is not the model's: 1 of 16 elements differ"
    assert [item["is_close"] for item in report.output_details] == [True]
    assert verify_ir_with_state_dict(ir, weights, LAYER, (X,), rtol=1e-5, atol=1e-5)[0]


def test_other_containers_of_outputs() -> None:
    """A captured graph knows a tuple from a list, and a tensor from a tuple of one."""
    pair = captured(module(lambda self, x: (x + 1, x)), X)
    assert fails(pair, module(lambda self, x: [x + 1, x]), X) == (
        "the model nests its outputs in a list of 2, the graph in a tuple of 2"
    )
    assert verdict(pair, module(lambda self, x: (x + 1, x)), X).is_valid
    alone = captured(module(lambda self, x: x + 1), X)
    assert fails(alone, module(lambda self, x: (x + 1,)), X) == "the model returns output[0], the graph output"


def test_what_a_branch_declares() -> None:
    """The inputs of a function are compared with their declarations too."""
    model = module(lambda self, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    ir = captured(model, X)
    for body in ir.functions.values():
        body.graph_inputs[0].dtype = "float64"
    assert fails(ir, model, X).endswith("given to a function is declared float64[3, 4], but is float32[3, 4]")


# -- what is said and not judged --------------------------------------------------------------------------------------


def test_random_numbers_are_said() -> None:
    """Nodes that draw are counted, and how they were compared is told."""
    model = module(lambda self, x: F.dropout(x, 0.5, training=True) + torch.randn(3, 4))
    report = verdict(captured(model, X), model, X)
    assert report.is_valid, report
    (note,) = report.notes
    assert note.startswith("2 nodes (")
    assert note.endswith("): random numbers, for which both sides were seeded alike")


def test_uninitialised_memory_is_said() -> None:
    model = module(lambda self, x: torch.empty(3, 4).copy_(x))
    report = verdict(captured(model, X), model, X)
    assert report.is_valid, report
    assert any("memory as it was found" in note for note in report.notes)


def test_branches_that_did_not_run_are_said() -> None:
    """Drawn inputs reach the other branch where they can; what none reaches is named."""
    signs = module(lambda self, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    never = module(lambda self, x: torch.cond(x.abs().sum() >= 0, torch.sin, torch.cos, (x,)))
    assert verdict(captured(signs, X), signs, X).notes == []
    report = verdict(captured(never, X), never, X)
    assert report.is_valid, report
    assert report.notes == [
        "function 'false_graph_0' of OpNode('cond', 'higher_order.cond') did not run on any of the inputs and was not "
        "compared"
    ]


def test_strides_are_said() -> None:
    """Declared strides that do not hold make a note, not a failure."""
    model = module(lambda self, x: x.t() + 1)
    ir = captured(model, X)
    ir.node("add").output.stride = (7, 5)
    report = verdict(ir, model, X)
    assert report.is_valid, report
    assert report.notes == ["'add': not the strides that the graph declares, which are not judged"]


# -- every model in every dtype ---------------------------------------------------------------------------------------

# models whose own forward makes float32 tensors, so that torch itself refuses their weights in half precision
FLOAT32_ONLY = {
    "diffusion_step": "the embedding of the time step is float32",
    "fft": "torch has no such Fourier transform",
    "graph_conv": "the matrix of degrees is float32",
    "grouped_query_attention": "rotary tables are float32",
    "llama": "rotary tables are float32",
    "message_passing": "the sums of messages are float32",
    "mixed_precision": "it mixes dtypes by itself",
}
HALVES = (torch.bfloat16, torch.float16)


def in_dtype(tree: Any, dtype: torch.dtype) -> Any:
    return pytree.tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, tree)


may_lose_values = pytest.mark.filterwarnings("ignore:the values of .* are unknown")  # verification has the model's


def agrees_to_the_bit(entry: Entry, dtype: torch.dtype | None) -> None:
    """The file of a model gives the bits that the model gives, on the given and on drawn inputs."""
    torch.manual_seed(0)
    model, args, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    if dtype is not None:
        model, args, kwargs = model.to(dtype), in_dtype(args, dtype), in_dtype(kwargs, dtype)
    if dtype is not None and entry.name in FLOAT32_ONLY:
        with pytest.raises(RuntimeError):
            model(*args, **kwargs)
        return
    report = verdict(captured(model, *args, kwargs=kwargs), model, *args, kwargs=kwargs)
    assert report.is_valid, report
    assert report.max_diff == 0.0
    assert report.trials >= 5


@may_lose_values
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("entry", catalogue.entries()[1::7], ids=lambda entry: entry.name)
def test_a_sample_in_half_precision(entry: Entry, dtype: torch.dtype) -> None:
    agrees_to_the_bit(entry, dtype)


@pytest.mark.slow
@may_lose_values
@pytest.mark.parametrize("dtype", [None, *HALVES], ids=str)
@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_every_model_in_every_dtype(entry: Entry, dtype: torch.dtype | None) -> None:
    agrees_to_the_bit(entry, dtype)
