"""Verify a graph that does not fit into memory: block by block, reading weights from files as needed.

The original runs once, and the results of each block are stored in a temporary file. Then the graph runs segment by
segment. The results of a segment are compared, and the next one starts from the original's values: so each block is
judged independently, and an error does not propagate to later blocks.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from torch_ir.errors import ExecutionError, TorchIRError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.regroup.functions import inline_all
from torch_ir.run.compiled_plan import Program, Sizes, writes_in_place
from torch_ir.run.executor import IRExecutor, Outcome, flatten_call, read_sizes
from torch_ir.run.seeding import seed_generators
from torch_ir.run.stored import Weight, loaded
from torch_ir.run.tolerances import Difference, compare
from torch_ir.run.weight_files import WeightSource, fit_weights, open_weights, weights_from
from torch_ir.verify.block_report import BlockCheck, BlockReport
from torch_ir.verify.compare_runs import output_details, structure_problem
from torch_ir.verify.copies import copied
from torch_ir.verify.module_pairs import counterparts
from torch_ir.verify.node_segments import Segment, segments
from torch_ir.verify.observe import undeclared
from torch_ir.verify.operator_log import Place, Recording, record
from torch_ir.verify.reference import Tolerances
from torch_ir.verify.reference_run import Call, values_outside_state_dict
from torch_ir.verify.streamed import StreamedParameters
from torch_ir.verify.tensor_file import TensorFile


def verify_blocks(
    ir: IR,
    weights: WeightSource,
    original_model: nn.Module,
    test_inputs: Sequence[Any],
    rtol: float | None = None,
    atol: float | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    *,
    test_kwargs: Mapping[str, Any] | None = None,
    blocks: Collection[str | type] = (),
    unique: bool = False,
) -> tuple[bool, BlockReport]:
    """Compare a graph with the original model block by block; the model may be on meta with its weights in files.

    Blocks are the function calls of the graph and the modules in lists, or the modules of the classes in `blocks`.
    With `unique`, one of each kind of block is compared, and both runs end after the last of these.
    """
    require_graph(ir, "verify_blocks")
    stored = open_weights(weights) if isinstance(weights, (str, os.PathLike)) else weights_from(weights)
    call: Call = (tuple(test_inputs), dict(test_kwargs or {}))
    try:
        known = {**values_outside_state_dict(ir, original_model), **(constants or {})}
        with TensorFile() as file:
            walk = _Walk(IRExecutor(ir).ir, stored, known, original_model, call, (rtol, atol), file)
            report = walk.all_along(segments(walk.ir, original_model, blocks), unique)
    except TorchIRError as error:
        report = BlockReport(False, error_message=str(error))
    return report.is_valid, report


class _Walk:
    """One verification: the current values of the graph and the recorded values of the original."""

    def __init__(
        self,
        ir: IR,
        weights: Mapping[str, Weight],
        constants: Mapping[str, torch.Tensor],
        model: nn.Module,
        call: Call,
        tolerances: Tolerances,
        file: TensorFile,
    ) -> None:
        if writes_in_place(ir):
            raise ExecutionError("the graph writes in place, so its weights cannot be streamed")
        self.ir, self.model, self.call, self.tolerances, self.file = ir, model, call, tolerances, file
        inputs = flatten_call(ir, *copied(call))
        self.sizes: Sizes = read_sizes(ir, inputs)
        self.values: dict[TensorMeta, Any] = dict(zip(ir.graph_inputs, inputs, strict=True))
        self.values.update(zip(ir.params, fit_weights(ir, weights, constants), strict=True))
        self.parameters = StreamedParameters(model, weights)
        self.results: dict[TensorMeta, Any] = {}  # the graph's own values of its outputs
        self.places: dict[str, Place] = {}
        self.recording = Recording()

    def all_along(self, found: list[Segment], unique: bool) -> BlockReport:
        """Run both sides and check each segment; with `unique`, up to the last block of a new kind."""
        firsts: dict[Hashable, Segment] = {}
        for segment in found if unique else ():
            if segment.block:
                firsts.setdefault(segment.kind(), segment)
        count = max(map(found.index, firsts.values())) + 1 if firsts else len(found)
        self._record_original(
            {tensor.name for segment in found[:count] for tensor in segment.wanted}, count < len(found)
        )
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            seed_generators(0)
            checks = [self._check(segment) for segment in found[:count]]
        report = BlockReport(True, checks)
        if count == len(found):
            self._judge_outputs(report)
        else:
            likes = [(segment, firsts[segment.kind()].name) for segment in found[count:] if segment.block]
            checks += [_check_of(segment, like) for segment, like in likes]
            outside = sum(len(segment.nodes) for segment in found[count:] if not segment.block)
            report.notes.append(f"both runs ended after {found[count - 1].name}; {outside} nodes outside blocks follow")
        return _judged(report, self.tolerances)

    def _record_original(self, borders: set[str], is_cut: bool) -> None:
        """Run the original and store its values at the block boundaries."""
        flat = self.ir.clone()
        inline_all(flat)
        for outline in self._outlines():
            pairs = counterparts(flat, self.model, outline.calls)
            self.places = {tensor.name: place for tensor, place in pairs.items() if tensor.name in borders}
            wanted = {index for index, _ in self.places.values()}
            self.recording = self._record(wanted, max(wanted, default=None) if is_cut else None)
            if self.recording.calls == outline.calls[: len(self.recording.calls)]:
                return
        raise ExecutionError("the model calls different operators when it runs again")

    def _outlines(self) -> Iterator[Recording]:
        """Yield the operators that the original calls: by shape inference, then by a run if that does not suffice."""
        mode, call = self.parameters.without_values(self.call)
        with suppress(TorchIRError):
            yield record(self.model, call, self.parameters.stand_ins, (), {}, self.file, within=mode)
        yield self._record((), None)

    def _record(self, wanted: Container[int], last: int | None) -> Recording:
        stand_ins = self.parameters.stand_ins
        return record(self.model, self.call, stand_ins, wanted, {}, self.file, within=self.parameters, last=last)

    def _check(self, segment: Segment) -> BlockCheck:
        """Run a segment of the graph, compare its results, and continue with the original's values."""
        program = Program(self.ir, segment.nodes, segment.reads, segment.wanted, lazy=True)
        results = program(*map(self.values.__getitem__, segment.reads), self.sizes)
        for tensor in segment.done:
            del self.values[tensor]
        check = _check_of(segment)
        for tensor, value in zip(segment.wanted, results, strict=True):
            self.values[tensor] = self.results[tensor] = value
            difference = self._difference(tensor, value)
            if difference is not None:
                check.compared += 1
                check.max_diff = max(check.max_diff, difference.max_diff)
                check.reason = check.reason or (f"{tensor.name!r}: {difference.reason}" if difference.reason else "")
        self.results = {tensor: self.results[tensor] for tensor in self.ir.returns.inputs if tensor in self.results}
        return check

    def _difference(self, tensor: TensorMeta, value: Any) -> Difference | None:
        """Compare a value with the original's and continue with the latter; None if the original has none there."""
        problem = undeclared(tensor, value, self.sizes)
        if problem:
            return Difference(problem, float("inf"), float("inf"))
        place = self.places.get(tensor.name)
        if place not in self.recording.values:
            return None
        expected = self.file.get(self.recording.values[place])
        difference = compare(expected, value, *self.tolerances)
        if difference.max_diff:  # keep an equal value, which also has the original's strides
            self.values[tensor] = expected
        return difference

    def _judge_outputs(self, report: BlockReport) -> None:
        """Compare the outputs of the graph with those of the model."""
        own = {tensor: loaded(self.values[tensor]) for tensor in self.ir.graph_outputs if tensor.producer is None}
        outcome = Outcome(tuple({**own, **self.results}[tensor] for tensor in self.ir.graph_outputs), {}, self.sizes)
        problem = structure_problem(self.ir, self.recording.output)
        if not problem:
            report.output_details, problem = output_details(self.ir, outcome, self.recording.output, *self.tolerances)
        report.error_message = problem or None
        report.notes += [
            f"the new value of {target.key or target.name} is not compared"
            for target, value in self.ir.mutations
            if self.places.get(value.name) not in self.recording.values
        ]


def _check_of(segment: Segment, like: str = "") -> BlockCheck:
    facts = segment.name, len(segment.nodes), bool(segment.block), segment.function
    return BlockCheck(*facts, outputs=len(segment.wanted), like=like)


def _judged(report: BlockReport, tolerances: Tolerances) -> BlockReport:
    """Set the verdict: nothing differs, and every block that represents others was compared."""
    wrong = [f"{check.name}: {check.reason}" for check in report.checks if check.reason]
    wrong += [f"{item['name']}: {item['reason']}" for item in report.output_details if not item["is_close"]]
    examples = {check.like for check in report.checks if check.like}
    idle = [check for check in report.checks if check.name in examples and not check.like and not check.compared]
    wrong += [f"{check.name} could not be compared, but represents other blocks" for check in idle if check.outputs]
    if not wrong and not report.output_details and not any(check.compared for check in report.checks):
        wrong = ["nothing was compared"]
    report.error_message = report.error_message or next(iter(wrong), None)
    report.is_valid = report.error_message is None
    if report.is_valid and report.max_diff and tolerances == (None, None):
        report.notes.append("differences are within the tolerances; they were not checked in float64 to be rounding")
    return report
