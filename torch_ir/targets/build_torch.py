"""Convert a graph to an `nn.Module` of ATen calls, as input for torch.export, torch.compile and torch.onnx.

module = to_torch(ir, weights)
torch.compile(module)(x)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.regroup.separate_stacks import without_stacks

if TYPE_CHECKING:
    from torch import nn

    from torch_ir.run.weight_files import WeightSource


def to_torch(ir: IR, weights: WeightSource | None = None) -> nn.Module:
    """Return a module that computes the graph, with the signature and state dict of the model.

    `weights` are a state dict, a model, or the path of a checkpoint. Without them, parameters are on meta and it can be
    exported; `load_state_dict(weights, assign=True)` makes it runnable. With weights, computations on weights alone
    are done now and when a state dict is loaded, and in every call while one of these weights requires a gradient, but
    not when a weight is written to otherwise. Function calls are inlined. Each call compares its inputs with the graph,
    as `IRExecutor` does: sizes, dtypes, and, where the graph depends on them, strides and shared memory.
    """
    require_graph(ir, "to_torch")
    from torch_ir.run.stored import loaded
    from torch_ir.run.weight_files import weights_from
    from torch_ir.targets.torch.nn_module import build

    given = None if weights is None else {key: loaded(value) for key, value in weights_from(weights).items()}
    return build(without_stacks(ir), given)
