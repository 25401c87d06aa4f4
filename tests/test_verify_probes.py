"""Verification detects errors that the given inputs and weights would hide."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.proof import captured, fails, module, verdict
from torch_ir import extract_ir, verify_ir_with_state_dict

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
LAYER = module(lambda self, x: self.layer(x).relu(), layer=nn.Linear(4, 4))


# -- inputs that hide mistakes ----------------------------------------------------------------------------------------


def test_zeros_hide_nothing() -> None:
    """If the given inputs agree, derived ones are compared, and the report gives their number."""
    model = module(lambda self, x: x * 2)
    ir = captured(model, X)
    zeros = torch.zeros(3, 4)
    report = verdict(ir, model, zeros)
    assert report.is_valid, report
    assert report.trials == 6
    assert "on 6 sets of inputs" in str(report)
    assert any("all elements of input 'x' are equal" in note for note in report.notes)
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
    """Large inputs reach bounds, zeros distinguish comparisons, float64 distinguishes small errors from rounding."""
    model = module(forward)
    ir = captured(model, X)
    assert verdict(ir, model, X).is_valid
    ir.node(node).attrs[attribute] = value
    assert verdict(ir, model, X, rtol=1e-3, atol=1e-3, probe=False).is_valid
    assert "on " in fails(ir, model, X) or "not rounding" in fails(ir, model, X)


def test_positive_inputs_hide_no_mistake_on_negative_ones() -> None:
    model = module(lambda self, x, mask: F.leaky_relu(x, 0.1) * mask)
    mask = torch.tensor([0.0, 1.0, 1.0, 0.0])
    ir = captured(model, X, mask)
    positive = X.abs() + 0.1
    report = verdict(ir, model, positive, mask)
    assert report.is_valid, report
    assert report.trials == 7
    ir.node("leaky_relu").attrs["negative_slope"] = 0.3
    assert fails(ir, model, positive, mask).startswith("on shuffled inputs of both signs: output: ")


@pytest.mark.parametrize("forward", [lambda self, x: x.log().sum(), lambda self, x: torch.special.digamma(x)])
def test_a_domain_of_one_sign_is_said(forward: Callable[..., Any]) -> None:
    model, positive = module(forward), X.abs() + 0.1
    report = verdict(captured(model, positive), model, positive)
    assert report.is_valid, report
    is_said = any(note.startswith("inputs of both signs are outside the model's domain") for note in report.notes)
    assert is_said == model(-positive).isnan().all()


@pytest.mark.filterwarnings("ignore:.*is in training mode")
def test_random_numbers_and_training_are_part_of_the_verdict() -> None:
    model = module(lambda self, x: F.dropout(self.norm(x), 0.5, True), norm=nn.BatchNorm1d(4)).train()
    report = verdict(captured(model, X), model, X)
    assert str(report).startswith("Verification PASSED, for random numbers of one seed, in training mode\n")
    assert not verdict(captured(model, X), model.eval(), X).is_valid


def test_ones_and_zeros_of_an_untrained_model() -> None:
    """Constant weights are distinguished by random ones, the same for both sides."""
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


def test_an_empty_batch_is_tried_at_other_sizes() -> None:
    """Nothing can be repeated there; other sizes get zeros, and the drawn values differ."""
    linear = nn.Linear(4, 3).eval()
    batch = torch.export.Dim("batch", min=0, max=9)
    ir = extract_ir(linear, (torch.ones(5, 4),), dynamic_shapes={"input": {0: batch}}, strict=False)
    is_valid, report = verify_ir_with_state_dict(ir, linear.state_dict(), linear, (torch.empty(0, 4),))
    assert is_valid, str(report)
    assert "sets of inputs" in str(report)


def test_inputs_outside_the_domain_of_the_model() -> None:
    """Inputs that the model rejects are skipped, with a note."""
    model = module(lambda self, x: torch.linalg.cholesky(x @ x.mT + 1e-3 * torch.eye(3)))
    square = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    refusing = module(lambda self, x: torch.linalg.cholesky(x))
    positive = square @ square.mT + torch.eye(3)
    report = verdict(captured(refusing, positive), refusing, positive)
    assert report.is_valid, report
    assert any(note.startswith("the model rejects inputs of zeros: linalg.cholesky") for note in report.notes)
    assert verdict(captured(model, square), model, square).is_valid


# -- weights and structure --------------------------------------------------------------------------------------------


def test_weights_that_are_not_the_models() -> None:
    """One element of one weight that differs is named, though no output shows it."""
    ir = captured(LAYER, X)
    weights = {name: value.clone() for name, value in LAYER.state_dict().items()}
    weights["layer.weight"][1, 2] += 1e-7
    ok, report = verify_ir_with_state_dict(ir, weights, LAYER, (X,))
    assert not ok
    assert report.error_message == "weight 'layer.weight' differs from the model's: 1 of 16 elements differ"
    assert [item["is_close"] for item in report.output_details] == [True]
    assert verify_ir_with_state_dict(ir, weights, LAYER, (X,), rtol=1e-5, atol=1e-5)[0]


def test_other_containers_of_outputs() -> None:
    """A captured graph distinguishes a tuple from a list, and a tensor from a tuple of one."""
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


def test_integers_of_one_value() -> None:
    """Zero hides errors, so constant integers are drawn as well."""
    model = module(lambda self, x: x >> 3)
    zero = torch.zeros((), dtype=torch.int32)
    ir = captured(model, zero)
    assert verdict(ir, model, zero).is_valid
    (node,) = (node for node in ir.nodes if "other" in node.attrs)
    node.attrs["other"] = 0
    assert fails(ir, model, zero).startswith("on integers of other values: ")


def test_indices_keep_their_bounds() -> None:
    """An index at its bound produces no note."""
    model = module(lambda self, i: self.table(i), table=nn.Embedding(3, 4))
    last = torch.full((2,), 2)
    report = verdict(captured(model, last), model, last)
    assert report.is_valid, report
    assert not any("refuses" in note for note in report.notes)
