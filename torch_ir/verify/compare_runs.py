"""Compare one run of a graph with one run of the model: weights, nesting, outputs and changed state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from torch_ir.errors import listed
from torch_ir.ir import IR, Branch, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Tree, flat, leaves
from torch_ir.ops.pytree import structure_of
from torch_ir.ops.torch_internals import pytree
from torch_ir.run.compiled_plan import computed
from torch_ir.run.executor import IRExecutor, Outcome
from torch_ir.run.tolerances import Difference, compare
from torch_ir.verify.reference_run import ReferenceRun, named_tensors

Details = list[dict[str, Any]]


def weight_problem(executor: IRExecutor, model: nn.Module, rtol: float | None, atol: float | None) -> str:
    """Return which weight of the graph differs from the model's, or ""; without tolerances, every bit counts."""
    own = dict(named_tensors(model))
    for param, (key, value) in zip(executor.ir.params, executor.state.items(), strict=True):
        if not param.consumers or not param.param or not param.param.in_state_dict or key not in own:
            continue
        expected = own[key].detach()
        given = value.to(expected.device)
        is_dense = given.layout == expected.layout == torch.strided  # torch.equal supports no other layout
        if given is expected or (is_dense and given.dtype == expected.dtype and torch.equal(given, expected)):
            continue
        if reason := compare(expected, given, rtol or 0.0, atol or 0.0).reason:
            return f"weight {key!r} differs from the model's: {reason}"
    return ""


def structure_problem(ir: IR, output: Any) -> str:
    """Return how the model's nesting of outputs differs from the graph's, or ""."""
    original = structure_of(output, lambda index, leaf: None)
    returned, captured = [path for path, _ in leaves(original)], [path for path, _ in leaves(ir.output_tree)]
    if len(returned) != len(captured):
        return f"the model returns {len(returned)} values, the graph {len(captured)}"
    if _knows_nesting(ir) and returned != captured:
        return f"the model returns {_listed(returned)}, the graph {_listed(captured)}"
    if _knows_nesting(ir) and _containers(original) != _containers(ir.output_tree):
        kinds = " and ".join(_containers(original)), " and ".join(_containers(ir.output_tree))
        return f"the model nests its outputs in {kinds[0]}, the graph in {kinds[1]}"
    return ""


def _knows_nesting(ir: IR) -> bool:
    """Whether the graph records the nesting: files of the documented format only list the tensors."""
    is_captured = bool(ir.pytorch_version) and all(node.has_named_args for node in ir.nodes)
    is_nested = isinstance(ir.output_tree, Branch) and ir.output_tree != flat(len(ir.graph_outputs))
    return is_captured or is_nested


def _containers(tree: Tree) -> list[str]:
    """Return the containers of the outputs, from the outside in."""
    if not isinstance(tree, Branch):
        return []
    return [f"a {tree.kind} of {len(tree.items)}", *(kind for item in tree.items for kind in _containers(item))]


def _listed(paths: list[str]) -> str:
    return listed([f"output{path}" for path in paths], 6) or "nothing"


NOTHING = "nothing was compared: neither side returned a value or changed a tensor"


def details_of(
    ir: IR, outcome: Outcome, reference: ReferenceRun, rtol: float | None, atol: float | None
) -> tuple[Details, str]:
    """Return an item per tensor that either side returned or changed, and a problem with non-tensor outputs, or ""."""
    details, problem = output_details(ir, outcome, reference.output, rtol, atol)
    details += _changes(ir, outcome, reference, len(details), rtol, atol)
    if not details and not problem:
        problem = NOTHING
    return details, problem


def output_details(
    ir: IR, outcome: Outcome, output: Any, rtol: float | None, atol: float | None
) -> tuple[Details, str]:
    """Return an item per value that the model returned, except None, and a problem with non-tensor outputs, or ""."""
    details: Details = []
    problem = ""
    expected = pytree.tree_leaves(output)
    for wanted, (path, leaf) in zip(expected, leaves(ir.output_tree), strict=True):
        actual = outcome.outputs[leaf] if isinstance(leaf, Slot) else computed(leaf, outcome.sizes)
        difference = compare(wanted, actual, rtol, atol)
        is_tensor = isinstance(wanted, torch.Tensor) or isinstance(leaf, Slot)
        if difference.reason and not is_tensor and not problem:
            problem = f"output{path} is {difference.reason}"
        if wanted is not None or isinstance(leaf, Slot):
            details.append(detail(len(details), f"output{path}", wanted, difference))
    return details, problem


def _changes(
    ir: IR, outcome: Outcome, reference: ReferenceRun, first: int, rtol: float | None, atol: float | None
) -> Details:
    """Compare the state changes of both sides: they must be the same tensors with the same values."""
    declared: dict[str, Any] = {}
    for target, value in outcome.mutations.items():
        if is_hidden(target, reference):
            continue
        keys = target.param.keys if target.param else (f"input {ir.graph_inputs.index(target)}",)
        declared.update((key, value) for key in keys)
    rows = compare_changes(reference.changed, reference.after, declared, rtol, atol)
    return [detail(index, *row) for index, row in enumerate(rows, first)]


def compare_changes(
    changed: Iterable[str],
    after: Mapping[str, Any],
    declared: Mapping[str, Any],
    rtol: float | None,
    atol: float | None,
) -> Iterator[tuple[str, Any, Difference]]:
    """Yield each tensor that the model changed or the graph declares as changed: its name, value and difference."""
    for name in dict.fromkeys([*changed, *declared]):
        one, other = after.get(name), declared.get(name)
        if one is None or other is None:
            sides = ("the model", "the graph") if other is None else ("the graph", "the model")
            found = Difference(f"{sides[0]} changes it, {sides[1]} does not", float("inf"), float("inf"))
        else:
            found = compare(one, other, rtol, atol)
        yield f"{name} afterwards", other if one is None else one, found


def is_hidden(target: TensorMeta, reference: ReferenceRun) -> bool:
    """Whether a graph changes a tensor that is state outside all modules, so that it has no name in the model."""
    return target.param is not None and target.param.kind == "temporary" and target.key not in reference.after


def detail(index: int, name: str, expected: Any, difference: Difference) -> dict[str, Any]:
    """Return the item of a report for one compared value."""
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
