"""extract_ir: a model and example inputs in, an IR out, no weight read."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram

from torch_ir.capture.convert import convert_exported_program
from torch_ir.capture.diagnosis import definition, explained, quiet, refuse_hidden_state
from torch_ir.capture.dynamic import (
    DECISIONS,
    Call,
    fixed_sizes,
    is_unproved,
    keep_promises,
    loosened,
    narrowed_size,
    recorded_decisions,
    requested_minimums,
)
from torch_ir.capture.fake import fake_copy, weight_free
from torch_ir.capture.ladder import TIME_LIMIT, Step, climb
from torch_ir.capture.layouts import LAYOUT, layout_questions
from torch_ir.capture.side_effects import drop_failed_calls, left_as_it_was
from torch_ir.capture.untraceable import refuse_untraceable
from torch_ir.errors import CaptureWarning, ConversionError, ExportError
from torch_ir.ir import IR


def extract_ir(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    model_name: str | None = None,
    strict: bool = True,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    isolated: bool = False,
    time_limit: float = TIME_LIMIT,
) -> IR:
    """Capture a model as an IR without reading a weight.

    With `strict`, parameters and inputs must be on meta; `strict=False` takes real tensors and still keeps no weight.
    `kwargs` are keyword inputs. `dynamic_shapes` is what `torch.export` takes: which sizes may vary.
    `isolated` runs the model's code in a child process only, for at most `time_limit` seconds a try.
    """
    call = (_as_tuple(example_inputs), dict(kwargs or {}))
    _check_request(model, call, strict)
    kind = type(model).__name__
    steps = [Step(kind, "torch.export", partial(_capture, model, call, dynamic_shapes))]
    if dynamic_shapes is None:  # in strict mode, what the model decides on sizes would go unseen
        strictly = partial(_capture, model, call, None, in_strict_mode=True)
        steps.append(Step(kind, "torch.export in strict mode", strictly, is_risky=True))
    ir = climb(steps, isolated=isolated, time_limit=time_limit)
    ir.model_name = kind if model_name is None else model_name
    _refuse_shared_memory(model, ir)
    _warn_of_lost_values(ir)
    fixed = fixed_sizes(ir, model, call, dynamic_shapes)
    if fixed:
        warnings.warn(f"a size that was asked to vary does not: {', '.join(fixed)}", CaptureWarning, stacklevel=2)
    if narrowed := narrowed_size(ir, dynamic_shapes):
        warnings.warn(f"a size does not vary as asked: {narrowed}", CaptureWarning, stacklevel=2)
    return ir


def export_model(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    strict: bool = True,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ExportedProgram:
    """`torch.export` of a model, with its weights as fake tensors."""
    call = (_as_tuple(example_inputs), dict(kwargs or {}))
    _check_request(model, call, strict)
    return _trace(model, call, dynamic_shapes)


def _check_request(model: nn.Module, call: Call, strict: bool) -> None:
    """Refuse what no step can capture, before any is tried."""
    if not isinstance(model, nn.Module):
        raise ExportError(f"extract_ir takes an nn.Module, not {model!r:.80}")
    if strict:
        _require_meta(model, call)
    refuse_untraceable(model, call)
    if model.training:
        warnings.warn(
            f"{type(model).__name__} is in training mode: dropout and batch statistics are captured; "
            "call model.eval() first for inference",
            CaptureWarning,
            stacklevel=3,
        )


def _capture(model: nn.Module, call: Call, dynamic_shapes: Any, in_strict_mode: bool = False) -> IR:
    """The IR by way of `torch.export`, in one of its modes."""
    is_proved = True
    try:
        program = _trace(model, call, dynamic_shapes, in_strict_mode)
    except ExportError as error:
        if not is_unproved(error.__cause__):
            raise
        is_proved = False
        program = _trace(model, call, loosened(dynamic_shapes), in_strict_mode)
    refuse_hidden_state(program, model)
    ir = convert_exported_program(program, requested_minimums=requested_minimums(dynamic_shapes))
    ir.fixed_layout = program.graph_module.meta[LAYOUT]
    if not is_proved:
        keep_promises(ir, model, call, dynamic_shapes)
    return ir


def _trace(model: nn.Module, call: Call, dynamic_shapes: Any, in_strict_mode: bool = False) -> ExportedProgram:
    """`torch.export` in one of its modes; what goes wrong there is explained."""
    with left_as_it_was(model), weight_free(model) as mode, ExitStack() as stack:
        if torch.get_default_device().type == "meta":  # literals in forward must keep their values
            stack.enter_context(torch.device("cpu"))
        # strict mode does not tell what the model asked; it may have asked for strides
        questions = nullcontext([definition(model) or type(model).__name__]) if in_strict_mode else layout_questions()
        args, keywords = pytree.tree_map_only(torch.Tensor, lambda t: fake_copy(t, mode) if t.is_meta else t, call)
        try:
            with torch.no_grad(), quiet(), recorded_decisions(dynamic_shapes) as decisions, questions as lines:
                program = torch.export.export(
                    model, args, keywords, dynamic_shapes=dynamic_shapes, strict=in_strict_mode
                )
            program.graph_module.meta[DECISIONS] = decisions
            program.graph_module.meta[LAYOUT] = lines[0] if lines else ""
        except ConversionError:
            raise
        except (Exception, SystemExit) as error:  # whatever forward raises is the user's to see, in one sentence
            raise explained(error, model) from error
    drop_failed_calls(program.graph_module)
    return program


def _as_tuple(example_inputs: Any) -> tuple[Any, ...]:
    if isinstance(example_inputs, torch.Tensor):
        raise ExportError("example_inputs is a tensor; wrap it in a tuple: (tensor,)")
    if not isinstance(example_inputs, (tuple, list)):
        raise ExportError(f"example_inputs must be a tuple, not {type(example_inputs).__name__}")
    return tuple(example_inputs)


def _require_meta(model: nn.Module, inputs: Any) -> None:
    real = next((name for name, parameter in model.named_parameters() if not parameter.is_meta), None)
    if real is not None:
        raise ExportError(
            f"Model must be on meta device for weight-free IR extraction: {real!r} is not. Build it under "
            "`with torch.device('meta'):` (or torch_ir.meta_init()), convert it with model.to('meta'), "
            "or pass strict=False"
        )
    for path, leaf in pytree.tree_flatten_with_path(inputs)[0]:
        if isinstance(leaf, torch.Tensor) and not leaf.is_meta and not isinstance(leaf, FakeTensor):
            place = pytree.keystr(path[1:])
            raise ExportError(
                f"Example inputs must be on meta device: input{place} is on {leaf.device}. Use "
                "torch.empty(..., device='meta') or tensor.to('meta'), or pass strict=False"
            )


def _refuse_shared_memory(model: nn.Module, ir: IR) -> None:
    """A buffer that is written to must not show in another: torch captures each as if it stood alone."""
    written = {target.key for target, _ in ir.mutations}
    if not any(written):
        return
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    owners = {_memory(tensor): (key, tensor) for key, tensor in tensors if key in written}
    for key, tensor in tensors:
        owner, other = owners.get(_memory(tensor), (key, tensor))
        if other is not tensor:
            raise ConversionError(f"forward writes to {owner!r}, which shares its memory with {key!r}; make one a copy")


def _memory(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def _warn_of_lost_values(ir: IR) -> None:
    """Say by name which values are in no state dict and were lost on meta."""
    lost = [tensor for tensor in ir.params if tensor.param and not tensor.param.in_state_dict and not tensor.param.data]
    if not lost:
        return
    names = ", ".join(f"{tensor.key!r}" for tensor in lost[:8]) + (
        f" and {len(lost) - 8} more" if len(lost) > 8 else ""
    )
    warnings.warn(
        f"the values of {names} are unknown: they were built on meta and no state dict holds them. Verification takes "
        "them from the original model; to keep them in the IR, build the model under torch_ir.meta_init()",
        CaptureWarning,
        stacklevel=3,
    )
