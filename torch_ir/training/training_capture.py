"""`extract_training`: capture forward, loss, backward and update of a model, without its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_ir.capture.extract_model import extract_training_step
from torch_ir.errors import ExportError, GraphError
from torch_ir.ir import IR
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.training_parts import EXTENSION, OPTIMIZER, training_facts
from torch_ir.ops.neutral_state import neutral
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.training.optimizer_binding import OptimizerBinding
from torch_ir.training.python_draws import captured_without_draws
from torch_ir.training.training_entries import entry_points
from torch_ir.training.training_step import SEED, Loss, Options, training_step

_BLOCKS = ("inline", "function")


def extract_training(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    targets: tuple[Any, ...] = (),
    loss: Loss | str | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    clip_norm: float | None = None,
    loss_scale: float | None = None,
    micro_batches: int = 1,
    strict: bool = True,
    blocks: str = "inline",
    model_name: str | None = None,
) -> IR:
    """Capture one training step as graphs over one table of weights, without reading the weights.

    The IR is `step`: it returns the loss, and its mutations are the updated parameters, the optimiser's state
    (`optimizer.exp_avg.<parameter key>`, ...) and buffers that forward changes. Its functions `forward` (outputs and
    loss) and `backward` (loss, and gradients by parameter key) are further entry points. Without an optimiser, the IR
    is `backward`.

    `loss` is a function of the outputs and the `targets`, "seed" (the targets are gradients of the outputs), or None:
    the model computes its own loss, from keyword inputs such as `labels`. `optimizer` is one or more of `torch.optim`,
    over parameters of this model. `clip_norm` limits the norm of all gradients, `loss_scale` multiplies the loss before
    backward, and `micro_batches` splits every input along its first dimension and sums the gradients.
    `strict`, `kwargs`, `blocks` and `model_name` are those of `extract_ir`.
    """
    _check(model, loss, clip_norm, loss_scale, micro_batches, blocks)
    given: Any = optimizer
    optimizers: list[Optimizer] = list(given) if isinstance(given, (list, tuple)) else [given] if given else []
    binding = OptimizerBinding(optimizers, dict(model.named_parameters())) if optimizers else None
    options = Options(loss, clip_norm, loss_scale, micro_batches)
    args = tuple(example_inputs)
    with uncollected():
        step = training_step(model, binding, options, len(args), len(targets))
        call = (*args, *targets), dict(kwargs or {})
        ir = captured_without_draws(lambda: extract_training_step(step, call, strict=strict))
        ir.model_name = type(model).__name__ if model_name is None else model_name
        rates = {f"{OPTIMIZER}.{name}": rate for name, rate in binding.rates().items()} if binding else {}
        names = [type(each).__name__ for each in optimizers]
        facts = {"optimizer": names, "start": rates, "micro_batches": micro_batches}
        return entry_points(ir, facts, in_blocks=blocks == "function")


def _check(
    model: Any, loss: Any, clip_norm: float | None, loss_scale: float | None, micro_batches: int, blocks: str
) -> None:
    if not isinstance(model, nn.Module):
        raise ExportError(f"extract_training takes an nn.Module, not {model!r:.80}")
    if loss is not None and loss != SEED and not callable(loss):
        raise ExportError(f"loss={loss!r:.40} must be a function of outputs and targets, 'seed', or None")
    for name, value in (("clip_norm", clip_norm), ("loss_scale", loss_scale), ("micro_batches", micro_batches)):
        if value is not None and not value > 0:
            raise ExportError(f"{name} must be positive, not {value}")
    if blocks not in _BLOCKS:
        raise ExportError(f"unknown blocks {blocks!r:.40}; expected one of {', '.join(_BLOCKS)}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ExportError(f"no parameter of {type(model).__name__} requires a gradient")


@neutral
def optimizer_state(ir: IR) -> dict[str, Tensor]:
    """Return the state of the optimiser before the first step, by the keys of the graph."""
    require_graph(ir, "optimizer_state")
    start = training_facts(ir).get("start")
    if not isinstance(start, dict) or not all(type(rate) in (int, float) for rate in start.values()):
        raise GraphError(f"extensions.{EXTENSION}.start must be an object of numbers, not {start!r:.60}")
    state = {}
    for param in ir.params:
        key = param.key or ""
        if key.startswith(f"{OPTIMIZER}."):
            if not param.is_static:
                raise GraphError(f"the state {key!r:.80} of the optimiser has a size that varies")
            sizes = [int(size) for size in param.shape]
            state[key] = torch.full(sizes, start.get(key, 0.0), dtype=TORCH_DTYPES[param.dtype])
    return state
