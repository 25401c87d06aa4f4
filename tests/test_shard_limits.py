"""The limits that docs/sharding.md lists under "Limitations": each with its error message."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.sharded_models import MLP, collectives
from torch_ir import (
    IR,
    LocalRanks,
    OpNode,
    ShardError,
    TensorMeta,
    extract_ir,
    shard,
    verify_sharded,
)

PAGE = Path(__file__).parent.parent / "docs" / "sharding.md"
X = torch.ones(4, 8)
LIMITS: dict[str, Callable[..., None]] = {}


def limit(row: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the demonstration of a row of the page, by its first words; its parameters are fixtures."""

    def enter(shown: Callable[..., None]) -> Callable[..., None]:
        LIMITS[row] = shown
        return shown

    return enter


def rows() -> list[str]:
    """The rows of the page, each in one line."""
    section = PAGE.read_text().partition("## Limitations")[2]
    return [" ".join(row.split()) for row in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]


def test_every_limit_of_the_page_is_shown() -> None:
    told = rows()
    assert len(told) == len(LIMITS)
    for row in told:
        assert any(map(row.startswith, LIMITS)), row


def refused(message: str, ir: IR, plan: dict[str, str], ranks: int = 2, **inputs: str) -> None:
    """A one-line error, and no result."""
    with pytest.raises(ShardError, match=message) as caught:
        shard(ir, plan, {"tp": ranks}, inputs=inputs)
    assert "\n" not in str(caught.value)


@limit("Dynamic sizes")
def open_sizes() -> None:
    ir = extract_ir(MLP(), (X,), strict=False, dynamic_shapes={"x": {0: Dim("batch")}})
    refused(
        r"input 'x': dimension 0 of 'x', \['batch', 8\], has size batch, which is open; specialize",
        ir,
        {},
        x="shard(0)",
    )
    assert shard(ir.specialize(batch=4), {}, {"tp": 2}, inputs={"x": "shard(0)"}).graph_inputs[0].shape == (2, 8)


@limit("Packed matrices, and inputs and outputs that are divided")
def unequal_pieces() -> None:
    ir = extract_ir(MLP(), (X,), strict=False)
    packed = r"up.weight: dimension 0 of 'p_up_weight', \[32, 8\], has size 32, .* 2 packed parts, each for 3 ranks"
    refused(packed, ir, {"up": "packed_colwise"}, 3)
    refused(r"input 'x': dimension 0 of 'x', \[4, 8\], has size 4, .* 3 ranks", ir, {}, 3, x="shard(0)")


@limit("Random operators")
def random_numbers() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    ir = extract_ir(Noise().eval(), (X,), strict=False)
    refused(r"rand_like.* draws random numbers, which would differ between ranks", ir, {})


@limit("Operators that write in place")
def writing_in_place() -> None:
    x = TensorMeta("x", (4, 8), "float32")
    made = TensorMeta("add_", (4, 8), "float32")
    node = OpNode("add_", "aten.add_.Scalar", [x], [made], {"other": 1, "alpha": 1}, args=["self"])
    refused(
        r"OpNode\('add_', 'aten.add_.Scalar'\) writes in place; shard a functional graph",
        IR([node], [x], [made]),
        {},
        x="shard(0)",
    )


@limit("`cond`, `scan` and other")
def control_flow(ranks: LocalRanks) -> None:
    class Either(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = torch.relu(self.up(x))
            return self.down(torch.cond(x.sum() > 0, torch.sin, torch.cos, (made,)))

    model = Either()
    sharded = shard(extract_ir(model, (X,), strict=False), {"up": "colwise", "down": "rowwise"}, {"tp": 2})
    assert collectives(sharded) == {"all_gather_into_tensor": 1, "all_reduce": 1}
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (X,))
    assert not is_valid
    assert re.fullmatch(
        r"OpNode\('cond.*\) cannot run in lockstep; run the ranks as processes", str(report.error_message)
    )
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (X,), ranks=ranks)
    assert is_valid, str(report)


@limit("Resharding from one")
def no_exchange() -> None:
    """Instead of an `all_to_all`, the tensor is gathered, and each rank takes its shard."""
    model = nn.Softmax(0).eval()
    ir = extract_ir(model, (X,), strict=False)
    sharded = shard(ir, {}, {"tp": 2}, inputs={"input": "shard(0)"}, outputs={"*": "shard(1)"})
    assert collectives(sharded) == {"all_gather_into_tensor": 1}
    is_valid, report = verify_sharded(sharded, model, {}, (torch.randn(4, 8),))
    assert is_valid, str(report)


@limit("An executor keeps buffers")
def state_of_one_run(ranks: LocalRanks) -> None:
    class Count(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return x + self.calls

    model, x = Count().eval(), torch.zeros(2)
    sharded = shard(extract_ir(model, (x,), strict=False), {}, {"tp": 2})
    given = [ranks.run(sharded, (x,), {"calls": torch.zeros(2)})[0] for _ in range(2)]
    assert [value.tolist() for value in given] == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("row", LIMITS)
def test_limit(row: str, request: pytest.FixtureRequest) -> None:
    """Each limitation is a one-line error, or behaves as the page says."""
    check = LIMITS[row]
    check(**{name: request.getfixturevalue(name) for name in inspect.signature(check).parameters})
