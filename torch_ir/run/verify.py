"""Prove a graph: run it and the original model on the same inputs, and compare everything that either leaves behind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.func import functional_call

from torch_ir.errors import TorchIRError
from torch_ir.ir import IR, Branch, Slot, TensorMeta, evaluate
from torch_ir.ir.structure import flat, leaves
from torch_ir.ops.names import dtype_name
from torch_ir.ops.pytree import structure_of
from torch_ir.run.compare import Difference, compare
from torch_ir.run.executor import IRExecutor, Outcome, flatten_call
from torch_ir.run.plan import Sizes, computed
from torch_ir.run.weights import load_weights


@dataclass
class VerificationReport:
    """What was compared and how it went; an item of `output_details` per tensor, returned or changed."""

    is_valid: bool
    max_diff: float = 0.0
    mean_diff: float = 0.0
    num_outputs: int = 0
    output_details: list[dict[str, Any]] = field(default_factory=list)
    error_message: str | None = None
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"Verification {'PASSED' if self.is_valid else 'FAILED'}"]
        if self.error_message:
            lines.append(f"  {self.error_message}")
        lines.append(f"  outputs compared: {self.num_outputs}, max diff {self.max_diff:.3g}, mean {self.mean_diff:.3g}")
        for item in self.output_details:
            verdict = "ok" if item["is_close"] else f"DIFFERS: {item['reason']}"
            shape = "x".join(map(str, item["shape"])) or "scalar"
            lines.append(f"  {item['name']}: {shape} {item['dtype']}, max diff {item['max_diff']:.3g}, {verdict}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def verify_ir(
    ir: IR,
    weights_path: str | os.PathLike[str],
    original_model: nn.Module,
    test_inputs: Sequence[Any],
    rtol: float | None = None,
    atol: float | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    *,
    test_kwargs: Mapping[str, Any] | None = None,
) -> tuple[bool, VerificationReport]:
    """Compare a graph that runs with the weights of a file against the original model."""
    state_dict = load_weights(weights_path)
    return verify_ir_with_state_dict(
        ir, state_dict, original_model, test_inputs, rtol, atol, constants, test_kwargs=test_kwargs
    )


def verify_ir_with_state_dict(
    ir: IR,
    state_dict: Mapping[str, torch.Tensor],
    original_model: nn.Module,
    test_inputs: Sequence[Any],
    rtol: float | None = None,
    atol: float | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    *,
    test_kwargs: Mapping[str, Any] | None = None,
) -> tuple[bool, VerificationReport]:
    """Compare a graph that runs with these weights against the original model.

    Without tolerances, each dtype has its own; integers must be equal. Values that no state dict holds and that the
    graph lacks are taken from the model.
    """
    call = (tuple(test_inputs), dict(test_kwargs or {}))
    known = {**_values_outside_state_dict(ir, original_model), **(constants or {})}
    undeclared = _Undeclared()
    try:
        executor = IRExecutor(ir, _apart_from(original_model, state_dict), known, watch=undeclared)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            outcome = executor.run(flatten_call(executor.ir, *_copied(call)))
            torch.manual_seed(0)
            witness = _Witness(original_model, executor.ir, _copied(call))
    except TorchIRError as error:
        return False, VerificationReport(False, float("inf"), float("inf"), error_message=str(error))
    report = _judge(executor, outcome, witness, undeclared.first, rtol, atol)
    return report.is_valid, report


class _Undeclared:
    """Watches a run for values that are not what the graph declares them to be."""

    def __init__(self) -> None:
        self.first = ""

    def __call__(self, tensor: TensorMeta, value: Any, sizes: Sizes) -> None:
        if self.first or not isinstance(value, torch.Tensor) or not tensor.consumers:
            return
        shape = [evaluate(dim, sizes) for dim in tensor.shape]
        if shape != list(value.shape) or tensor.dtype != dtype_name(value.dtype):
            declared, found = f"{tensor.dtype}{shape}", f"{dtype_name(value.dtype)}{list(value.shape)}"
            self.first = f"{tensor.name!r} of {tensor.producer!r} is declared {declared}, but is {found}"


class _Witness:
    """One run of the original model: what it returned, and what became of its tensors and inputs."""

    def __init__(self, model: nn.Module, ir: IR, call: Any) -> None:
        inputs = {f"input {index}": value for index, value in enumerate(flatten_call(ir, *call))}
        parameters = dict(model.named_parameters(remove_duplicate=False))
        buffers = _copies(dict(model.named_buffers(remove_duplicate=False)))  # the model keeps its own
        before = {**parameters, **buffers, **inputs}
        versions = {name: _version(value) for name, value in before.items()}
        with torch.no_grad():
            self.output = functional_call(model, buffers, *call)
        self.after: dict[str, Any] = {**dict(model.named_buffers()), **parameters, **buffers, **inputs}
        replaced = {name for name, value in self.after.items() if value is not before.get(name)}
        # a table that no state dict holds and that the model regrows to fit is a memo, not state
        kept = {*model.state_dict(keep_vars=True), *inputs}
        self.regrown = {name for name in replaced - kept if _shape(before.get(name)) != _shape(self.after[name])}
        self.changed = [
            name
            for name, value in self.after.items()
            if name not in self.regrown and (name in replaced or _version(value) != versions[name])
        ]


def _copies(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of tensors, where what was one tensor is still one."""
    made: dict[torch.Tensor, torch.Tensor] = {}
    return {name: made.setdefault(tensor, tensor.clone()) for name, tensor in tensors.items()}


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, torch.Tensor) else None


def _version(value: Any) -> int:
    """Torch counts the writes to a tensor."""
    return value._version if isinstance(value, torch.Tensor) else 0


def _judge(
    executor: IRExecutor, outcome: Outcome, witness: _Witness, problem: str, rtol: float | None, atol: float | None
) -> VerificationReport:
    ir = executor.ir
    details: list[dict[str, Any]] = []
    problem = problem or _structure_problem(ir, witness.output)
    expected = dict(enumerate(pytree.tree_leaves(witness.output)))
    for index, (path, leaf) in enumerate(leaves(ir.output_tree)):
        if problem:
            break
        actual = outcome.outputs[leaf] if isinstance(leaf, Slot) else computed(leaf, outcome.sizes)
        if isinstance(expected[index], torch.Tensor) or isinstance(leaf, Slot):
            difference = compare(expected[index], actual, rtol, atol)
            details.append(_detail(len(details), f"output{path}", expected[index], difference))
        elif compare(expected[index], actual).reason:
            problem = f"output{path} is {compare(expected[index], actual).reason}"
    details += _changes(ir, outcome, witness, len(details), rtol, atol)
    if not details and not problem:
        problem = "nothing was compared: neither side returned or changed a tensor"
    wrong = next((item for item in details if not item["is_close"]), None)
    if wrong and not problem:
        problem = f"{wrong['name']}: {wrong['reason']}"
    return VerificationReport(
        is_valid=not problem,
        max_diff=max((item["max_diff"] for item in details), default=0.0),
        mean_diff=sum(item["mean_diff"] for item in details) / max(1, len(details)),
        num_outputs=len(details),
        output_details=details,
        error_message=problem or None,
        notes=[
            f"{name} is a table that the model regrew to fit; it is not compared" for name in sorted(witness.regrown)
        ],
    )


def _structure_problem(ir: IR, output: Any) -> str:
    """Why the model's nesting of outputs is not the graph's; empty if it is."""
    original = [path for path, _ in leaves(structure_of(output, lambda index, leaf: None))]
    captured = [path for path, _ in leaves(ir.output_tree)]
    is_plain = ir.output_tree == flat(len(captured))  # the documented format: a list of tensors, however nested
    if isinstance(ir.output_tree, Branch) and not is_plain and original != captured:
        return f"the model returns {_listed(original)}, the graph {_listed(captured)}"
    return (
        "" if len(original) == len(captured) else f"the model returns {len(original)} values, the graph {len(captured)}"
    )


def _listed(paths: list[str]) -> str:
    shown = ", ".join(f"output{path}" for path in paths[:6])
    return shown + (f" and {len(paths) - 6} more" if len(paths) > 6 else "") if paths else "nothing"


def _changes(
    ir: IR, outcome: Outcome, witness: _Witness, first: int, rtol: float | None, atol: float | None
) -> list[dict[str, Any]]:
    """What the model changed and what the graph says it changes must be the same tensors with the same values."""
    said: dict[str, Any] = {}
    for target, value in outcome.mutations.items():
        keys = target.param.keys if target.param else (f"input {ir.graph_inputs.index(target)}",)
        said.update((key, value) for key in keys)
    details: list[dict[str, Any]] = []
    for name in dict.fromkeys([*witness.changed, *said]):
        after = witness.after.get(name)
        if name in said:
            difference = compare(after, said[name], rtol, atol)
        else:
            difference = Difference("the model changes it, the graph does not", float("inf"), float("inf"))
        details.append(_detail(first + len(details), f"{name} afterwards", after, difference))
    return details


def _detail(index: int, name: str, expected: Any, difference: Difference) -> dict[str, Any]:
    is_tensor = isinstance(expected, torch.Tensor)
    return {
        "index": index,
        "name": name,
        "shape": list(expected.shape) if is_tensor else [],
        "dtype": str(expected.dtype).removeprefix("torch.") if is_tensor else type(expected).__name__,
        "is_close": not difference.reason,
        "max_diff": difference.max_diff,
        "mean_diff": difference.mean_diff,
        "reason": difference.reason,
    }


def _values_outside_state_dict(ir: IR, model: nn.Module) -> dict[str, torch.Tensor]:
    """Non-persistent buffers and plain tensor attributes that the graph needs and does not hold."""
    found = {}
    for param in ir.params:
        if param.param and not param.param.in_state_dict and param.param.data is None and param.key is not None:
            value: Any = model
            for part in param.key.split("."):
                value = _step_into(value, part)
            if isinstance(value, torch.Tensor):
                found[param.key] = value.detach().clone()
    return found


def _step_into(value: Any, part: str) -> Any:
    """An attribute, or an item of a container by its index or key."""
    if isinstance(value, (list, tuple)) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    if isinstance(value, Mapping):
        return next((item for key, item in value.items() if str(key) == part), None)
    return getattr(value, part, None)


def _apart_from(model: nn.Module, state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights, with copies of the buffers, which the model may change while it runs."""
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {key: value.detach().clone() if key in buffers else value for key, value in state_dict.items()}


def _copied(call: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), call)
