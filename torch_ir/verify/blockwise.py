"""Prove a graph that does not fit into memory: one block after the other, weights read from files as they are needed.

The original runs once, and what leaves each block is put aside in a temporary file. Then the graph runs stretch by
stretch. What a stretch gives is compared, and the next one starts from what the original has there: so each block is
judged by itself, and one mistake is not found again in all that follows.
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
from torch_ir.ir.regroup.functions import inline_all
from torch_ir.run.compiled_plan import Program, Sizes, writes_in_place
from torch_ir.run.executor import IRExecutor, Outcome, flatten_call, read_sizes
from torch_ir.run.stored import Weight, loaded
from torch_ir.run.tolerances import Difference, compare
from torch_ir.run.weights import fit_weights, open_weights
from torch_ir.verify.block_report import BlockCheck, BlockReport
from torch_ir.verify.copies import copied
from torch_ir.verify.judge import output_details, structure_problem
from torch_ir.verify.module_pairs import counterparts
from torch_ir.verify.node_segments import Stretch, stretches
from torch_ir.verify.observe import undeclared
from torch_ir.verify.operator_log import Place, Recording, record
from torch_ir.verify.reference import Tolerances
from torch_ir.verify.reference_run import Call, values_outside_state_dict
from torch_ir.verify.streamed import StreamedParameters
from torch_ir.verify.tensor_file import TensorFile


def verify_blocks(
    ir: IR,
    weights: str | os.PathLike[str] | Mapping[str, Weight],
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
    """Compare a graph with the original model block by block; the model may be on meta, its weights in files.

    Blocks are the calls of a graph in function form and the modules in lists, or the modules of the classes that
    `blocks` names. With `unique`, one of each kind of block is compared, and the runs end after the last of these.
    """
    stored = weights if isinstance(weights, Mapping) else open_weights(weights)
    call: Call = (tuple(test_inputs), dict(test_kwargs or {}))
    try:
        known = {**values_outside_state_dict(ir, original_model), **(constants or {})}
        with TensorFile() as file:
            walk = _Walk(IRExecutor(ir).ir, stored, known, original_model, call, (rtol, atol), file)
            report = walk.all_along(stretches(walk.ir, original_model, blocks), unique)
    except TorchIRError as error:
        report = BlockReport(False, error_message=str(error))
    return report.is_valid, report


class _Walk:
    """One verification: the values of the graph at the border that was reached, and the original's beside them."""

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
            raise ExecutionError("the graph writes in place, so that its weights cannot be streamed")
        self.ir, self.model, self.call, self.tolerances, self.file = ir, model, call, tolerances, file
        inputs = flatten_call(ir, *copied(call))
        self.sizes: Sizes = read_sizes(ir, inputs)
        self.values: dict[TensorMeta, Any] = dict(zip(ir.graph_inputs, inputs, strict=True))
        self.values.update(zip(ir.params, fit_weights(ir, weights, constants), strict=True))
        self.parameters = StreamedParameters(model, weights)
        self.results: dict[TensorMeta, Any] = {}  # what the graph itself gave for its outputs
        self.places: dict[str, Place] = {}
        self.recording = Recording()

    def all_along(self, found: list[Stretch], unique: bool) -> BlockReport:
        """Run both sides, and judge each stretch; with `unique`, up to the last block that is like none before it."""
        firsts: dict[Hashable, Stretch] = {}
        for stretch in found if unique else ():
            if stretch.block:
                firsts.setdefault(stretch.kind(), stretch)
        count = max(map(found.index, firsts.values())) + 1 if firsts else len(found)
        self._ask_the_model({tensor.name for stretch in found[:count] for tensor in stretch.wanted}, count < len(found))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            checks = [self._check(stretch) for stretch in found[:count]]
        report = BlockReport(True, checks)
        if count == len(found):
            self._judge_outputs(report)
        else:
            likes = [(stretch, firsts[stretch.kind()].name) for stretch in found[count:] if stretch.block]
            checks += [_check_of(stretch, like) for stretch, like in likes]
            outside = sum(len(stretch.nodes) for stretch in found[count:] if not stretch.block)
            report.notes.append(f"both runs ended after {found[count - 1].name}; {outside} nodes outside blocks follow")
        return _judged(report, self.tolerances)

    def _ask_the_model(self, borders: set[str], is_cut: bool) -> None:
        """Run the original for what it has where blocks end."""
        flat = self.ir.clone()
        inline_all(flat)
        for outline in self._outlines():
            pairs = counterparts(flat, self.model, outline.calls)
            self.places = {tensor.name: place for tensor, place in pairs.items() if tensor.name in borders}
            wanted = {index for index, _ in self.places.values()}
            self.recording = self._record(wanted, max(wanted, default=None) if is_cut else None)
            if self.recording.calls == outline.calls[: len(self.recording.calls)]:
                return
        raise ExecutionError("the model does not call the same operators when it is run again")

    def _outlines(self) -> Iterator[Recording]:
        """The operators that the original calls: told by shapes alone, and by a run if these do not suffice."""
        mode, call = self.parameters.without_values(self.call)
        with suppress(TorchIRError):
            yield record(self.model, call, self.parameters.stand_ins, (), {}, self.file, within=mode)
        yield self._record((), None)

    def _record(self, wanted: Container[int], last: int | None) -> Recording:
        stand_ins = self.parameters.stand_ins
        return record(self.model, self.call, stand_ins, wanted, {}, self.file, within=self.parameters, last=last)

    def _check(self, stretch: Stretch) -> BlockCheck:
        """Run a stretch of the graph, compare what leaves it, and go on with what the original has there."""
        program = Program(self.ir, stretch.nodes, stretch.reads, stretch.wanted, lazy=True)
        results = program(*map(self.values.__getitem__, stretch.reads), self.sizes)
        for tensor in stretch.done:
            del self.values[tensor]
        check = _check_of(stretch)
        for tensor, value in zip(stretch.wanted, results, strict=True):
            self.values[tensor] = self.results[tensor] = value
            difference = self._difference(tensor, value)
            if difference is not None:
                check.compared += 1
                check.max_diff = max(check.max_diff, difference.max_diff)
                check.reason = check.reason or (f"{tensor.name!r}: {difference.reason}" if difference.reason else "")
        self.results = {tensor: self.results[tensor] for tensor in self.ir.returns.inputs if tensor in self.results}
        return check

    def _difference(self, tensor: TensorMeta, value: Any) -> Difference | None:
        """How far a value is from the original's, which then takes its place; None if the original has none there."""
        problem = undeclared(tensor, value, self.sizes)
        if problem:
            return Difference(problem, float("inf"), float("inf"))
        place = self.places.get(tensor.name)
        if place not in self.recording.values:
            return None
        expected = self.file.get(self.recording.values[place])
        difference = compare(expected, value, *self.tolerances)
        if difference.max_diff:  # an equal value stays, since it also lies in memory as the original's
            self.values[tensor] = expected
        return difference

    def _judge_outputs(self, report: BlockReport) -> None:
        """Compare what the graph itself returns with what the model returns."""
        own = {tensor: loaded(self.values[tensor]) for tensor in self.ir.graph_outputs if tensor.producer is None}
        outcome = Outcome(tuple({**own, **self.results}[tensor] for tensor in self.ir.graph_outputs), {}, self.sizes)
        problem = structure_problem(self.ir, self.recording.output)
        if not problem:
            report.output_details, problem = output_details(self.ir, outcome, self.recording.output, *self.tolerances)
        report.error_message = problem or None
        report.notes += [
            f"what becomes of {target.key or target.name} is not compared"
            for target, value in self.ir.mutations
            if self.places.get(value.name) not in self.recording.values
        ]


def _check_of(stretch: Stretch, like: str = "") -> BlockCheck:
    facts = stretch.name, len(stretch.nodes), bool(stretch.block), stretch.function
    return BlockCheck(*facts, outputs=len(stretch.wanted), like=like)


def _judged(report: BlockReport, tolerances: Tolerances) -> BlockReport:
    """The report with its verdict: nothing differs, and no block that stands for others went without comparison."""
    wrong = [f"{check.name}: {check.reason}" for check in report.checks if check.reason]
    wrong += [f"{item['name']}: {item['reason']}" for item in report.output_details if not item["is_close"]]
    examples = {check.like for check in report.checks if check.like}
    idle = [check for check in report.checks if check.name in examples and not check.like and not check.compared]
    wrong += [f"{check.name} could not be compared, though others count on it" for check in idle if check.outputs]
    if not wrong and not report.output_details and not any(check.compared for check in report.checks):
        wrong = ["nothing was compared"]
    report.error_message = report.error_message or next(iter(wrong), None)
    report.is_valid = report.error_message is None
    if report.is_valid and report.max_diff and tolerances == (None, None):
        report.notes.append("differences are within the tolerances; that they are rounding was not proved in float64")
    return report
