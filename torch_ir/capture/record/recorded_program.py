"""`record`: a recorded run becomes an ExportedProgram, which is converted like one of torch.export."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd import grad_mode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind, OutputSpec

from torch_ir.capture.data_branches.decision_paths import Path
from torch_ir.capture.diagnosis import explained
from torch_ir.capture.example_inputs import OwnMemory
from torch_ir.capture.export.dynamic import Call
from torch_ir.capture.export.fake_weights import fake_copy, has_no_values, weight_free
from torch_ir.capture.export.untraceable import refuse_scripted
from torch_ir.capture.instrument import capturing, intercepted, without_libraries
from torch_ir.capture.naming.export_names import names_of_inputs
from torch_ir.capture.program.lift_constants import plain_parameters
from torch_ir.capture.program.no_op_copies import no_op_copies, torch_version
from torch_ir.capture.program.program_to_ir import convert_exported_program
from torch_ir.capture.program.provenance import is_users_code
from torch_ir.capture.quiet import quiet
from torch_ir.capture.record.opaque import name_placeholders
from torch_ir.capture.record.placeholders import (
    Given,
    argument,
    held_weights,
    name_nodes,
    order_placeholders,
    read_constants,
    unread_literals,
)
from torch_ir.capture.record.run_recorder import Recorder
from torch_ir.capture.state.ambient_notes import ambient_notes
from torch_ir.capture.state.input_questions import note_inputs, questions_noted
from torch_ir.capture.state.side_effects import left_as_it_was
from torch_ir.capture.state.tensor_leaks import Tensors, contained
from torch_ir.capture.state.tensor_memory import refusal
from torch_ir.capture.walk import weights as held
from torch_ir.errors import ConversionError, ExportError
from torch_ir.ir import IR
from torch_ir.ops.fast_paths import plain_attention, uncompiled
from torch_ir.ops.torch_internals import (
    DECORATOR_FILE,
    SET_GRAD_ENABLED,
    AutoDispatchBelowAutograd,
    FakeTensorMode,
    dense_memory_key,
    fake_mode,
    is_traceable_wrapper_subclass,
    load_verifier,
    pytree,
)

_RETURNED = (
    *(torch.Tensor, bool, int, float, complex, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def record(model: nn.Module, call: Call, path: Path, *, with_gradients: bool = False) -> IR:
    """Return the IR of one run of the model, on its own tensors if all are real, else on fake ones.

    `with_gradients` is for a training step, which computes gradients itself; it always runs on fake tensors.
    """
    if with_gradients:
        return _record(model, call, path, _Gradients(are_used=True, is_training=True))
    gradients = _Gradients()
    try:
        ir = _record(model, call, path, gradients)
    except ExportError:
        if not gradients.are_used:
            raise
    else:
        if not gradients.are_used:
            return ir
    return _record(model, call, path.again(), gradients)


class _Gradients:
    """Records whether forward enables gradients in a region, where it may read `requires_grad` or `grad_fn`."""

    def __init__(self, are_used: bool = False, is_training: bool = False) -> None:
        self.are_used = are_used
        self.is_training = is_training

    def switch(self, original: Callable[[bool], None], is_on: bool) -> None:
        original(is_on)
        self.are_used |= is_on and is_users_code(_region(sys._getframe(2)))


def _region(frame: FrameType) -> CodeType:
    """Return the code that enters a grad-mode region, or is decorated as one; `frame` is where torch sets the mode."""
    found: FrameType | None = frame
    while found is not None and found.f_code.co_filename == grad_mode.__file__:
        found = found.f_back
    caller = found or frame
    decorated = caller.f_locals.get("func") if caller.f_code.co_filename == DECORATOR_FILE else None
    code: CodeType = getattr(decorated, "__code__", caller.f_code)
    return code


def _record(model: nn.Module, call: Call, path: Path, gradients: _Gradients) -> IR:
    with capturing(), contained(model) as tensors, ambient_notes() as notes:
        ir = _recorded(model, call, path, gradients, tensors)
    notes.check(ir)
    return ir


def _recorded(model: nn.Module, call: Call, path: Path, gradients: _Gradients, tensors: Tensors) -> IR:
    is_training = gradients.is_training
    with _tensors(model, call, is_training) as (mode, is_fake, (args, kwargs)), left_as_it_was(model):
        recorder = Recorder(model, mode, path, is_training)
        tensors.others = recorder.made
        try:
            with _eager(gradients), mode if is_fake else nullcontext(), no_op_copies(torch_version) as copies:
                program = _program(recorder, args, kwargs)
                line = copies.written_later()
            ir = convert_exported_program(program, always_retraced=path.is_retraced)
            recorder.generator.reuse(ir)
        except ConversionError:
            raise
        except (Exception, SystemExit) as error:  # whatever forward raises
            raise explained(error, model) from error
        finally:
            recorder.untracked.opaque.close()
    ir.fixed_layout = recorder.layout or ir.fixed_layout or line
    name_placeholders(ir)
    return ir


@contextmanager
def _tensors(model: nn.Module, call: Call, is_fake: bool) -> Iterator[tuple[FakeTensorMode, bool, Call]]:
    """Yield a fake mode, whether the model and its inputs are fake because some have no values, and the inputs."""
    if is_fake or has_no_values(model, call):
        refuse_scripted(model)  # its weights cannot be replaced by fake ones
        with weight_free(model) as (mode, _):
            yield mode, True, pytree.tree_map_only(torch.Tensor, lambda tensor: fake_copy(tensor, mode), call)
    else:
        mode = fake_mode()
        own = OwnMemory()
        yield mode, False, pytree.tree_map_only(torch.Tensor, lambda tensor: _apart(own(tensor)), call)


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return an alias with the same `requires_grad`."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


@contextmanager
def _eager(gradients: _Gradients) -> Iterator[None]:
    with ExitStack() as stack:
        if torch.get_default_device().type == "meta":  # literals in forward must keep their values
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(quiet())
        stack.enter_context(torch.no_grad())
        stack.enter_context(plain_attention())
        if gradients.is_training:  # layers of oneDNN have several outputs that only its own backward reads
            stack.enter_context(without_libraries())
        stack.enter_context(uncompiled())
        stack.enter_context(intercepted(*SET_GRAD_ENABLED, gradients.switch))
        if not gradients.are_used:  # below autograd, operators are whole: `linear`, not `t` and `addmm`
            stack.enter_context(AutoDispatchBelowAutograd())
        yield


def _program(recorder: Recorder, args: Sequence[Any], kwargs: dict[str, Any]) -> ExportedProgram:
    """Run the model, and assemble the recorded calls as torch.export would."""
    model, tape, untracked = recorder.model, recorder.tape, recorder.untracked
    weights = {tape.placeholder(each.name, each.value): each for each in held_weights(model)}
    state = plain_parameters({each.key: each.tensor for each in held(model) if each.kind != "temporary"})
    memory = {each.key: dense_memory_key(each.value) for each in weights.values()}
    leaves, in_spec = pytree.tree_flatten((tuple(args), kwargs))
    names = names_of_inputs(model, args, kwargs, len(leaves))
    inputs = {
        tape.placeholder(name, leaf): Given(InputKind.USER_INPUT, name, leaf)
        for name, leaf in zip(names, leaves, strict=True)
    }
    untracked.inputs = [tape.node_of(leaf) for leaf in leaves if _is_tensor(leaf)]
    note_inputs((args, kwargs))
    with questions_noted():
        returned, out_spec = _taken_apart(recorder.run(args, kwargs))
    if other := next((each.key for each in weights.values() if dense_memory_key(each.value) != memory[each.key]), None):
        raise refusal(f"of {other!r}")
    outputs = [tape.node_of(leaf) if _is_tensor(leaf) else leaf for leaf in returned]
    untracked.close(tape)
    tape.graph.output(tuple(outputs))
    dropped = unread_literals(tape.graph, untracked.constants)
    given = {**inputs, **weights, **dict(read_constants(recorder, dropped))}
    name_nodes(tape.graph, given)
    for node in dropped:
        tape.graph.erase_node(node)
    specs = [given[node].spec(node) for node in order_placeholders(tape.graph, given)]
    results = [OutputSpec(OutputKind.USER_OUTPUT, argument(node, node), None) for node in outputs]
    return ExportedProgram(
        nn.Module(),
        tape.graph,
        ExportGraphSignature(specs, results),
        state,
        {},
        [ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec, _argument_names(model, args, kwargs)))],
        constants={each.key: each.value for each in given.values() if each.is_constant},
        verifiers=[load_verifier("TRAINING")],  # the dialect that may write in place
    )


def _argument_names(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """Return the names of the given arguments as torch.export has them: `*xs` is `xs_0`, `xs_1`, then keywords."""
    try:
        signature = inspect.signature(model.forward)
        bound = signature.bind_partial(*args).arguments
    except (TypeError, ValueError):  # forward will raise, or has no signature
        return []
    names: list[str] = []
    for name, value in bound.items():
        is_several = signature.parameters[name].kind == inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}_{index}" for index in range(len(value))] if is_several else [name]
    return [*names, *kwargs]


def _taken_apart(result: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves of a model's result; dataclasses that torch does not know are registered with it."""
    leaves, spec = pytree.tree_flatten(result)
    unknown = {type(leaf) for leaf in leaves if dataclasses.is_dataclass(leaf)}
    for kind in unknown:
        torch.export.register_dataclass(kind)
    if unknown:
        return _taken_apart(result)
    strange = next((leaf for leaf in leaves if not isinstance(leaf, _RETURNED)), None)
    if strange is not None:
        raise ConversionError(
            f"the model returns a {type(strange).__name__}, which is not a pytree; register its class as a pytree node"
        )
    if wrappers := [type(leaf).__name__ for leaf in leaves if is_traceable_wrapper_subclass(leaf)]:
        raise ConversionError(f"the model returns a {wrappers[0]}, which wraps other tensors; return those")
    return leaves, spec


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
