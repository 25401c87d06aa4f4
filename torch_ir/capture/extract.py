"""extract_ir: a model and example inputs in, an IR out, no weight read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import ExportedProgram

from torch_ir.capture.ambient_notes import SEEDS, AmbientNotes, ambient_notes
from torch_ir.capture.assigned import GOES_ON, assignments_written, drop_memos
from torch_ir.capture.class_questions import class_questions
from torch_ir.capture.convert import convert_exported_program
from torch_ir.capture.crosscheck import quickly
from torch_ir.capture.default_dtype import refuse_close_integers
from torch_ir.capture.diagnosis import BRANCHES, definition, explained, refuse_hidden_state, refuse_untracked
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
from torch_ir.capture.example_inputs import OwnMemory, shared_inputs
from torch_ir.capture.explicit import graphs
from torch_ir.capture.explore import explored
from torch_ir.capture.fake import fake_copy, has_no_values, weight_free
from torch_ir.capture.forced import ForcedOutcomes
from torch_ir.capture.frozen_state import with_state_checked
from torch_ir.capture.held_weights import held_weights_followed
from torch_ir.capture.instrument import capturing, exclusive, export_in_this_thread, not_compiled
from torch_ir.capture.ladder import TIME_LIMIT, Step, climb
from torch_ir.capture.layouts import LAYOUT, layout_questions
from torch_ir.capture.leaks import contained
from torch_ir.capture.no_op_copies import COPIES, no_op_copies, torch_version
from torch_ir.capture.outer_autocast import autocast_inside
from torch_ir.capture.paths import Path
from torch_ir.capture.quiet import quiet
from torch_ir.capture.record import record
from torch_ir.capture.shared_memory import refuse_shared_memory
from torch_ir.capture.side_effects import constants_kept, drop_failed_calls, left_as_it_was
from torch_ir.capture.tensor_memory import OTHER_MEMORY, DataAttribute, refuse_set_memory
from torch_ir.capture.untraceable import refuse_nameless, refuse_scripted, refuse_untraceable
from torch_ir.capture.walk import modules, walk
from torch_ir.errors import CaptureWarning, ConversionError, ExportError, did_you_mean
from torch_ir.ir import IR
from torch_ir.ir.blocks import has_blocks
from torch_ir.ops.facts import is_opaque
from torch_ir.ops.guards import DECISION, FIXED_SHAPE
from torch_ir.ops.torch_internals import FakeTensor, FakeTensorMode, parameter_table, pytree

WAYS_WITHOUT_DATA = 16
_CAPTURES = ("auto", "export", "record")
RECORDING, STRICTLY = "recording", "torch.export in strict mode"
_FOR_ALL = (GOES_ON, OTHER_MEMORY, SEEDS)  # words of refusals that hold in strict mode, too
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
    capture: str = "auto",
    explore: int | None = None,
    level: str = "aten",
    leaf: Collection[str | type] = (),
    blocks: str = "inline",
    stamp: bool = False,
    crosscheck: bool = False,
    isolated: bool = False,
    time_limit: float = TIME_LIMIT,
) -> IR:
    """Capture a model as an IR without reading a weight.

    With `strict`, parameters and inputs must be on meta; `strict=False` takes real tensors and still keeps no weight.
    `kwargs` are keyword inputs. `dynamic_shapes` is what `torch.export` takes: which sizes may vary.
    `capture` is "export", "record", which runs the model once in ordinary Python, or "auto": the one, else the other.
    `explore` is how many ways to go at most where Python decides on data; 16 if there is no data to decide, else 1.
    `level` and `leaf` choose what a node is: an operator, a torch function, or a layer (see `IR.at_level`).
    `blocks="function"` keeps layers that repeat as one function that is called once for each; with `stamp`, only some
    of those that are alike are run, which is faster and rests on more than what was seen (see docs/fast-capture.md).
    `crosscheck` compares a graph that was recorded quickly with that of `torch.export`, which rules.
    `isolated` runs the model's code in a child process only, for at most `time_limit` seconds a try.
    """
    call = (_as_tuple(example_inputs), dict(kwargs or {}))
    with exclusive():  # while a thread captures, its model has other tensors
        _check_request(model, call, strict)
        _check_options(capture, blocks, stamp, dynamic_shapes)
        road = _Road(capture, _ways(model, call, explore), crosscheck, stamp, in_blocks=blocks == "function")
        steps = [
            replace(step, capture=partial(with_state_checked, model, call, _unshared(model, step)))
            for step in _steps(model, call, dynamic_shapes, road)
        ]
        with autocast_inside(model):
            ir = climb(steps, isolated=isolated, time_limit=time_limit)
        refuse_close_integers(ir, torch.get_default_dtype())
    ir.model_name = type(model).__name__ if model_name is None else model_name
    _warn_of_lost_values(ir)
    _warn_of_class_questions(model, call, ir, capture)
    _warn_of_gaps(ir)
    _warn_of_shared_inputs(ir, call)
    fixed = fixed_sizes(ir, model, call, dynamic_shapes)
    if fixed:
        warnings.warn(f"a size that was asked to vary does not: {', '.join(fixed)}", CaptureWarning, stacklevel=2)
    if narrowed := narrowed_size(ir, dynamic_shapes):
        warnings.warn(f"a size does not vary as asked: {narrowed}", CaptureWarning, stacklevel=2)
    if level != "aten" or leaf:
        return ir.at_level(level, leaf)
    if has_blocks(ir):  # some layers were stamped
        return ir if blocks == "function" else ir.at_level("aten")
    return ir.fold_blocks() if blocks == "function" else ir


class _Road(NamedTuple):
    """How a model is to be captured."""

    capture: str
    ways: int
    crosscheck: bool
    stamp: bool
    in_blocks: bool


def _steps(model: nn.Module, call: Call, dynamic_shapes: Any, road: _Road) -> Iterator[Step]:
    """The ways to capture a model that are to be tried, from the best graph to the most stubborn."""
    kind = type(model).__name__
    exactly = partial(_export, model, call, dynamic_shapes)
    quick = partial(quickly, model, call, check=exactly if road.crosscheck else None, stamp=road.stamp)
    if road.capture != "record":
        is_quick = road.capture == "auto" and dynamic_shapes is None
        yield Step(kind, "torch.export", partial(quick, exactly) if is_quick else exactly)
        if road.ways > 1:
            every = partial(explored, exactly, road.ways)
            yield Step(kind, "torch.export of every way that it can go", every, helps_with=BRANCHES)
        if dynamic_shapes is None:  # in strict mode, what the model decides on sizes would go unseen
            strictly = partial(_export, model, call, None, in_strict_mode=True)
            yield Step(kind, STRICTLY, strictly, is_risky=True, hides=_FOR_ALL)
    if road.capture != "export" and dynamic_shapes is None:
        recording = partial(explored, partial(record, model, call), road.ways)
        is_quick = road.capture == "record" and has_no_values(model, call)
        quick = partial(quick, recording, with_functions=not (road.in_blocks or road.crosscheck))
        yield Step(kind, RECORDING, quick if is_quick else recording)


def _unshared(model: nn.Module, step: Step) -> Callable[[], IR]:
    """A step that refuses a graph which takes memory apart that the model shares."""

    def capture() -> IR:
        ir = step.capture()
        refuse_shared_memory(model, ir)
        return ir

    return capture


def _check_options(capture: str, blocks: str, stamp: bool, dynamic_shapes: Any) -> None:
    for name, value, known in (("capture", capture, _CAPTURES), ("blocks", blocks, _BLOCKS)):
        if value not in known:
            nearest = did_you_mean(str(value), known)
            raise ExportError(f"{name}={value!r:.40} is none of {', '.join(known)}{nearest}")
    if capture == "record" and dynamic_shapes is not None:
        raise ExportError("a recording has the sizes of its example inputs; dynamic_shapes need capture='export'")
    if stamp and (capture == "export" or dynamic_shapes is not None):
        raise ExportError("stamp=True is a way to record; torch.export, which dynamic_shapes need, runs every layer")


def _ways(model: nn.Module, call: Call, explore: int | None) -> int:
    """How many ways through the decisions of a model to go at most."""
    if explore is None:
        return WAYS_WITHOUT_DATA if has_no_values(model, call) else 1
    if isinstance(explore, bool) or not isinstance(explore, int) or explore < 1:
        raise ExportError(f"explore={explore!r:.40} must be a whole number from 1: how many ways to go at most")
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
    """`torch.export` of a model, with its weights as fake tensors; the arguments are those of `extract_ir`."""
    call = (_as_tuple(example_inputs), dict(kwargs or {}))
    with exclusive():
        _check_request(model, call, strict)
        refuse_scripted(model)
        with capturing(), autocast_inside(model):
            return _trace(model, call, dynamic_shapes)


def _check_request(model: nn.Module, call: Call, strict: bool) -> None:
    """Refuse what no step can capture, before any is tried."""
    if not isinstance(model, nn.Module):
        raise ExportError(f"extract_ir takes an nn.Module, not {model!r:.80}")
    refuse_nameless(call)
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


def _export(
    model: nn.Module, call: Call, dynamic_shapes: Any, path: Path | None = None, *, in_strict_mode: bool = False
) -> IR:
    """The IR by way of `torch.export`, in one of its modes; with a path, along that."""
    refuse_scripted(model)
    asked = requested_minimums(dynamic_shapes)
    try:
        return _converted(asked, model, call, dynamic_shapes, path, in_strict_mode)
    except ExportError as error:
        if not is_unproved(error.__cause__):
            raise
    ir = _converted(asked, model, call, loosened(dynamic_shapes), path and path.again(), in_strict_mode)
    keep_promises(ir, model, call, dynamic_shapes)
    return ir


def _converted(
    minimums: dict[str, int], model: nn.Module, call: Call, dynamic_shapes: Any, path: Path | None, in_strict_mode: bool
) -> IR:
    """One run of `torch.export`, as an IR; none of its tensors outlives it."""
    noted = nullcontext(AmbientNotes()) if in_strict_mode else ambient_notes()  # strict mode would trace the notes
    with capturing(), contained(model) as tensors, tensors.of_every_mode(), noted as notes:
        program = _trace(model, call, dynamic_shapes, path, in_strict_mode)
        refuse_hidden_state(program, model)
        is_retraced = path is not None and path.is_retraced
        ir = convert_exported_program(program, requested_minimums=minimums, always_retraced=is_retraced)
        refuse_set_memory(ir)
        meta = program.graph_module.meta
        ir.fixed_layout = meta[LAYOUT] or ir.fixed_layout or meta[COPIES]
        _drop_values(program)
        del program, meta
    notes.check(ir)
    return ir


def _drop_values(program: ExportedProgram) -> None:
    """Let the nodes of a program that is converted hold no tensors: handlers of the user's may keep nodes."""
    for module in graphs(program.graph_module):
        for node in module.graph.nodes:
            node.meta.clear()


def _trace(
    model: nn.Module,
    call: Call,
    dynamic_shapes: Any,
    path: Path | None = None,
    in_strict_mode: bool = False,
) -> ExportedProgram:
    """`torch.export` in one of its modes; what goes wrong there is explained."""
    with weight_free(model) as (mode, fakes), ExitStack() as stack:
        if path is not None:
            stack.enter_context(ForcedOutcomes(path))
        if torch.get_default_device().type == "meta":  # literals in forward must keep their values
            stack.enter_context(torch.device("cpu"))
        # strict mode does not tell what the model asked; it may have asked for strides
        questions = nullcontext([definition(model) or type(model).__name__]) if in_strict_mode else layout_questions()
        if not in_strict_mode:
            stack.enter_context(export_in_this_thread())
            stack.enter_context(held_weights_followed(model))
            stack.enter_context(assignments_written(model))
        # torch.export runs forward on stand-ins of modules that have several names, which forget what it changes
        is_blind = in_strict_mode or len(walk(model)) > len(modules(model))
        stack.enter_context(left_as_it_was(model, when_forward_ends=not in_strict_mode, is_blind=is_blind))
        stack.enter_context(constants_kept(model))
        args, keywords = _each_its_own(call, mode)
        try:
            copies = stack.enter_context(nullcontext() if in_strict_mode else no_op_copies(torch_version))
            stack.enter_context(nullcontext() if in_strict_mode else DataAttribute())
            with torch.no_grad(), quiet(), recorded_decisions(dynamic_shapes) as decisions, questions as lines:
                program = torch.export.export(
                    model, args, keywords, dynamic_shapes=dynamic_shapes, strict=in_strict_mode
                )
            program.graph_module.meta[DECISIONS] = decisions
            program.graph_module.meta[LAYOUT] = lines[0] if lines else ""
            program.graph_module.meta[COPIES] = copies.written_later() if copies else ""
        except ConversionError:
            raise
        except (Exception, SystemExit) as error:  # whatever forward raises is the user's to see, in one sentence
            raise explained(error, model) from error
        refuse_untracked(program, model, fakes)
    _forget_gradients(program)
    drop_failed_calls(program.graph_module)
    drop_memos(program.graph_module)
    return program


def _forget_gradients(program: ExportedProgram) -> None:
    """Let no weight of a traced program require a gradient, or torch would trace a backward pass next."""
    values = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    for tensor in (*values, *program.state_dict.values()):
        if isinstance(tensor, FakeTensor) and tensor.is_leaf:
            tensor.requires_grad_(False)


def _each_its_own(call: Call, mode: FakeTensorMode) -> Call:
    """The inputs, fake where they are on meta; torch would take tensors that share memory for views of one input."""
    own = OwnMemory()
    made: Call = pytree.tree_map_only(
        torch.Tensor, lambda tensor: fake_copy(tensor, mode) if tensor.is_meta else own(tensor), call
    )
    return made


def _as_tuple(example_inputs: Any) -> tuple[Any, ...]:
    if isinstance(example_inputs, torch.Tensor):
        raise ExportError("example_inputs is a tensor; wrap it in a tuple: (tensor,)")
    if not isinstance(example_inputs, (tuple, list)):
        raise ExportError(f"example_inputs must be a tuple, not {type(example_inputs).__name__}")
    return tuple(example_inputs)


def _require_meta(model: nn.Module, inputs: Any) -> None:
    held = ((path, parameter_table(module).items()) for path, module in walk(model))
    found = (
        (path, name) for path, table in held for name, weight in table if weight is not None and not weight.is_meta
    )
    if (first := next(found, None)) is not None:
        real = ".".join(filter(None, first))
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


def _warn_of_gaps(ir: IR) -> None:
    """Say where the graph does not hold for every input, and where it cannot run by itself."""
    guarded = dict.fromkeys(node["place"] for node in ir.all_nodes() if node.op_type in (DECISION, FIXED_SHAPE))
    opaque = dict.fromkeys(f"{node.op_type} at {node['place']}" for node in ir.all_nodes() if is_opaque(node))
    if guarded:
        told = f"Python asks for data at {', '.join(guarded)}: the graph runs only where the answer is as it was"
        warnings.warn(told, CaptureWarning, stacklevel=3)
    if opaque:
        told = f"data leaves torch: the graph needs an executor for {', '.join(opaque)}; see register_executor"
        warnings.warn(told, CaptureWarning, stacklevel=3)


def _warn_of_shared_inputs(ir: IR, call: Call) -> None:
    """Say which example inputs are one memory that forward writes to: in the graph, each input stands alone."""
    pairs = shared_inputs(call) if any(target.param is None for target, _ in ir.mutations) else ()
    if pairs:
        told = ", ".join(f"{one} and {other}" for one, other in pairs)
        warnings.warn(
            f"{told} share memory, and forward writes to an input: the graph is that of inputs that share none, and "
            "refuses to run on others",
            CaptureWarning,
            stacklevel=3,
        )


def _warn_of_class_questions(model: nn.Module, call: Call, ir: IR, capture: str) -> None:
    """Say where forward asks for the class of a tensor, unless the capture answers as eager does.

    A recording of real values does so, and so does the strict mode of torch.export, which reads the code.
    """
    road = ir.extensions.get("captured_by", RECORDING if capture == "record" else "")
    if road == STRICTLY or (road == RECORDING and not has_no_values(model, call)):
        return
    if lines := class_questions(model):
        told = (
            f"forward asks for the class of a tensor at {', '.join(lines[:4])}; type() gives another while a model is "
        )
        warnings.warn(f"{told}captured without values: use isinstance there", CaptureWarning, stacklevel=3)


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
        "them from the original model; to keep them in the IR, build the model under torch_ir.meta_init(), or, where "
        "they are computed from weights, with its weights and strict=False",
        CaptureWarning,
        stacklevel=3,
    )
