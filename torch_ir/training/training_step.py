"""The training step as a module: forward, loss, backward and update in ordinary Python, to be recorded once."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from torch_ir.capture.instrument import intercepted
from torch_ir.errors import ConversionError, ExportError
from torch_ir.ir.graph.free_names import lengthened
from torch_ir.ir.graph.training_parts import BACKWARD, OPTIMIZER
from torch_ir.ops.torch_internals import MODULE_TABLES, module_table, pytree
from torch_ir.training.optimizer_binding import OptimizerBinding, nested

MODULES = MODULE_TABLES[-1]
SEED = "seed"  # value of `loss`: gradients of the outputs are inputs
Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Options:
    """Options of a step besides forward and backward."""

    loss: Loss | str | None = None
    clip_norm: float | None = None
    loss_scale: float | None = None
    micro_batches: int = 1


class Backward(nn.Module):
    """Computes gradients; a module, so that its nodes have a path."""

    def forward(self, roots: Sequence[Tensor], seeds: Sequence[Tensor] | None, parameters: Sequence[Tensor]) -> Any:
        return torch.autograd.grad(roots, parameters, seeds, allow_unused=True)


class Update(nn.Module):
    """Holds the state of the optimisers under its keys, and updates parameters."""

    def __init__(self, binding: OptimizerBinding, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._binding = binding
        nested(binding.state(parameters), self)

    def forward(
        self, parameters: Mapping[str, Tensor], grads: dict[str, Tensor], clip_norm: float | None
    ) -> Tensor | None:
        norm = None
        if clip_norm is not None:
            norm, grads = _clipped(grads, clip_norm)
        self._binding.update(parameters, grads, dict(self.named_buffers()))
        return norm


def _clipped(grads: Mapping[str, Tensor], most: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the norm of all gradients, and gradients scaled to at most that norm, by torch's own function."""
    holders = {key: torch.empty_like(gradient) for key, gradient in grads.items()}
    for key, gradient in grads.items():
        holders[key].grad = gradient.clone()
    norm = nn.utils.clip_grad_norm_(holders.values(), most, foreach=False)
    return norm, {key: holder.grad for key, holder in holders.items() if holder.grad is not None}


def training_step(
    model: nn.Module, binding: OptimizerBinding | None, options: Options, count: int, targets: int
) -> nn.Module:
    """Return a module with the keys and paths of the model whose `forward` is one training step.

    It takes `count` positional inputs of the model, then `targets` more, and the keyword inputs of the model.
    """
    taken = next((name for name in (BACKWARD, OPTIMIZER) if hasattr(model, name)), None)
    if taken is not None:
        raise ExportError(f"the model has an attribute {taken!r}, which is the path of a part of the training step")
    step = copy.copy(model)  # keys and module paths stay those of the model
    hooks = {name: type(value)() for name, value in vars(model).items() if "_hooks" in name and isinstance(value, dict)}
    parts: dict[str, nn.Module] = {BACKWARD: Backward()}
    if binding is not None:
        parts[OPTIMIZER] = Update(binding, dict(model.named_parameters()))
    vars(step).update({**hooks, MODULES: {**module_table(model), **parts}})

    def run(*args: Any, **kwargs: Any) -> dict[str, Any]:
        inner = copy.copy(step)  # with the tensors that replace the model's during capture
        del inner.forward
        own = {name: vars(model)[name] for name in (*hooks, MODULES, "forward") if name in vars(model)}
        vars(inner).update(own)
        return _Run(step, inner, options)(args[:count], args[count : count + targets], kwargs)

    run.__signature__ = _signature(model, count, targets)  # type: ignore[attr-defined]  # read by torch
    step.forward = run
    return step


class _Run:
    """One run of the step."""

    def __init__(self, step: nn.Module, forward: Callable[..., Any], options: Options) -> None:
        self._step = step
        self._forward = forward
        self._options = options
        self._parameters = dict(step.named_parameters())
        self._trained = {key: tensor for key, tensor in self._parameters.items() if tensor.requires_grad}

    def __call__(self, args: Any, targets: Any, kwargs: Any) -> dict[str, Any]:
        parts = list(_micro_batches((args, targets, kwargs), self._options.micro_batches))
        outputs, losses, grads = [], [], dict[str, Tensor]()
        for each in parts:
            output, loss, found = self._differentiated(each, len(parts))
            outputs.append(output)
            losses.append(loss)
            grads = {key: grads[key] + found[key] if key in grads else found[key] for key in (grads | found)}
        if self._options.loss_scale is not None:
            grads = {key: gradient.mul(1.0 / self._options.loss_scale) for key, gradient in grads.items()}
        result: dict[str, Any] = {
            "outputs": outputs[0] if len(parts) == 1 else outputs,
            "gradients": dict(grads),
        }
        if losses[0] is not None:
            result["loss"] = losses[0] if len(parts) == 1 else torch.stack(losses).sum()
        update = dict(self._step.named_children()).get(OPTIMIZER)
        if update is not None:
            with torch.no_grad():
                norm = update(self._parameters, grads, self._options.clip_norm)
            if norm is not None:
                result["gradient_norm"] = norm
        return result

    def _differentiated(self, call: Any, share: int) -> tuple[Any, Any, dict[str, Tensor]]:
        """Return the outputs, the loss divided by the number of micro-batches, and the gradients."""
        options = self._options
        args, targets, kwargs = call
        with torch.enable_grad(), intercepted(CheckpointFunction, "apply", _refuse_reentrant):
            output = self._forward(*args, **kwargs)
            if options.loss == SEED:
                loss, roots, seeds = None, list(_differentiable(output)), list(targets)
                _check_seeds(roots, seeds)
            else:
                loss = _loss_of(output, targets, options.loss)
                loss = loss / share if share > 1 else loss
                roots, seeds = [loss if options.loss_scale is None else loss * options.loss_scale], None
            grads = getattr(self._step, BACKWARD)(roots, seeds, list(self._trained.values()))
        found = zip(self._trained, grads, strict=True)
        if all(gradient is None for gradient in grads):
            raise ConversionError("the loss does not depend on a parameter that requires a gradient")
        shown = pytree.tree_map(_shown, output)
        return shown, None if loss is None else loss.detach(), {key: grad for key, grad in found if grad is not None}


def _refuse_reentrant(original: Any, *_: Any) -> Any:
    raise ConversionError(
        "torch.utils.checkpoint with use_reentrant=True computes gradients outside of autograd's graph; "
        "use use_reentrant=False"
    )


def _loss_of(output: Any, targets: Any, loss: Loss | str | None) -> Tensor:
    found = loss(output, *targets) if callable(loss) else _own_loss(output)
    if not isinstance(found, Tensor) or found.numel() != 1:
        shape = f"of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ConversionError(f"the loss must be a tensor with one element, but it is {shape}; pass loss=")
    if not found.requires_grad:
        raise ConversionError("the loss does not depend on a parameter that requires a gradient")
    return found


def _own_loss(output: Any) -> Any:
    """Return the loss that a model computes: its result, `output.loss`, or `output["loss"]`."""
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    return getattr(output, "loss", output)


def _differentiable(output: Any) -> Iterator[Tensor]:
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            yield leaf


def _check_seeds(roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
    if not roots or [tensor.shape for tensor in roots] != [tensor.shape for tensor in seeds]:
        wanted, given = ([tuple(tensor.shape) for tensor in tensors] for tensors in (roots, seeds))
        raise ConversionError(
            f"loss='seed' needs one target for each output that depends on parameters: {wanted}, not {given}"
        )


def _shown(leaf: Any) -> Any:
    """Return what an entry point may return of an output: tensors and plain values."""
    if isinstance(leaf, Tensor):
        return leaf.detach()
    return leaf if isinstance(leaf, (bool, int, float, str)) else None


def _micro_batches(call: Any, count: int) -> Iterator[Any]:
    """Yield the call with each tensor split along its first dimension."""
    if count == 1:
        yield call
        return
    leaves, spec = pytree.tree_flatten(call)
    for leaf in leaves:
        if isinstance(leaf, Tensor) and (leaf.dim() == 0 or leaf.shape[0] % count):
            raise ConversionError(f"an input of shape {tuple(leaf.shape)} cannot be split into {count} micro-batches")
    split = [leaf.chunk(count) if isinstance(leaf, Tensor) else [leaf] * count for leaf in leaves]
    for number in range(count):
        yield pytree.tree_unflatten([pieces[number] for pieces in split], spec)


def _signature(model: nn.Module, count: int, targets: int) -> inspect.Signature:
    """Return the signature of the step: the model's inputs, then `target`, `target_1`, ..."""
    known = list(inspect.signature(model.forward).parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in known if parameter.kind in kinds][:count]
    names += [f"input_{number}" for number in range(len(names), count)]
    names += [f"target_{number}" if number else "target" for number in range(targets)]
    taken: set[str] = set()
    unique = [inspect.Parameter(lengthened(name, taken), inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    rest = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    return inspect.Signature([*unique, rest])
