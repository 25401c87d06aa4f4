"""`extract_ir` and `export_model`: check the request, try the capture steps, warn about the result."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from torch_ir.capture.export.dynamic import Call, fixed_sizes, narrowed_size
from torch_ir.capture.export.fake_weights import has_no_values
from torch_ir.capture.export.untraceable import refuse_nameless, refuse_scripted, refuse_untraceable
from torch_ir.capture.fixed_inputs import with_fixed
from torch_ir.capture.graph_warnings import (
    guard_class_questions,
    warn_of_gaps,
    warn_of_lost_values,
    warn_of_shared_inputs,
)
from torch_ir.capture.instrument import capturing, exclusive, not_compiled
from torch_ir.capture.ladder import TIME_LIMIT, climb
from torch_ir.capture.state.default_dtype import refuse_close_integers
from torch_ir.capture.state.outer_autocast import autocast_inside
from torch_ir.capture.state.tensor_memory import refuse_overlapping_writes
from torch_ir.capture.state.weight_attributes import refuse_attributes_of_inputs
from torch_ir.capture.steps import Request, steps
from torch_ir.capture.walk import modules, weights
from torch_ir.errors import CaptureWarning, ExportError, did_you_mean
from torch_ir.ir import IR
from torch_ir.ops.fast_paths import masks_as_in_eager
from torch_ir.ops.tested_versions import is_tested, is_tested_with_open_sizes
from torch_ir.ops.torch_internals import FakeTensor, pytree

WAYS_WITHOUT_DATA = 16
_CAPTURES = ("auto", "export", "record")
_BLOCKS = ("inline", "function")


@not_compiled
def extract_ir(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    model_name: str | None = None,
    strict: bool = True,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    fixed: Mapping[str, Any] | None = None,
    capture: str = "auto",
    explore: int | None = None,
    level: str = "aten",
    leaf: Collection[str | type] = (),
    blocks: str = "inline",
    crosscheck: bool = False,
    isolated: bool = False,
    time_limit: float = TIME_LIMIT,
) -> IR:
    """Capture a model as an IR without reading its weights.

    With `strict`, parameters and inputs must be on meta; `strict=False` accepts real tensors.
    `kwargs` are keyword inputs. `dynamic_shapes` says which sizes may vary, in the form that `torch.export` accepts.
    `fixed` are inputs whose values are part of the graph, by argument of forward, such as the sizes of images: its
    Python may read them, what depends only on them is computed at capture, and a guard rejects other values.
    `capture` is "export", "record" (one run of the model in ordinary Python), or "auto" (export, else record).
    `explore` limits the paths to capture where Python branches on data; default: 16 on tensors without values, else 1.
    `level` and `leaf` choose what a node is: an operator, a torch function or a module (see `IR.at_level`).
    `blocks="function"` folds repeated layers into one function with one call for each.
    `crosscheck` compares a fast recording with the graph of `torch.export`, and returns the latter if they differ.
    `isolated` runs the model's code only in a child process, for at most `time_limit` seconds for each step.
    """
    call = _call(example_inputs, kwargs)
    with exclusive():  # during a capture, the weights of the model are replaced
        _check_request(model, call, strict)
        _check_options(capture, blocks, leaf, dynamic_shapes, fixed, time_limit)
        if capture == "export" and explore not in (None, 1):
            raise ExportError("explore follows branches by recording, which capture='export' excludes; leave out one")
        known = with_fixed(model, call, fixed or {})
        ways, in_blocks = _ways(model, call, explore), blocks == "function" and level == "aten"
        is_fast = _is_fast(capture, dynamic_shapes)
        request = Request(
            model, known.call, dynamic_shapes, capture, ways, crosscheck, in_blocks, is_fast, known.tensors
        )
        with autocast_inside(model), masks_as_in_eager(modules(model)):
            ir = climb(list(steps(request)), isolated=isolated, time_limit=time_limit)
        refuse_close_integers(ir, torch.get_default_dtype())
        refuse_overlapping_writes(ir)
    ir.model_name = type(model).__name__ if model_name is None else model_name
    warn_of_lost_values(ir)
    guard_class_questions(model, call, ir)
    warn_of_gaps(ir)
    warn_of_shared_inputs(ir, call)
    if constant := fixed_sizes(ir, model, call, dynamic_shapes):
        warnings.warn(f"a size that was asked to vary does not: {', '.join(constant)}", CaptureWarning, stacklevel=2)
    if narrowed := narrowed_size(ir, dynamic_shapes):
        warnings.warn(f"a size does not vary as asked: {narrowed}", CaptureWarning, stacklevel=2)
    ir = ir.at_level(level, leaf) if level != "aten" or leaf else ir
    return ir.fold_blocks() if blocks == "function" else ir


@not_compiled
def extract_training_step(step: nn.Module, call: Call, *, strict: bool) -> IR:
    """Capture a module whose `forward` computes gradients and updates weights, as `torch_ir.training` builds it."""
    with exclusive():
        _check_request(step, call, strict, is_training=True)
        request = Request(step, call, None, "record", 1, False, False, is_fast=True, with_gradients=True)
        with autocast_inside(step):
            ir = climb(list(steps(request)), isolated=False, time_limit=TIME_LIMIT)
        refuse_close_integers(ir, torch.get_default_dtype())
        refuse_overlapping_writes(ir)
    warn_of_lost_values(ir)
    warn_of_gaps(ir)
    return ir


def _check_options(capture: str, blocks: str, leaf: Any, dynamic_shapes: Any, fixed: Any, time_limit: Any) -> None:
    for name, value, known in (("capture", capture, _CAPTURES), ("blocks", blocks, _BLOCKS)):
        if value not in known:
            nearest = did_you_mean(str(value), known)
            raise ExportError(f"unknown {name} {value!r:.40}; expected one of {', '.join(known)}{nearest}")
    if capture == "record" and dynamic_shapes is not None:
        raise ExportError("a recording has the sizes of its example inputs; dynamic_shapes need capture='export'")
    if isinstance(leaf, str):
        raise ExportError(f"leaf takes several classes or their names; wrap the one in a tuple: ({leaf!r:.80},)")
    if fixed is not None and not isinstance(fixed, Mapping):
        raise ExportError(f"fixed takes a dict from arguments of forward to values, not {type(fixed).__name__}")
    if not isinstance(time_limit, (int, float)) or not time_limit > 0:
        raise ExportError(f"time_limit={time_limit!r:.40} must be a positive number of seconds")
    if fixed and (capture == "export" or dynamic_shapes is not None):
        raise ExportError("fixed inputs are recorded: they take no dynamic_shapes, and capture='auto' or 'record'")


def _is_fast(capture: str, dynamic_shapes: Any) -> bool:
    """Whether to try the fast recording: on an untested torch version, only if a check finds it exact there."""
    if capture == "export":
        return False
    if dynamic_shapes is not None:  # the check does not cover open sizes
        return is_tested_with_open_sizes(torch.__version__)
    if is_tested(torch.__version__):
        return True
    from torch_ir.capture.fast.exactness_check import is_exact  # it needs torch.export

    return is_exact(torch.__version__)


def _ways(model: nn.Module, call: Call, explore: int | None) -> int:
    """Return the largest number of paths to capture through the model's branches on data."""
    if explore is None:
        return WAYS_WITHOUT_DATA if has_no_values(model, call) else 1
    if isinstance(explore, bool) or not isinstance(explore, int) or explore < 1:
        raise ExportError(f"explore={explore!r:.40} must be a positive integer: the largest number of paths to capture")
    return explore


@not_compiled
def export_model(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    strict: bool = True,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ExportedProgram:
    """Run `torch.export` on a model whose weights are fake tensors; the arguments are those of `extract_ir`."""
    from torch_ir.capture.export.torch_export import trace  # slow to import, and most captures do not need it

    call = _call(example_inputs, kwargs)
    with exclusive():
        _check_request(model, call, strict)
        refuse_scripted(model)
        with capturing(), autocast_inside(model):
            return trace(model, call, dynamic_shapes)


def _check_request(model: nn.Module, call: Call, strict: bool, *, is_training: bool = False) -> None:
    """Raise ExportError for a request that no step can capture."""
    if not isinstance(model, nn.Module):
        raise ExportError(f"extract_ir takes an nn.Module, not {model!r:.80}")
    refuse_nameless(call)
    if strict:
        _require_meta(model, call)
    refuse_untraceable(model, call)
    refuse_attributes_of_inputs(model, pytree.tree_leaves(call))
    if model.training and not is_training:
        warnings.warn(
            f"{type(model).__name__} is in training mode: dropout and batch statistics are captured; "
            "call model.eval() first for inference",
            CaptureWarning,
            stacklevel=3,
        )


def _call(example_inputs: Any, kwargs: Any) -> Call:
    """Return the positional and keyword inputs; raise ExportError for other types than documented."""
    if isinstance(example_inputs, torch.Tensor):
        raise ExportError("example_inputs is a tensor; wrap it in a tuple: (tensor,)")
    if isinstance(example_inputs, Mapping):
        raise ExportError(
            "example_inputs must be a tuple, not dict; pass named inputs as extract_ir(model, (), kwargs=inputs)"
        )
    if not isinstance(example_inputs, (tuple, list)):
        raise ExportError(f"example_inputs must be a tuple, not {type(example_inputs).__name__}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ExportError(f"kwargs must be a dict of keyword inputs, not {type(kwargs).__name__}")
    return tuple(example_inputs), dict(kwargs or {})


def _require_meta(model: nn.Module, inputs: Any) -> None:
    parameters = itertools.takewhile(lambda weight: weight.kind == "parameter", weights(model))
    if (real := next((weight.key for weight in parameters if not weight.tensor.is_meta), None)) is not None:
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
