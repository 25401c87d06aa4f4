"""Verification: its reports, accepted differences, and that it changes nothing."""

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
from torch_ir.run.seeding import seed_generators

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
LAYER = module(lambda self, x: self.layer(x).relu(), layer=nn.Linear(4, 4))


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
    """A failed report names the output, the difference, and the number of elements."""
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


def test_a_model_that_fails_is_not_compared() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        if int(x.sum()) >= 0:
            raise ValueError("not these inputs")
        return x.relu()

    ok, report = verify_ir_with_state_dict(captured(nn.ReLU().eval(), X), {}, module(forward), (X.abs(),))
    assert (ok, report.trials, report.not_compared) == (False, 0, 1)
    assert "itself raises ValueError: not these inputs" in str(report)


def test_wrong_weights_are_a_failure() -> None:
    """Weights that do not match produce a failed report with the reason; an unreadable file is an error."""
    ir = captured(LAYER, X)
    ok, report = verify_ir_with_state_dict(ir, {"layer.weight": torch.ones(4, 4)}, LAYER, (X,))
    assert not ok
    assert "'layer.bias' is missing" in str(report)
    with pytest.raises(WeightLoadError):
        verify_ir(ir, "no_such_file.pt", LAYER, (X,))


def test_wrong_inputs_are_a_failure() -> None:
    """Inputs that do not match the graph produce a failed report."""
    ok, report = verify_ir_with_state_dict(captured(LAYER, X), LAYER.state_dict(), LAYER, ())
    assert not ok
    assert "expected 1 item, got 0" in str(report)


def test_tolerances_can_be_given() -> None:
    """The caller's tolerances replace those of the dtype."""
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
    """Models that write to inputs and buffers pass, and their writes are listed."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        self.total += x.sum()
        return x + self.total

    model = module(forward, buffers={"total": torch.zeros(())})
    report = verdict(captured(model, X), model, X)
    assert report.is_valid, report
    assert [item["name"] for item in report.output_details] == ["output", "total afterwards", "input 0 afterwards"]


def test_hand_written_graphs_need_no_structure() -> None:
    """A version 0 graph lists its outputs; the model may nest them in any way."""

    def graph(*names: str) -> IR:
        x, y, z = (TensorMeta(name, (3, 4), "float32") for name in "xyz")
        ops = {"y": ("aten.relu.default", y), "z": ("aten.neg.default", z)}
        nodes = [OpNode(name, ops[name][0], [x], [ops[name][1]]) for name in names]
        return IR(nodes, [x], [ops[name][1] for name in names])

    assert verdict(graph("y", "z"), module(lambda self, x: {"a": x.relu(), "b": [-x]}), X).is_valid
    assert verdict(graph("y"), module(lambda self, x: x.relu()), X).is_valid


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


@pytest.mark.parametrize("is_present", [True, False])
def test_seeds_are_those_of_torch(is_present: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an accelerator, its generators are seeded, too."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: is_present)
    with torch.random.fork_rng(devices=[]):
        seed_generators(3)
        drawn = torch.rand(4)
        assert seeded == [3] * is_present
        torch.manual_seed(3)
        assert torch.equal(torch.rand(4), drawn)


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


# -- what is said and not judged --------------------------------------------------------------------------------------


def test_random_numbers_are_said() -> None:
    """Random operators are counted, and the comparison is explained."""
    model = module(lambda self, x: F.dropout(x, 0.5, training=True) + torch.randn(3, 4))
    report = verdict(captured(model, X), model, X)
    assert report.is_valid, report
    (note,) = report.notes
    assert note.startswith("2 nodes (")
    assert note.endswith("): random numbers; both sides had the same seed")


def test_uninitialised_memory_is_said() -> None:
    model = module(lambda self, x: torch.empty(3, 4).copy_(x))
    report = verdict(captured(model, X), model, X)
    assert report.is_valid, report
    assert any("uninitialised memory" in note for note in report.notes)


def test_branches_that_did_not_run_are_said() -> None:
    """Derived inputs reach the other branch where possible; unreached branches are named."""
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
    """Wrong declared strides are a note, not a failure."""
    model = module(lambda self, x: x.t() + 1)
    ir = captured(model, X)
    ir.node("add").output.stride = (7, 5)
    report = verdict(ir, model, X)
    assert report.is_valid, report
    assert report.notes == ["'add': strides differ from the declared ones; they are not judged"]
