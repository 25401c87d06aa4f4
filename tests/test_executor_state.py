"""Running a graph does not change the caller's tensors or the process; the executor keeps the state."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.graphs import tensor
from tests.proof import captured, module
from torch_ir import IR, IRExecutor, OpNode

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_weights_and_inputs_are_never_written_to() -> None:
    """Also where the model changes its buffers and its input, the caller's tensors stay as they are."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        self.total.add_(x.sum(0))
        return self.norm(x) + self.total

    model = module(forward, norm=nn.BatchNorm1d(4), buffers={"total": torch.zeros(4)})
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    given = X.clone()
    executor = IRExecutor(captured(model, X), weights)
    executor(given)
    executor(given)
    assert torch.equal(given, X)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [
        ("aten.add_.Scalar", {"other": 1}),
        ("aten.zero_.default", {}),
        ("aten.batch_norm.default", {"training": True, "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False}),
        ("aten.instance_norm.default", {"use_input_stats": True, "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False}),
    ],
)
def test_files_that_write_in_place(op_type: str, attrs: dict[str, Any]) -> None:
    """A file that is not in functional form runs on copies, also where the operator's schema hides that it writes."""
    x, mean, var = tensor("x", 3, 4, 2), tensor("mean", 4), tensor("var", 4)
    has_statistics = "norm" in op_type
    node = OpNode(
        "node",
        op_type,
        [x, mean, var] if has_statistics else [x],
        [tensor("node", 3, 4, 2)],
        {**attrs, "weight": None, "bias": None} if has_statistics else attrs,
        args=["input", "running_mean", "running_var"] if has_statistics else ["self"],
    )
    ir = IR([node], [x], [tensor("node", 3, 4, 2)], [mean, var], {"mean": "mean", "var": "var"})
    given, weights = torch.randn(3, 4, 2), {"mean": torch.zeros(4), "var": torch.ones(4)}
    before = given.clone()
    executor = IRExecutor(ir, weights)
    results = [executor(given)[0] for _ in range(2)]
    assert torch.equal(given, before)
    assert torch.equal(weights["mean"], torch.zeros(4))
    assert torch.equal(results[0], results[1])


def test_state_is_kept_between_runs() -> None:
    """Buffers that the model changes persist in the executor, as in the model; `state` returns them."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self.total.add_(x.sum())
        return self.total * 2

    model = module(forward, buffers={"total": torch.zeros(())})
    executor = IRExecutor(captured(model, X), {"total": torch.zeros(())})
    for _ in range(3):
        assert torch.equal(executor(X), model(X))
    assert torch.equal(executor.state["total"], model.total)


def test_state_is_the_executors_own() -> None:
    """A caller that writes to a result, or to its input, does not change the state behind the executor's back."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.total + x
        self.total.copy_(y)
        self.last.copy_(x)
        return y

    model = module(forward, buffers={"total": torch.zeros(4), "last": torch.zeros(4)})
    executor = IRExecutor(captured(model, torch.ones(4)), model.state_dict())
    given = torch.ones(4)
    executor(given).zero_()
    given.zero_()
    assert torch.equal(executor.state["total"], torch.ones(4))
    assert torch.equal(executor.state["last"], torch.ones(4))


@pytest.mark.parametrize("grad", [True, False])
def test_the_process_is_left_as_it_was(grad: bool) -> None:
    """A run changes neither grad mode, thread count, default dtype nor the random state, and tracks no gradients."""
    model = module(lambda self, x: self.layer(x), layer=nn.Linear(4, 4))
    executor = IRExecutor(captured(model, X), model.state_dict())

    def standing() -> tuple[Any, ...]:
        return torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state()

    with torch.set_grad_enabled(grad):
        before = standing()
        result = executor(X.clone().requires_grad_())
        after = standing()
    assert before[:3] == after[:3]
    assert torch.equal(before[3], after[3])
    assert not result.requires_grad
