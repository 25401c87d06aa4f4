"""Convert a graph to an `nn.Module` of ATen calls, as input for torch.export, torch.compile and torch.onnx.

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
    """Return a module that computes the graph, with the signature and state dict of the model.

    Without weights its parameters are on meta, and it can be exported; `load_state_dict(weights, assign=True)` makes it
    runnable. With weights, computations on weights alone are done now, and again when a state dict is loaded, but not
    when a parameter is written to. Function calls are inlined. Inputs are not checked against the graph; `IRExecutor`
    does that.
    """
    from torch_ir.targets.torch.nn_module import build

    return build(ir, weights)
