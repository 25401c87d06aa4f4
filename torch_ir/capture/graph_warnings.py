"""Warnings about a captured graph: inputs or runs for which it does not do what the model does."""

from __future__ import annotations

import warnings

from torch import nn

from torch_ir.capture.example_inputs import shared_inputs
from torch_ir.capture.export.dynamic import Call
from torch_ir.capture.state.class_questions import class_questions
from torch_ir.capture.state.input_questions import guard_inputs, questions_of_all
from torch_ir.capture.steps import STRICTLY
from torch_ir.errors import CaptureWarning, listed
from torch_ir.ir import IR
from torch_ir.ops.effects import is_opaque
from torch_ir.ops.guards import DECISION, FIXED_SHAPE
from torch_ir.ops.torch_internals import IS_PARAMETER


def warn_of_gaps(ir: IR) -> None:
    """Warn where the graph is specialised to the data, and where it needs an executor from the user."""
    nodes = list(ir.all_nodes())
    guarded = dict.fromkeys([node["place"] for node in nodes if node.op_type in (DECISION, FIXED_SHAPE)])
    opaque = dict.fromkeys([f"{node.op_type} at {node['place']}" for node in nodes if is_opaque(node)])
    if guarded:
        text = f"Python reads data at {', '.join(guarded)}: the graph runs only for values as at capture"
        warnings.warn(f"{text}{_exact_numbers(ir)}", CaptureWarning, stacklevel=3)
    if opaque:
        text = f"data leaves torch: the graph needs an executor for {', '.join(opaque)}; see register_executor"
        warnings.warn(text, CaptureWarning, stacklevel=3)


def _exact_numbers(ir: IR) -> str:
    """Name the numbers that Python read from the data: the graph is valid for exactly these."""
    decisions = [node for node in ir.all_nodes() if node.op_type == DECISION and not isinstance(node["assumed"], bool)]
    if not decisions:
        return ""
    shown = ", ".join(dict.fromkeys(f"{node['assumed']} at {node['place']}" for node in decisions[:4]))
    more = f" and {len(decisions) - 4} more" if len(decisions) > 4 else ""
    return f", that is exactly {shown}{more}; if Python does not need the number, keep it a tensor, without .item()"


def warn_of_shared_inputs(ir: IR, call: Call) -> None:
    """Warn if example inputs share memory that forward writes to: the inputs of a graph share none."""
    pairs = shared_inputs(call) if any(target.param is None for target, _ in ir.mutations) else ()
    if pairs:
        text = ", ".join(f"{one} and {other}" for one, other in pairs)
        warnings.warn(
            f"{text} share memory, and forward writes to an input: the graph is captured for inputs that share "
            "none, and raises on others",
            CaptureWarning,
            stacklevel=3,
        )


def guard_class_questions(model: nn.Module, call: Call, ir: IR) -> None:
    """Guard the inputs of a forward that reads `type(tensor)`; warn, unless the capture returns what eager does.

    The strict mode of torch.export does, which interprets the bytecode.
    """
    lines = class_questions(model)
    if not lines:
        return
    guard_inputs(ir, questions_of_all(call, (IS_PARAMETER,), lines[0]))
    if ir.extensions.get("captured_by") == STRICTLY:
        return
    text = f"forward reads the class of a tensor at {', '.join(lines[:4])}; type() returns another in a capture "
    warnings.warn(f"{text}without values: use isinstance there", CaptureWarning, stacklevel=3)


def warn_of_lost_values(ir: IR) -> None:
    """Name the values that are in no state dict and were lost on meta."""
    lost = [tensor for tensor in ir.params if tensor.param and not tensor.param.in_state_dict and not tensor.param.data]
    if not lost:
        return
    names = listed([repr(tensor.key) for tensor in lost], 8)
    warnings.warn(
        f"the values of {names} are unknown: they were built on meta and no state dict holds them. Verification takes "
        "them from the original model; to keep them in the IR, build the model under torch_ir.meta_init(), or, where "
        "they are computed from weights, with its weights and strict=False",
        CaptureWarning,
        stacklevel=3,
    )
