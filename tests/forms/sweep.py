"""Extract, save, load and execute a form, and compare with eager after every call.

python -m tests.forms.sweep [NAME ...]      every form, or those named; prints a line each
"""

import copy
import sys
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from tests.forms import forms
from tests.forms.form import CAPTURED, CARRIED, REFUSED, UNBUILT, VERIFIED, Form, Outcome
from tests.proof import quiet, to_meta, verdict
from torch_ir import IR, ExportError, IRExecutor, TorchIRError, convert_exported_program, export_model, extract_ir
from torch_ir.ops.tensor_data import plain_tensors
from torch_ir.run.tolerances import compare


def carry(form: Form) -> Outcome:
    """Run a form through all stages and return the last one reached."""
    with quiet():
        try:
            model = form.build()
        except Exception as error:  # libraries report missing kernels in many ways
            return Outcome(UNBUILT, str(error))
        try:
            ir = IR.from_json(extract(form, copy.deepcopy(model)).to_json())
        except ExportError as error:
            return Outcome(REFUSED, str(error))
        except TorchIRError as error:
            return Outcome(CAPTURED, f"{type(error).__name__}: {error}")
        try:
            reason = _difference(form, ir, model) or _later_difference(form, ir, model)
        except TorchIRError as error:
            reason = f"{type(error).__name__}: {error}"
        return Outcome(CARRIED, reason) if reason else Outcome(VERIFIED)


def extract(form: Form, model: nn.Module) -> IR:
    """The graph of a form, from a model without weights wherever one can be had."""
    if form.strict_export:
        return convert_exported_program(exported(form, model))
    model, inputs = _bare(form, model)
    return extract_ir(model, inputs, strict=form.on_meta, dynamic_shapes=form.dynamic_shapes)


def exported(form: Form, model: nn.Module) -> ExportedProgram:
    """Export a form with torch.export."""
    if form.strict_export:
        with torch.no_grad():
            return torch.export.export(model, form.inputs()[0], dynamic_shapes=form.dynamic_shapes, strict=True)
    model, inputs = _bare(form, model)
    return export_model(model, inputs, strict=form.on_meta, dynamic_shapes=form.dynamic_shapes)


def _bare(form: Form, model: nn.Module) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model and its first inputs, on meta wherever that can be."""
    inputs = form.inputs()[0]
    return (model.to("meta"), to_meta(inputs)) if form.on_meta else (model, inputs)


def _difference(form: Form, ir: IR, model: nn.Module) -> str:
    """Return the verification errors of each call on a fresh model; empty on success."""
    for inputs in form.inputs():
        report = verdict(ir, copy.deepcopy(model), *inputs)
        if not report.is_valid:
            return str(report)
    return ""


def _later_difference(form: Form, ir: IR, model: nn.Module) -> str:
    """Where one executor and one model part when they are called in turn; empty if they never do."""
    executor = IRExecutor(ir, *copy.deepcopy((model.state_dict(), dict(model.named_buffers()))))
    for number, (given, same) in enumerate(zip(form.inputs(), form.inputs(), strict=True)):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(number)
            expected = pytree.tree_leaves(model(*given))
            torch.manual_seed(number)
            actual = pytree.tree_leaves(executor(*same))
        kept = plain_tensors(model.state_dict())
        state = [(kept[key], value) for key, value in executor.state.items() if key in kept]
        for one, other in [*zip(expected, actual, strict=True), *state]:
            if reason := compare(one, other).reason:
                return f"call {number}: {reason}"
    return ""


def main(names: list[str]) -> int:
    chosen = [form for form in forms() if not names or form.name in names]
    wrong = 0
    for form in chosen:
        outcome = carry(form)
        wrong += outcome.stage != form.expected.stage
        print(
            f"{form.family}: {form.name}: {outcome.stage}{outcome.reason and ': ' + outcome.reason[:600]}", flush=True
        )
    print(f"{len(chosen)} forms, {wrong} not as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
