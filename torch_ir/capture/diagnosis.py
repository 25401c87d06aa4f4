"""Explain a failed capture in one sentence: the line, the cause, and the usual fix."""

from __future__ import annotations

import inspect
import itertools
import traceback
from collections.abc import Collection

import torch
from torch import nn
from torch.export import ExportedProgram

from torch_ir.capture.causes import cause_by_words, cause_of, lines_of, message, named_message
from torch_ir.capture.program.provenance import is_users, source_line, user_line
from torch_ir.errors import Cause, ExportError, TorchIRError
from torch_ir.ops.effects import mutated_arguments
from torch_ir.ops.torch_internals import FakeTensor, OpOverload, schema_of

ELSEWHERE = "compute it in forward itself, not in another thread, and do not keep it from an earlier call"
# cause -> what happened, and how to fix it
_REMEDIES = {
    Cause.NUMBER_FROM_DATA: "Python needs a number that depends on the data, for an index or a loop; keep it a "
    "tensor (torch.index_select, torch.where), or use torch.while_loop",
    Cause.BRANCH_ON_DATA: "Python branches on a value that depends on the data; use torch.cond or torch.where there, "
    "or torch._check for sizes",
    Cause.UNKNOWN_RESULT: "the model returns an object that is not a pytree; register its class as a pytree node, or "
    "return tensors",
    Cause.SIZE_FROM_DATA: "the size of a result depends on the data in a way that torch cannot follow; pad the result "
    "to a fixed size",
    Cause.NUMPY: "the model calls NumPy, which cannot be traced; use torch functions",
    Cause.NO_SHAPE_RULE: "an operator has no shape rule; register one with torch.library.register_fake",
    Cause.DATA_POINTER: "the model reads the memory of a tensor, which has none during a capture; use torch "
    "functions there",
    Cause.UNTRACKED_TENSOR: f"the model computes outside the trace; {ELSEWHERE}",
    Cause.KEPT_TENSOR: "forward reads a tensor that cannot be traced, such as one that was kept from an earlier "
    f"capture; {ELSEWHERE}",
    Cause.NO_VALUE: "a tensor without values cannot be read; capture the model with explore=, or on real tensors with "
    "strict=False",
    Cause.ENDLESS_RECURSION: "forward recurses without end; make the recursion end independently of the data",
    Cause.EXIT: "forward ends the process with sys.exit; raise an exception instead",
    Cause.WRONG_INPUTS: "the example inputs do not match the arguments of forward; pass what the model is called with",
}


def explained(error: BaseException, model: nn.Module) -> ExportError:
    """Return an error with the user's line and the reason; known causes get an explanation and a fix."""
    frames = traceback.extract_tb(error.__traceback__)
    place = user_line("".join(traceback.format_list(frames))) or user_line(str(error)) or definition(model)
    return _refusal(model, place, _reason(error, frames), cause_of(error))


def untraceable(model: nn.Module, place: str, cause: Cause) -> ExportError:
    """Return the error for a line of which the cause is known."""
    return _refusal(model, place, _REMEDIES[cause], cause)


def in_brief(error: TorchIRError) -> str:
    """Return what happened, without the fix and torch's own message, if the cause is a known one; else the message."""
    text, what = str(error), _REMEDIES.get(error.cause, "").partition("; ")[0]
    before, found, _ = text.partition(what) if what else (text, "", "")
    return f"{before}{what}" if found else text


def _refusal(model: nn.Module, place: str, reason: str, cause: Cause = Cause.UNKNOWN) -> ExportError:
    located = f"{place}: {reason}" if place else reason
    return ExportError(f"cannot capture {type(model).__name__}: {located}", cause=cause)


def _reason(error: BaseException, frames: traceback.StackSummary) -> str:
    cause, first, named = cause_by_words(error), message(error), named_message(error)
    if cause is Cause.SIZE_CANNOT_VARY:
        return _violated(lines_of(error))
    if cause in _REMEDIES:
        return f"{_REMEDIES[cause]} ({first or named})"
    if type(error).__name__ == "UserError":  # of torch._dynamo; its text is written for users
        return first
    if frames and is_users(frames[-1].filename):
        return f"forward raises {named}"
    return f"{named}; check that the model itself accepts these inputs"


def definition(model: nn.Module) -> str:
    """Return the line where forward is defined."""
    try:
        file, line = inspect.getsourcefile(type(model)), inspect.getsourcelines(type(model).forward)[1]
    except (OSError, TypeError):  # not defined in a file
        return ""
    return source_line(file, line)


def refuse_hidden_state(program: ExportedProgram, model: nn.Module) -> None:
    """Refuse a program that writes to a tensor of the model that is not a registered buffer."""
    hidden = program.graph_signature.inputs_to_lifted_tensor_constants
    for node in program.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, OpOverload):
            written = [node.args[index] for index in _positions(node.target) if index < len(node.args)]
            if any(getattr(argument, "name", None) in hidden for argument in written):
                reason = "forward writes to a tensor that is not a registered buffer, so its new value has no name"
                place = user_line(node.meta.get("stack_trace") or "")
                raise _refusal(model, place, f"{reason}; register it as a buffer")


def refuse_untracked(program: ExportedProgram, model: nn.Module, given: Collection[torch.Tensor]) -> None:
    """Refuse a program with a constant that has no values and does not belong to the model."""
    known = set(map(id, given))
    for name, value in program.constants.items():
        if isinstance(value, FakeTensor) and id(value) not in known:
            reason = f"it reads {name!r}, a tensor that was computed outside the trace"
            raise _refusal(model, definition(model), f"{reason}; {ELSEWHERE}")


def _positions(operator: OpOverload) -> list[int]:
    written = set(mutated_arguments(operator))
    return [index for index, argument in enumerate(schema_of(operator).arguments) if argument.name in written]


def _violated(lines: list[str]) -> str:
    """Name the sizes that cannot vary as requested, and torch's suggested fixes."""
    reasons = [line.removeprefix("- ").partition(". If you")[0].rstrip(".") for line in lines if line.startswith("- ")]
    start = lines.index("Suggested fixes:") + 1 if "Suggested fixes:" in lines else len(lines)
    fixes = list(itertools.takewhile(lambda line: " = " in line, lines[start:]))
    proposed = f"; torch proposes {', '.join(fixes)}" if fixes else ""
    return f"a size cannot vary as asked: {'; '.join(reasons[:2]) or lines[0]}{proposed}"
