"""Models that change buffers and inputs: each rank changes its shard, and all shards are compared."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.sharded_models import MLP
from torch_ir import IR, LocalRanks, extract_ir, shard, verify_sharded

X, Y = torch.linspace(-1, 1, 8).reshape(2, 4), torch.ones(2)
PLANS = {
    "a buffer in pieces": {"up": "colwise", "kept": {"matrix": "shard(1)"}},
    "a buffer that is whole": {"up": "colwise"},
}


class Remembering(nn.Module):
    """It counts its calls, keeps a layer's result, and writes to its second input."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.register_buffer("kept", torch.ones(2, 8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.kept.copy_(self.kept * 0.5 + self.up(x))
        y.add_(1)
        return self.kept.sum(-1) + y


def remembering(plan: str = "a buffer in pieces") -> tuple[Remembering, IR, IR]:
    torch.manual_seed(0)
    model = Remembering()
    ir = extract_ir(model, (X, Y), strict=False)
    return model, ir, shard(ir, PLANS[plan], {"tp": 2})


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("original", ["model", "graph"])
def test_what_is_changed_is_compared(plan: str, original: str) -> None:
    """Pieces of a buffer are put together; model and inputs stay as they were."""
    model, ir, sharded = remembering(plan)
    x, y = X.clone(), Y.clone()
    is_valid, report = verify_sharded(sharded, model if original == "model" else ir, model.state_dict(), (x, y))
    assert is_valid, str(report)
    told = [row["name"] for row in report.output_details[1:]]
    assert told == ["kept afterwards", "calls afterwards", "input 1 afterwards"]
    assert report.output_details[1]["shape"] == [2, 8]
    assert model.calls == 0
    assert torch.equal(y, Y)


def test_a_buffer_is_changed_where_it_lies() -> None:
    """No collective for it: a rank never sees the pieces of others."""
    _, _, sharded = remembering()
    target, value = sharded.mutations[0]
    assert target.shape == value.shape == (2, 4)
    assert target.placement == value.placement == ("shard(1)",)


@pytest.mark.parametrize("original", ["model", "graph"])
def test_a_change_that_is_forgotten_is_found(original: str) -> None:
    model, ir, sharded = remembering()
    sharded.mutations = sharded.mutations[1:]
    is_valid, report = verify_sharded(sharded, model if original == "model" else ir, model.state_dict(), (X, Y))
    assert not is_valid
    assert "kept afterwards: 2x8 float32, max diff inf, DIFFERS: the model changes it, the graph does not" in str(
        report
    )


def test_a_change_that_is_wrong_is_found() -> None:
    """Outputs are right, and the changed state is wrong."""
    model, _, sharded = remembering()
    (kept, _), *others = sharded.mutations
    linear = sharded.node("linear").output
    sharded.mutations = [(kept, linear), *others]
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (X, Y))
    assert not is_valid
    assert [row["is_close"] for row in report.output_details] == [True, False, True, True]


def test_a_change_that_nobody_asked_for_is_found() -> None:
    """A graph that changes state that the model does not change."""
    model, ir, sharded = remembering()
    ir.mutations = ir.mutations[:2]
    is_valid, report = verify_sharded(sharded, ir, model.state_dict(), (X, Y))
    assert not is_valid
    assert "input 1 afterwards: 2 float32, max diff inf, DIFFERS: the graph changes it, the model does not" in str(
        report
    )


def test_a_whole_buffer_is_the_same_on_all_ranks() -> None:
    """A value that only the first rank has right is detected: here its bias, which others omit from the sum."""

    class Keeping(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last.copy_(self.down.bias)
            return super().forward(x)

    model, x = Keeping(), torch.ones(4, 8)
    sharded = shard(extract_ir(model, (x,), strict=False), {"up": "colwise", "down": "rowwise"}, {"tp": 2})
    assert verify_sharded(sharded, model, model.state_dict(), (x,))[0]
    ((last, _),) = sharded.mutations
    sharded.mutations = [(last, sharded.node("once").output)]
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (x,))
    assert not is_valid
    assert report.error_message == "the new value of 'b_last' differs between rank 1 and rank 0"


def test_processes_tell_of_changes_too(ranks: LocalRanks) -> None:
    model, _, sharded = remembering()
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (X, Y), ranks=ranks)
    (given,) = ranks.run(sharded, (X, Y), model.state_dict())
    assert is_valid, str(report)
    assert report.num_outputs == 4
    torch.testing.assert_close(given, model(X, Y.clone()))
