"""A graph as an `nn.Module` of plain ATen calls: what torch.export, torch.compile and torch.onnx take.

module = to_torch(ir, weights)
torch.compile(module)(x)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch_ir.ir import IR

if TYPE_CHECKING:
    from torch import Tensor, nn


def to_torch(ir: IR, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A module that computes the graph, is called as the model is, and has its state dict.

    Without weights its parameters are on meta, and it is exported as the graph is; `load_state_dict(weights,
    assign=True)` lets it run. With weights, what depends on them alone is computed here, and again when a state dict is
    loaded, but not when a parameter is written to. Calls of functions are put inline. The inputs of a call are not
    checked against the graph; `IRExecutor` does that.
    """
    from torch_ir.targets.torch.nn_module import build

    return build(ir, weights)
