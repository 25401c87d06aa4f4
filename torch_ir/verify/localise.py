"""Find the first node that differs from the original model: module by module, then node by node.

The values of the unmodified original are the reference, never those of the graph. The results of modules are compared
first, then every value inside the first module that differs. References are stored in a temporary file, and graph and
model share their weights, so the model is in memory once.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torch_ir.errors import ExecutionError, TorchIRError, WeightWarning
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.regroup.functions import inline_all
from torch_ir.ops.schema import HIGHER_ORDER
from torch_ir.run.executor import IRExecutor, flatten_call
from torch_ir.run.seeding import seed_generators
from torch_ir.run.stored import loaded
from torch_ir.run.tolerances import Difference, compare
from torch_ir.run.weight_files import fit_weights
from torch_ir.verify.copies import copied
from torch_ir.verify.divergence import Divergence, Localisation, divergence_at
from torch_ir.verify.module_pairs import argument_counterparts, counterparts
from torch_ir.verify.operator_log import Place, Recording, record
from torch_ir.verify.reference import Reference, Tolerances
from torch_ir.verify.reference_run import Call as Inputs
from torch_ir.verify.reference_run import apart_from, values_outside_state_dict
from torch_ir.verify.tensor_file import TensorFile

Trial = tuple[Inputs, Mapping[str, torch.Tensor]]  # a call, and replacements for weights on both sides
_CHUNK = 1 << 20  # elements of a weight to compare at once


def find_divergence(
    ir: IR,
    state_dict: Mapping[str, torch.Tensor],
    model: nn.Module,
    trial: Trial,
    rtol: float | None,
    atol: float | None,
    constants: Mapping[str, torch.Tensor] | None,
) -> Localisation:
    """Find the first node whose value differs from the model's on the inputs of a trial."""
    notes = []
    if any(node.is_call for node in ir.nodes):
        ir = ir.clone()
        inline_all(ir)
        notes.append("functions were inlined; nodes are named as in the inlined graph")
    with TensorFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)  # the verification already warned
        ir = IRExecutor(ir).ir  # with named arguments
        known = {**values_outside_state_dict(ir, model), **(constants or {})}
        search = _Search(ir, apart_from(model, state_dict), known, model, trial, (rtol, atol), file)
        try:
            return Localisation(search.wrong_weight() or search.wrong_value(), notes + search.notes)
        except TorchIRError as error:
            return Localisation(None, [*notes, *search.notes, f"not localised: {error}"])


class _Search:
    """The state of one localisation: the recording, the pairing with nodes, and the differences."""

    def __init__(
        self,
        ir: IR,
        weights: Mapping[str, torch.Tensor],
        constants: Mapping[str, torch.Tensor],
        model: nn.Module,
        trial: Trial,
        tolerances: Tolerances,
        file: TensorFile,
    ) -> None:
        self.ir, self.weights, self.constants, self.model = ir, weights, constants, model
        self.inputs, self.stand_ins = trial
        self.tolerances, self.file = tolerances, file
        self.outline = Recording()
        self.pairs: dict[TensorMeta, Place] = {}
        self.read: dict[TensorMeta, list[Place]] = {}
        self.recorded: dict[Place, Any] = {}
        self.found: dict[TensorMeta, Difference] = {}
        self.undeclared: set[TensorMeta] = set()
        self.refused: OpNode | None = None  # the node at which the run of the graph failed
        self.refusal = ""
        self.notes: list[str] = []

    def wrong_weight(self) -> Divergence | None:
        """Return the first node that reads a weight or constant that differs from the model's."""
        own = {**dict(self.model.named_buffers(remove_duplicate=False)), **self.model.state_dict()}
        wrong: dict[TensorMeta, Difference] = {}
        for param, value in zip(self.ir.params, fit_weights(self.ir, self.weights, self.constants), strict=True):
            key = next((key for key in param.param.keys if key in own), None) if param.param else None
            if key is not None and param.consumers:
                difference = _compare_weights(own[key], loaded(value), *self.tolerances)
                if difference.reason:
                    wrong[param] = difference
        for node in self.ir.nodes:
            for tensor in node.inputs:
                if tensor in wrong:
                    if len(wrong) > 1:
                        self.notes.append(f"{len(wrong)} weights differ from the model's")
                    reason = (
                        f"it reads the weight {tensor.key!r}, which differs from the model's: {wrong[tensor].reason}"
                    )
                    found = divergence_at(node, reason, wrong[tensor].max_diff)
                    return replace(found, weight=tensor.key or tensor.name)
        return None

    def wrong_value(self) -> Divergence | None:
        """Return the first node with a wrong value: compare results of modules, then inside one, then everything."""
        self.outline = self._record(())
        self.pairs = counterparts(self.ir, self.model, self.outline.calls)
        self.read = argument_counterparts(self.ir, self.pairs, self.outline.calls)
        self._compare({index for module in self.outline.modules for index, _ in module.results})
        self._compare(self._up_to_first_wrong_module())
        found = self._first_of(self._behind(self.ir.returns.inputs))
        if found is None or found.suspects:
            self._compare(set(range(len(self.outline.calls))))
            behind = self._behind(self.ir.returns.inputs)
            found = self._first_of(behind) or self._first_of(set(self.ir.all_nodes())) or self._last_resort()
        self._add_notes(found)
        return found

    def _record(self, wanted: Container[int]) -> Recording:
        arguments: dict[int, set[str]] = {}
        for index, name in itertools.chain.from_iterable(self.read.values()):
            arguments.setdefault(index, set()).add(str(name))
        return record(self.model, self.inputs, self.stand_ins, wanted, arguments, self.file)

    def _compare(self, wanted: Set[int]) -> None:
        """Record the results of some calls of the original, run the graph, and compare."""
        recording = self._record(wanted)
        if [call.op_type for call in recording.calls] != [call.op_type for call in self.outline.calls]:
            raise ExecutionError("the model calls different operators when it runs again")
        watch = Reference(self.pairs, self.read, recording, self.file, self.tolerances)
        self.refused, self.refusal = None, ""
        try:
            executor = IRExecutor(self.ir, constants=self.constants, watch=watch)
            with torch.random.fork_rng(devices=[]):
                stand_ins = {key: value for key, value in self.stand_ins.items() if key in self.weights}
                executor.load_weights_from_state_dict({**self.weights, **stand_ins})
                seed_generators(0)
                executor.run(flatten_call(executor.ir, *copied(self.inputs)))
        except ExecutionError as error:
            self.refused = error.node
            if self.refused is None:
                raise
            self.refusal = str(error).removeprefix(repr(self.refused)).partition(": ")[2]
        self.recorded.update(recording.values)
        self.found.update(watch.found)
        self.undeclared |= watch.undeclared

    def _up_to_first_wrong_module(self) -> set[int]:
        """Return the calls up to the return of the first wrong module, without the insides of correct modules."""
        made = {place: tensor for tensor, place in self.pairs.items()}
        region = set(range(len(self.outline.calls)))
        for module in self.outline.modules:
            results = [self.found.get(made[place]) if place in made else None for place in module.results]
            if any(result is not None and result.reason for result in results):
                return {index for index in region if index < module.last}
            if results and None not in results:
                region.difference_update(range(module.first, module.last))
        return set(range(len(self.outline.calls)))

    def _behind(self, tensors: Iterable[TensorMeta]) -> set[OpNode]:
        """Return the nodes that compute some values, back to values that agree with the original."""
        nodes: set[OpNode] = set()
        pending = list(tensors)
        while pending:
            tensor = pending.pop()
            if not self._agrees(tensor) and tensor.producer is not None and tensor.producer not in nodes:
                nodes.add(tensor.producer)
                pending += tensor.producer.inputs
        return nodes

    def _agrees(self, tensor: TensorMeta) -> bool:
        """Whether a value agrees with the original's; inputs are the same, and weights were compared before."""
        return tensor.producer is None or (tensor in self.found and not self.found[tensor].reason)

    def _first_of(self, nodes: Set[OpNode]) -> Divergence | None:
        """Return the first of some nodes with a wrong value, or the node that fails."""
        for node in self.ir.all_nodes():
            wrong = next((out for out in node.outputs if out in self.found and self.found[out].reason), None)
            if node is self.refused:
                found = divergence_at(node, f"it cannot be computed: {self.refusal}")
            elif wrong is not None and node in nodes:
                found = divergence_at(node, self.found[wrong].reason, self.found[wrong].max_diff, wrong.name)
            else:
                continue
            # its inputs are as declared, so a node with an undeclared result is itself wrong
            unknown = self._behind(node.inputs) if wrong not in self.undeclared else set()
            return replace(
                found,
                original=self.outline.calls[self.pairs[wrong][0]].op_type if wrong in self.pairs else "",
                agreed=tuple(dict.fromkeys(tensor.name for tensor in node.inputs if self._agrees(tensor))),
                suspects=tuple(before.name for before in self.ir.nodes if before in unknown),
            )
        return None

    def _last_resort(self) -> Divergence:
        """Return the first node without a counterpart, or the return, if all compared values agree."""
        behind = self._behind(self.ir.returns.inputs)
        names = tuple(node.name for node in self.ir.nodes if node in behind)
        if not names:
            return self._first_inexact() or divergence_at(
                self.ir.returns,
                "every value agrees with the original; the outputs or state changes of the graph are wrong",
            )
        first = next(node for node in self.ir.nodes if node in behind)
        reason = "the original has no counterpart, and every value that could be compared agrees"
        return replace(divergence_at(first, reason), suspects=names[1:])

    def _first_inexact(self) -> Divergence | None:
        """Return the first value that differs at all: small differences may add up."""
        inexact = [tensor for node in self.ir.nodes for tensor in node.outputs if self._is_inexact(tensor)]
        if not inexact or inexact[0].producer is None:
            return None
        reason = "it is within the tolerance but not equal, and differences add up from here"
        return divergence_at(inexact[0].producer, reason, self.found[inexact[0]].max_diff, inexact[0].name)

    def _is_inexact(self, tensor: TensorMeta) -> bool:
        return tensor in self.found and self.found[tensor].max_diff > 0

    def _inexact_before(self, tensors: Iterable[TensorMeta]) -> set[TensorMeta]:
        """Return the preceding values that differ at all, back to where they are equal."""
        found: set[TensorMeta] = set()
        pending = list(tensors)
        while pending:
            tensor = pending.pop()
            if self._is_inexact(tensor) and tensor not in found and tensor.producer is not None:
                found.add(tensor)
                pending += tensor.producer.inputs
        return found

    def _add_notes(self, found: Divergence) -> None:
        made = [tensor for node in self.ir.nodes for tensor in node.outputs]
        self.notes.append(f"{sum(t in self.found for t in made)} of {len(made)} values were compared with the model's")
        if found.op_type.startswith(HIGHER_ORDER):
            self.notes.append(f"{found.node!r} is control flow; the nodes of its functions are not compared one by one")
        tensor = next((out for out in made if out.name == found.output), None)
        before = self._inexact_before(tensor.producer.inputs) if tensor is not None and tensor.producer else set()
        if before:
            first = next(out for out in made if out in before)
            self.notes.append(f"{first.name!r} before it is within the tolerance but not equal")
        if tensor is not None and self.pairs.get(tensor) in self.recorded and self._varies(self.pairs[tensor]):
            self.notes.append(f"the model itself returns another value at {found.node!r} when it runs again")

    def _varies(self, place: Place) -> bool:
        """Whether another run of the original differs there."""
        again = self._record({place[0]}).values.get(place)
        return bool(compare(self.file.get(self.recorded[place]), self.file.get(again), *self.tolerances).reason)


def _compare_weights(
    expected: torch.Tensor, actual: torch.Tensor, rtol: float | None, atol: float | None
) -> Difference:
    """Compare in chunks, since copies of a large weight may not fit; by default every bit counts."""
    rtol, atol = rtol or 0.0, atol or 0.0
    if expected.shape != actual.shape or expected.dtype != actual.dtype or expected.layout != torch.strided:
        return compare(expected, actual, rtol, atol)
    if torch.equal(expected, actual):
        return Difference()
    ours, theirs = expected.detach().reshape(-1), actual.detach().reshape(-1)
    pieces = [slice(start, start + _CHUNK) for start in range(0, ours.numel(), _CHUNK)]
    differences = [compare(ours[piece], theirs[piece], rtol, atol) for piece in pieces]
    return max(differences, key=lambda difference: (difference.reason != "", difference.max_diff), default=Difference())
