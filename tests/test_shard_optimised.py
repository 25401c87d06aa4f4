"""Optimised sharded graphs: outputs keep their placements, and `check` detects a missing one."""

import pytest
import torch
from torch import nn

from tests.sharded_models import MLP, Tower
from torch_ir import IR, GraphError, extract_ir, optimize
from torch_ir.passes.optimize_levels import LEVELS
from torch_ir.sharding import shard
from torch_ir.sharding.local_ranks import whole_outputs


class Spelled(nn.Module):
    """Ends in operators that passes rewrite, so that new nodes produce the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = MLP()
        self.eval()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.mlp(x)
        return torch.clamp(y, min=0), y.transpose(0, 1), torch.multiply(y, 2), y - 1, y.unsqueeze(0)


def sharded(model: nn.Module, given: torch.Tensor, before: str = "") -> IR:
    plan = {f"{before}up": "colwise", f"{before}down": "rowwise"}
    return shard(extract_ir(model.to("meta"), (given,)), plan, {"tp": 2})


@pytest.mark.parametrize("level", LEVELS)
def test_outputs_keep_their_placements(level: str) -> None:
    ir = sharded(Spelled(), torch.empty(2, 8, device="meta"), "mlp.")
    better, report = optimize(ir, level)
    assert report.changes
    assert [tensor.placement for tensor in better.graph_outputs] == [tensor.placement for tensor in ir.graph_outputs]
    pieces = [[torch.ones(2)] * 5, [torch.zeros(2)] * 5]
    assert len(whole_outputs(IR.from_json(better.to_json()), pieces)) == 5


@pytest.mark.parametrize("level", LEVELS)
def test_a_language_model_keeps_its_placements(level: str) -> None:
    ir = sharded(Tower(), torch.zeros(2, 4, dtype=torch.int64, device="meta"), "blocks.*.")
    better, _ = optimize(ir, level)
    assert [tensor.placement for tensor in better.graph_outputs] == [("replicate",)]


@pytest.mark.parametrize("end", ["input", "output"])
def test_a_missing_placement_is_seen(end: str) -> None:
    ir = sharded(MLP(), torch.empty(2, 8, device="meta"))
    (ir.graph_inputs if end == "input" else ir.graph_outputs)[0].placement = None
    with pytest.raises(GraphError, match="has no placement on tp; expected for example replicate"):
        ir.check()
