"""Decisions on data in a recording: reported, guarded, or explored."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.proof import line_of, module, ops
from torch_ir import IR, CaptureWarning, ExecutionError, ExportError, GuardError, IRExecutor, extract_ir

X = torch.arange(12.0).reshape(3, 4) / 10 - 0.3
pytestmark = pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")


def recorded(model: nn.Module, *inputs: Any, **options: Any) -> IR:
    """The graph of one run on real tensors, as a reader of its file gets it."""
    return IR.from_json(extract_ir(model, inputs, strict=False, capture="record", **options).to_json())


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.sum() > 0:  # decision
            self.count.add_(1)
            y = self.linear(x)
        else:
            y = x.t().contiguous().t() * torch.tensor(3.0)
        if y.max() > 1:
            y = y * 2
        return y, self.count + 1


def agrees_everywhere(ir: IR, model: nn.Module) -> None:
    """On inputs for every path, including changed state."""
    torch.manual_seed(0)
    for _ in range(24):
        x = torch.randn(3, 4) * 2
        run, witness = IRExecutor(ir, model.state_dict()), copy.deepcopy(model)
        outcome = run.run((x,))
        wanted = [*witness(x), witness.count]
        torch.testing.assert_close([*outcome.outputs, *outcome.mutations.values()], wanted, rtol=0, atol=0)


def test_a_decision_says_what_was_assumed_and_replay_checks_it() -> None:
    """The graph of one run is valid for data that takes the same path, and raises otherwise."""
    torch.manual_seed(0)
    model = Branching().eval()
    ir = recorded(model, torch.ones(3, 4))
    decision = next(node for node in ir.nodes if node.op_type == "torch_ir.decision.default")
    assert (decision["assumed"], decision["place"]) == (True, line_of(__file__, "decision"))
    assert str(decision["value"].producer) in str(ir.node("gt"))
    torch.testing.assert_close(IRExecutor(ir, model.state_dict())(X + 1), model(X + 1))
    with pytest.raises(GuardError, match="branches on data: at capture the value was True, now"):
        IRExecutor(ir, model.state_dict())(-torch.ones(3, 4))


@pytest.mark.parametrize("how", ["record", "auto"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_way_that_a_model_can_go_is_one_graph(how: str, device: str) -> None:
    """Branches with their writes to buffers, joined; no values are needed."""
    model = Branching().eval()
    given = copy.deepcopy(model).to(device)
    ir = extract_ir(given, (X.to(device),), strict=False, capture=how, explore=8)
    ir = IR.from_json(ir.to_json())
    assert "torch_ir.decision.default" not in [node.op_type for node in ir.all_nodes()]
    assert ops(ir) == ["aten.sum.default", "aten.gt.Scalar", "higher_order.cond"]
    agrees_everywhere(ir, model)


def test_each_way_keeps_sizes_that_vary() -> None:
    """A forced torch.export also supports dynamic sizes."""
    model = module(lambda self, x: torch.cat([x, x]) if x.sum() > 0 else torch.cat([-x, x]))
    shapes = {"x": {0: torch.export.Dim("batch", max=64)}}
    ir = IR.from_json(extract_ir(model, (X,), strict=False, dynamic_shapes=shapes, explore=4).to_json())
    assert ir.graph_outputs[0].shape == ("2 * batch", 4)
    for size in (1, 2, 7):
        for sign in (1, -1):
            x = sign * torch.ones(size, 4)
            assert torch.equal(IRExecutor(ir)(x), model(x))


def test_the_bound_on_exploration_is_said_and_guarded() -> None:
    """A loop that is forced to continue has no end: iterations beyond the bound are guarded."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        while x.norm() > 1:
            x = x / 2
        return x

    model = module(forward)
    with pytest.warns(CaptureWarning, match="4 paths were captured and there are more"):
        ir = extract_ir(model, (X,), strict=False, capture="record", explore=4)
    for scale in (0.1, 1.0, 3.0):
        assert torch.equal(IRExecutor(ir)(X * scale), model(X * scale))
    with pytest.raises(GuardError):
        IRExecutor(ir)(X * 1000)


def test_a_way_that_raises_is_left_out_and_guarded() -> None:
    """An assertion of the model is an assertion of the graph."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        return x * 2

    with pytest.warns(CaptureWarning, match="forward raises ValueError: not finite"):
        ir = extract_ir(module(forward), (X,), strict=False, capture="record", explore=4)
    assert torch.equal(IRExecutor(ir)(X), X * 2)
    with pytest.raises(GuardError):
        IRExecutor(ir)(X / 0)


def test_ways_that_return_different_forms_cannot_be_joined() -> None:
    model = module(lambda self, x: x if x.sum() > 0 else x[0])
    with pytest.raises(ExportError, match="cannot capture"):
        extract_ir(model.to("meta"), (X.to("meta"),), explore=4)
    with pytest.raises(Exception, match=r"dtypes for different outcomes: float32\[4\] and float32\[3, 4\]"):
        extract_ir(model, (X - 9,), strict=False, capture="record", explore=4)


def test_the_same_question_is_asked_once() -> None:
    model = module(lambda self, x: (x + 1 if (p := x.sum() > 0) else x) * (2 if p else 3))
    assert ops(recorded(model, X)).count("torch_ir.decision.default") == 1


def test_a_number_is_guarded_as_it_was() -> None:
    """Values that Python computed from it are in the graph, which is therefore valid for that number only."""
    model = module(lambda self, x: x * round(float(x[0, 0]), 2) + x.shape[0])
    ir = recorded(model, X)
    assert torch.equal(IRExecutor(ir)(X), model(X))
    with pytest.raises(GuardError, match=r"the value was -0\.3"):
        IRExecutor(ir)(X + 1)


def test_a_size_made_of_data_is_guarded() -> None:
    model = module(lambda self, x: x[x > 0.5].sum() * x[x > 0.5].shape[0])
    ir = recorded(model, X)
    assert torch.equal(IRExecutor(ir)(X), model(X))
    with pytest.raises(GuardError, match=r"the shape was \[3\], now it is \[12\]"):
        IRExecutor(ir)(X + 1)


def test_what_is_made_of_strides_holds_for_those_strides() -> None:
    model = module(lambda self, x: x + 1 if x.is_contiguous() else x - 1)  # strides
    ir = recorded(model, X)
    assert ir.fixed_layout == line_of(__file__, "strides")
    with pytest.raises(ExecutionError, match=r"but .* depends on strides and was captured for"):
        IRExecutor(ir)(X.t().contiguous().t())


def test_a_number_that_nobody_has_is_refused_with_the_remedy() -> None:
    model = module(lambda self, x: x * [1, 2, 3][int(x.sum())])  # number
    with pytest.raises(ExportError, match=r"without values.*strict=False") as caught:
        extract_ir(model.to("meta"), (X.to("meta"),), capture="record")
    assert line_of(__file__, "number") in str(caught.value)


def test_fake_tensors_of_ones_own_are_as_good_as_meta() -> None:
    """A model that was built under a mode of the user's, or inputs of such a mode, are recorded like those on meta."""
    with FakeTensorMode():
        fake, x = Branching().eval(), torch.empty(3, 4)
    wanted = ops(extract_ir(Branching().eval().to("meta"), (X.to("meta"),), capture="record"))
    for model in (fake, Branching().eval()):
        assert ops(extract_ir(model, (x,), strict=False, capture="record")) == wanted
