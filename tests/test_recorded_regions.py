"""Autocast regions and norms in training mode are recorded like other calls, and compute what eager computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.proof import module
from torch_ir import extract_ir, verify_ir_with_state_dict
from torch_ir.capture.fast.fast_recording import record_fast

X = torch.arange(24.0).reshape(4, 6).sin()
CAST = torch.bfloat16


def whole(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=CAST):
        return F.softmax(self.linear(x), -1) @ x.t()


def composite(self: Any, x: Tensor) -> Any:
    """`einsum` is not cast itself, but the product in it; outside the region it is not."""
    with torch.autocast("cpu", dtype=CAST):
        inside = torch.einsum("ij,kj->ik", x, self.linear.weight)
    return inside, torch.einsum("ij,kj->ik", x, self.linear.weight)


def composite_before(self: Any, x: Tensor) -> Any:
    """The same call outside first: what it returns there is remembered."""
    outside = torch.einsum("ij,kj->ik", x, self.linear.weight)
    with torch.autocast("cpu", dtype=CAST):
        return torch.einsum("ij,kj->ik", x, self.linear.weight), outside


def disabled_inside(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=CAST):
        y = self.linear(x)
        with torch.autocast("cpu", enabled=False):
            z = self.linear(x)
        return y, z, torch.einsum("ij,kj->ik", x, y)


def disabled(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", enabled=False):
        return self.linear(x)


def two_dtypes(self: Any, x: Tensor) -> Any:
    made = []
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            made.append(torch.einsum("ij,kj->ik", x, self.linear.weight))
    return made


def switched(self: Any, x: Tensor) -> Any:
    torch.set_autocast_enabled("cpu", True)
    try:
        return self.linear(x)
    finally:
        torch.set_autocast_enabled("cpu", False)


def twice_the_weight(self: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=CAST):
        return self.linear(self.linear(x)), F.layer_norm(x, (6,)), F.dropout(x, 0.5, False)


def attention(self: Any, x: Tensor) -> Any:
    y = x.reshape(1, 1, 4, 6)
    with torch.autocast("cpu", dtype=CAST):
        return (
            F.scaled_dot_product_attention(y, y, y),
            F.cosine_similarity(x, x + 1),
            F.conv1d(x.t()[None], x[:, :, None]),
        )


REGIONS = (
    whole, composite, composite_before, disabled_inside, disabled, two_dtypes, switched, twice_the_weight, attention,
)  # fmt: skip


@pytest.mark.parametrize("forward", REGIONS, ids=lambda forward: forward.__name__)
def test_regions_of_autocast(forward: Callable[..., Any]) -> None:
    model = module(forward, linear=nn.Linear(6, 6)).eval()
    settings = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled(), torch.get_autocast_dtype("cpu")
    recorded = record_fast(model, (X,), {})
    assert settings == (
        torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled(), torch.get_autocast_dtype("cpu"),
    )  # fmt: skip
    passed, report = verify_ir_with_state_dict(recorded, model.state_dict(), model, (X,))
    assert passed, report
    assert report.max_diff == 0


def test_an_operator_is_opened_where_it_is_cast() -> None:
    made = record_fast(module(composite, linear=nn.Linear(6, 6)).eval(), (X,), {})
    assert [node.op_type for node in made.nodes if node.op_type in ("aten.bmm.default", "aten.einsum.default")] == [
        "aten.bmm.default", "aten.einsum.default",
    ]  # fmt: skip


def test_what_a_region_infers_is_not_remembered() -> None:
    """A capture without a region, after one with it, has the dtypes of float32."""
    linear = nn.Linear(6, 6)
    for _ in range(2):
        record_fast(module(twice_the_weight, linear=linear).eval(), (X,), {})
        plain = record_fast(module(lambda self, x: F.layer_norm(self.linear(x), (6,)), linear=linear).eval(), (X,), {})
        assert {tensor.dtype for tensor in plain.tensors()} == {"float32"}


def test_a_region_with_dynamic_sizes() -> None:
    model = module(whole, linear=nn.Linear(6, 6)).eval()
    ir = extract_ir(model, (X,), strict=False, dynamic_shapes=({0: torch.export.Dim("n", min=2, max=9)},))
    assert not torch.is_autocast_enabled("cpu")
    for rows in (2, 7):
        passed, report = verify_ir_with_state_dict(ir, model.state_dict(), model, (X[:1].repeat(rows, 1),))
        assert passed, report


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm1d(6),
    "batch without weights": lambda: nn.BatchNorm1d(6, affine=False),
    "batch and dropout": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)),
    "batch without statistics": lambda: nn.BatchNorm1d(6, track_running_stats=False),
    "momentum": lambda: nn.BatchNorm1d(6, momentum=0.5),
    "twice": lambda: module(lambda self, x: self.norm(self.norm(x)), norm=nn.BatchNorm1d(6)),
    "in a region": lambda: module(_norm_in_a_region, norm=nn.BatchNorm1d(6)),
    "instance": lambda: module(lambda self, x: self.norm(x[None]), norm=nn.InstanceNorm1d(4, track_running_stats=True)),
    "statistics that are returned": lambda: module(
        lambda self, x: (self.norm(x), self.norm.running_mean * 2, self.norm.num_batches_tracked + 1),
        norm=nn.BatchNorm1d(6),
    ),
}


def _norm_in_a_region(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=CAST):
        return self.norm(x @ x.t() @ x)


@pytest.mark.parametrize("name", NORMS)
def test_norms_in_training_mode(name: str) -> None:
    """Outputs and statistics are those of eager, call after call."""
    model = NORMS[name]().train()
    recorded = record_fast(model, (X,), {})
    passed, report = verify_ir_with_state_dict(recorded, model.state_dict(), model, (X,))
    assert passed, report
    assert len(recorded.mutations) == {"batch without statistics": 0, "instance": 2}.get(name, 3)


def test_other_operators_beside_a_norm_stay_whole() -> None:
    """As in a model without one."""
    model = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.BatchNorm1d(6), nn.Dropout(0.5)).train()
    assert [node.op_type for node in record_fast(model, (X,), {}).nodes] == [
        "aten.unflatten.int", "aten.flatten.using_ints", "aten.add.Tensor",
        "aten._native_batch_norm_legit_functional.default", "aten.dropout.default",
    ]  # fmt: skip
