"""Capture by torch.export: trace a model with fake weights, and convert the exported program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from torch_ir.capture.diagnosis import definition, explained, refuse_hidden_state, refuse_untracked
from torch_ir.capture.example_inputs import OwnMemory
from torch_ir.capture.export.dynamic import (
    DECISIONS,
    Call,
    arithmetic_named_apart,
    keep_promises,
    loosened,
    recorded_decisions,
    requested_minimums,
)
from torch_ir.capture.export.fake_weights import fake_copy, weight_free
from torch_ir.capture.export.held_weights import held_weights_followed
from torch_ir.capture.export.untraceable import refuse_scripted
from torch_ir.capture.export.written_literals import written_literals_forgotten
from torch_ir.capture.instrument import capturing, export_in_this_thread
from torch_ir.capture.program.lift_constants import graphs
from torch_ir.capture.program.no_op_copies import COPIES, no_op_copies, torch_version
from torch_ir.capture.program.program_to_ir import convert_exported_program
from torch_ir.capture.quiet import quiet
from torch_ir.capture.state.ambient_notes import AmbientNotes, ambient_notes
from torch_ir.capture.state.assigned_buffers import assignments_written, drop_memos
from torch_ir.capture.state.input_questions import inputs_noted, questions_noted
from torch_ir.capture.state.layout_questions import LAYOUT, layout_questions
from torch_ir.capture.state.side_effects import constants_kept, drop_failed_calls, left_as_it_was, while_running
from torch_ir.capture.state.tensor_leaks import contained
from torch_ir.capture.state.tensor_memory import refuse_set_memory
from torch_ir.capture.state.weight_attributes import assigned_attributes_noted, refuse_attributes
from torch_ir.capture.walk import modules, walk
from torch_ir.errors import Cause, ConversionError, ExportError
from torch_ir.ir import IR
from torch_ir.ops.torch_internals import FakeTensor, FakeTensorMode, pytree


def export_to_ir(model: nn.Module, call: Call, dynamic_shapes: Any, *, in_strict_mode: bool = False) -> IR:
    """Capture a model by `torch.export`."""
    refuse_scripted(model)
    asked = requested_minimums(dynamic_shapes)
    try:
        return _converted(asked, model, call, dynamic_shapes, in_strict_mode)
    except ExportError as error:
        if error.cause is not Cause.SIZE_CANNOT_VARY:
            raise
    ir = _converted(asked, model, call, loosened(dynamic_shapes), in_strict_mode)
    keep_promises(ir, model, call, dynamic_shapes)
    return ir


def _converted(minimums: dict[str, int], model: nn.Module, call: Call, dynamic_shapes: Any, in_strict_mode: bool) -> IR:
    """Run `torch.export` once and convert the result; none of its tensors is kept."""
    noted = nullcontext(AmbientNotes()) if in_strict_mode else ambient_notes()  # strict mode would trace the notes
    with capturing(), contained(model) as tensors, tensors.of_every_mode(), noted as notes:
        program = trace(model, call, dynamic_shapes, in_strict_mode)
        refuse_hidden_state(program, model)
        ir = convert_exported_program(program, requested_minimums=minimums)
        refuse_set_memory(ir)
        meta = program.graph_module.meta
        ir.fixed_layout = meta[LAYOUT] or ir.fixed_layout or meta[COPIES]
        _drop_values(program)
        del program, meta
    notes.check(ir)
    return ir


def _drop_values(program: ExportedProgram) -> None:
    """Remove tensors from the nodes of a converted program: handlers of the user's may keep the nodes."""
    for module in graphs(program.graph_module):
        for node in module.graph.nodes:
            node.meta.clear()


def trace(model: nn.Module, call: Call, dynamic_shapes: Any, in_strict_mode: bool = False) -> ExportedProgram:
    """Run `torch.export`, and explain its errors."""
    refuse_attributes(model)
    with weight_free(model) as (mode, fakes), ExitStack() as stack:
        if torch.get_default_device().type == "meta":  # literals in forward must keep their values
            stack.enter_context(torch.device("cpu"))
        # strict mode does not show what the model read; assume that it read strides
        lines = [definition(model) or type(model).__name__] if in_strict_mode else []
        if not in_strict_mode:
            stack.enter_context(export_in_this_thread())
            stack.enter_context(held_weights_followed(model))
            stack.enter_context(while_running(model, partial(_questions, lines)))
            stack.enter_context(inputs_noted(model))
            stack.enter_context(assignments_written(model))
            stack.enter_context(written_literals_forgotten())
        stack.enter_context(assigned_attributes_noted(model, in_strict_mode=in_strict_mode))
        # torch.export replaces modules that have several paths by copies, and changes to these are lost
        is_blind = in_strict_mode or len(walk(model)) > len(modules(model))
        state = stack.enter_context(left_as_it_was(model, when_forward_ends=not in_strict_mode, is_blind=is_blind))
        stack.enter_context(constants_kept(state))
        stack.enter_context(arithmetic_named_apart(dynamic_shapes))
        args, keywords = _each_its_own(call, mode)
        try:
            copies = stack.enter_context(nullcontext() if in_strict_mode else no_op_copies(torch_version))
            with torch.no_grad(), quiet(), recorded_decisions(dynamic_shapes) as decisions:
                program = torch.export.export(
                    model, args, keywords, dynamic_shapes=dynamic_shapes, strict=in_strict_mode
                )
            program.graph_module.meta[DECISIONS] = decisions
            program.graph_module.meta[LAYOUT] = lines[0] if lines else ""
            program.graph_module.meta[COPIES] = copies.written_later() if copies else ""
        except ConversionError:
            raise
        except (Exception, SystemExit) as error:  # whatever forward raises
            raise explained(error, model) from error
        refuse_untracked(program, model, fakes)
    _forget_gradients(program)
    drop_failed_calls(program.graph_module)
    drop_memos(program.graph_module)
    return program


@contextmanager
def _questions(lines: list[str]) -> Iterator[None]:
    """Note what forward reads of its inputs, and the lines that read strides."""
    with questions_noted(data=True), layout_questions(lines):
        yield


def _forget_gradients(program: ExportedProgram) -> None:
    """Clear `requires_grad` of a program's weights, or functionalisation would trace a backward pass."""
    values = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    for tensor in (*values, *program.state_dict.values()):
        if isinstance(tensor, FakeTensor) and tensor.is_leaf:
            tensor.requires_grad_(False)


def _each_its_own(call: Call, mode: FakeTensorMode) -> Call:
    """Return the inputs, fake where they are on meta, without shared memory, which torch would trace as views."""
    own = OwnMemory()
    made: Call = pytree.tree_map_only(
        torch.Tensor, lambda tensor: fake_copy(tensor, mode) if tensor.is_meta else own(tensor), call
    )
    return made
