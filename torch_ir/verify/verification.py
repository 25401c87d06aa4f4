"""Verify a graph: run it and the original model on the same inputs, and compare all outputs and state changes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from torch_ir.errors import ExecutionError, GuardError, TorchIRError, first_line
from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ops.neutral_state import neutral, neutral_steps
from torch_ir.ops.prepare_run import check_operators
from torch_ir.ops.torch_internals import pytree
from torch_ir.run.executor import IRExecutor, Outcome, flatten_call, read_sizes
from torch_ir.run.seeding import seed_generators
from torch_ir.run.stored import loaded
from torch_ir.run.tolerances import compare
from torch_ir.run.weight_files import WeightSource, load_weights, weights_from
from torch_ir.verify.block_report import detail_lines
from torch_ir.verify.compare_runs import NOTHING, details_of, is_hidden, structure_problem, weight_problem
from torch_ir.verify.copies import copied
from torch_ir.verify.divergence import Divergence
from torch_ir.verify.further_inputs import BOTH_SIGNS, other_values, probes
from torch_ir.verify.localise import Trial, find_divergence
from torch_ir.verify.observe import Observer, notes, provisos
from torch_ir.verify.precision import difference_in_float64
from torch_ir.verify.reference_run import Call, Original, ReferenceRun, apart_from, values_outside_state_dict

Weights = Mapping[str, torch.Tensor]


@dataclass
class VerificationReport:
    """The result of a verification; `output_details` has an item per tensor, returned or changed."""

    is_valid: bool
    max_diff: float = 0.0
    mean_diff: float = 0.0
    num_outputs: int = 0
    output_details: list[dict[str, Any]] = field(default_factory=list)
    error_message: str | None = None
    notes: list[str] = field(default_factory=list)
    trials: int = 1  # sets of inputs: the given one, and those derived from it; 0 if the graph cannot run on them
    divergence: Divergence | None = None
    provisos: list[str] = field(default_factory=list)  # conditions under which the verdict holds
    not_compared: int = 0  # sets of inputs on which the graph cannot run: its guards exclude them, as a rule

    @property
    def verdict(self) -> str:
        """PASSED or FAILED; also on how many sets of inputs, or that nothing was compared, if some could not be."""
        if not self.trials:
            return "FAILED, NOTHING COMPARED"
        if self.is_valid and self.not_compared:
            return f"PASSED ON {self.trials} OF {self.trials + self.not_compared} SETS OF INPUTS"
        return "PASSED" if self.is_valid else "FAILED"

    def __str__(self) -> str:
        lines = [", ".join([f"Verification {self.verdict}", *self.provisos])]
        if self.error_message:
            lines.append(f"  {self.error_message}")
        if self.divergence:
            lines += [f"  {line}" for line in str(self.divergence).splitlines()]
        trials = f" on {self.trials} sets of inputs" if self.trials > 1 else ""
        numbers = f", max diff {self.max_diff:.3g}, mean {self.mean_diff:.3g}" if self.num_outputs else ""
        lines.append(f"  outputs compared: {self.num_outputs}{trials}{numbers}")
        return "\n".join([*lines, *detail_lines(self.output_details), *(f"  note: {note}" for note in self.notes)])


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
    probe: bool = True,
    localise: bool = False,
) -> tuple[bool, VerificationReport]:
    """Like `verify_ir_with_state_dict`, with weights from a file or folder that `load_weights` reads."""
    require_graph(ir, "verify_ir")
    state_dict = load_weights(weights_path)
    options: dict[str, Any] = {"test_kwargs": test_kwargs, "probe": probe, "localise": localise}
    return verify_ir_with_state_dict(ir, state_dict, original_model, test_inputs, rtol, atol, constants, **options)


def verify_ir_with_state_dict(
    ir: IR,
    state_dict: WeightSource,
    original_model: nn.Module,
    test_inputs: Sequence[Any],
    rtol: float | None = None,
    atol: float | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    *,
    test_kwargs: Mapping[str, Any] | None = None,
    probe: bool = True,
    localise: bool = False,
) -> tuple[bool, VerificationReport]:
    """Compare a graph that runs with these weights against the original model.

    The default tolerances depend on the dtype; integers and weights must be equal. Values that are neither in a state
    dict nor in the graph are taken from the model. With `probe`, both also run on inputs derived from the given ones.
    With `localise`, the report of a failure names the first node that differs.
    """
    require_graph(ir, "verify_ir_with_state_dict")
    call: Call = (tuple(test_inputs), dict(test_kwargs or {}))
    trials_run: list[Trial] = [(call, {})]
    weights: dict[str, torch.Tensor] = {}
    try:
        weights = {key: loaded(weight) for key, weight in weights_from(state_dict).items()}
        sides = _Sides(ir, weights, original_model, constants or {}, rtol, atol, trials_run)
        with torch.random.fork_rng(devices=[]):
            report = sides.on_given(call)
            if report.is_valid and probe:
                report = sides.on_drawn(report, call)
            if report.is_valid:
                report = sides.on_second_call(report, call, probe)
    except TorchIRError as error:
        has_operators = not isinstance(error, ExecutionError) or _has_operators(ir)
        report = _refused(error) if has_operators else _not_run(error)
    else:
        report.notes += sides.notes(call, probe)
        report.provisos = provisos(ir)
    if localise and not report.is_valid:
        found = find_divergence(ir, weights, original_model, trials_run[-1], rtol, atol, constants)
        report.divergence = found.divergence
        report.notes += found.notes
    return report.is_valid, report


class _Sides:
    """A graph and its model, run on one set of inputs after the other."""

    def __init__(
        self,
        ir: IR,
        state_dict: Mapping[str, torch.Tensor],
        model: nn.Module,
        constants: Mapping[str, torch.Tensor],
        rtol: float | None,
        atol: float | None,
        trials_run: list[Trial],
    ) -> None:
        self.ir, self.model, self.rtol, self.atol = ir, model, rtol, atol
        self.trials_run = trials_run  # the calls of the model so far, and the weights that were replaced
        self.observer = Observer()
        self._last: tuple[Weights | None, Original] | None = None
        self.weights = apart_from(model, state_dict)
        known = {**values_outside_state_dict(ir, model), **constants}
        self.executor = IRExecutor(ir, self.weights, known, watch=self.observer)
        self.problem = weight_problem(self.executor, model, rtol, atol)

    def on_given(self, call: Call) -> VerificationReport:
        """Compare on the given inputs."""
        try:
            read_sizes(self.executor.ir, flatten_call(self.executor.ir, *call))  # a copy may not be as the original
            outcome = self._run(call)
        except GuardError as error:
            return _not_run(error)
        try:
            reference = self._run_model(call, None)
        except Exception as error:  # any error of forward
            name = type(self.model).__name__
            return _not_run(ExecutionError(f"{name} itself raises {type(error).__name__}: {first_line(error)}"))
        report = self._sharpened(self._judge(outcome, reference), call)
        report.notes = [
            f"{name} is a table that the model resized to fit; it is not compared" for name in sorted(reference.regrown)
        ]
        report.notes += [
            f"{target.key} is state outside all modules; its new value is not compared"
            for target, _ in self.ir.mutations
            if is_hidden(target, reference)
        ]
        if report.max_diff and not self._repeats(outcome, call):
            report.notes.append("two runs of the graph on the same inputs differ: it is not deterministic here")
        return report

    def on_drawn(self, report: VerificationReport, call: Call) -> VerificationReport:
        """Return the report if further inputs show no difference, else that of the first that do."""
        excluded: dict[str, list[int]] = {}  # line of a guard -> its notes
        for probe in neutral_steps(probes(self.executor.ir, self.model, call)):
            try:
                reference = self._run_model(probe.call, probe.weights)
            except Exception as error:  # derived inputs may be outside the model's domain
                if not probe.may_be_refused:
                    report.notes.append(f"the model rejects {probe.about}: {first_line(error)}")
                continue
            try:
                further = self._judge(self._run(probe.call, probe.weights), reference)
                further = self._sharpened(further, probe.call, probe.weights)
            except GuardError as error:  # the graph's own guards exclude these inputs
                self.observer.first = ""
                report.not_compared += 1
                _note_guard(report.notes, excluded.setdefault(error.place, []), probe.about, error)
                continue
            except TorchIRError as error:
                further = _refused(error)
            if not further.is_valid and further.output_details and self._in_float64(probe.call, probe.weights) == "":
                report.notes.append(f"{probe.about}: only rounding differs, by up to {further.max_diff:.3g}")
                continue
            if probe.about == BOTH_SIGNS and not _has_finite(reference):
                report.notes.append(
                    "inputs of both signs are outside the model's domain: all of its outputs are NaN or infinite"
                )
            further.trials, further.notes = report.trials + 1, report.notes
            further.not_compared = report.not_compared
            if not further.is_valid:
                further.error_message = f"on {probe.about}: {further.error_message}"
                return further
            report.trials, report.max_diff = further.trials, max(report.max_diff, further.max_diff)
        return report

    def on_second_call(self, report: VerificationReport, call: Call, probe: bool) -> VerificationReport:
        """Return the report, or a failed one if a second call shows a difference, such as state that is not kept.

        With `probe`, it has other values if both sides accept them: the model may return its first result again.
        """
        for second in (neutral(other_values)(call), call) if probe else (call,):
            with self._original(None).calls() as run_model:
                left = run_model(call)  # and the state in which the second call begins
                try:
                    reference = run_model(second)
                except Exception as error:  # any error of a model that cannot be called twice, or not on these values
                    refusal = error
                    continue
            first = self._run(call)
            seed_generators(0)
            try:
                outcome = self.executor.run(flatten_call(self.executor.ir, *copied(second)))
            except GuardError:
                if second is call:
                    raise
                self.observer.first = ""
                continue
            # parameters that only the first call of the graph changed are still changed
            kept = {target: value for target, value in first.mutations.items() if target.param is not None}
            found = self._judge(replace(outcome, mutations={**kept, **outcome.mutations}), reference)
            if found.is_valid:
                return report
            self.trials_run.append((second, {key: left.after[key] for key in left.changed if key in self.weights}))
            found.error_message = f"on a second call: {found.error_message}"
            found.trials, found.not_compared, found.notes = report.trials, report.not_compared, report.notes
            return found
        report.notes.append(f"the model fails on a second call: {first_line(refusal)}")
        return report

    def notes(self, call: Call, probe: bool) -> list[str]:
        return list(notes(self.executor.ir, flatten_call(self.executor.ir, *call), self.observer, probe))

    def _run(self, call: Call, weights: Weights | None = None) -> Outcome:
        self.executor.load_weights_from_state_dict(self._with(weights))
        seed_generators(0)
        return self.executor.run(flatten_call(self.executor.ir, *copied(call)))

    def _run_model(self, call: Call, weights: Weights | None) -> ReferenceRun:
        self.trials_run.append((call, weights or {}))
        return self._original(weights).called(call)

    def _original(self, weights: Weights | None) -> Original:
        """Return the model with these weights; all probes share one set of them."""
        if self._last is None or self._last[0] is not weights:
            self._last = weights, Original(self.model, self.executor.ir, weights)
        return self._last[1]

    def _with(self, weights: Weights | None) -> dict[str, torch.Tensor]:
        """Return the weights, with some replaced."""
        return {key: (weights or {}).get(key, value) for key, value in self.weights.items()}

    def _sharpened(self, report: VerificationReport, call: Call, weights: Weights | None = None) -> VerificationReport:
        """Fail the report if differences within the tolerances of the dtypes are not due to rounding."""
        if report.is_valid and report.max_diff and (reason := self._in_float64(call, weights)):
            report.is_valid = False
            report.error_message = f"small differences that are not rounding; in float64, {reason}"
        return report

    def _in_float64(self, call: Call, weights: Weights | None) -> str | None:
        """Return what differs in float64; None if it cannot run there, or the caller set tolerances."""
        if self.rtol is not None or self.atol is not None:
            return None
        weights = self._with(weights)
        return difference_in_float64(self.executor.ir, self.model, call, weights, self.executor.constants)

    def _repeats(self, outcome: Outcome, call: Call) -> bool:
        """Whether a second run of the graph is bit-identical."""
        again = self._run(call).outputs
        return not any(compare(old, new, 0.0, 0.0).reason for old, new in zip(outcome.outputs, again, strict=True))

    def _judge(self, outcome: Outcome, reference: ReferenceRun) -> VerificationReport:
        problem = self.observer.first or structure_problem(self.ir, reference.output)
        details, other = (
            details_of(self.executor.ir, outcome, reference, self.rtol, self.atol) if not problem else ([], "")
        )
        wrong = next((f"{item['name']}: {item['reason']}" for item in details if not item["is_close"]), "")
        problem = self.problem or problem or other or wrong
        return VerificationReport(
            is_valid=not problem,
            max_diff=max((item["max_diff"] for item in details), default=0.0),
            mean_diff=sum(item["mean_diff"] for item in details) / max(1, len(details)),
            num_outputs=len(details),
            output_details=details,
            error_message=problem or None,
            trials=0 if problem == NOTHING else 1,
        )


def _has_finite(reference: ReferenceRun) -> bool:
    """Return whether any float output is finite; True if there are no float outputs."""
    floats = [leaf for leaf in pytree.tree_leaves(reference.output) if isinstance(leaf, torch.Tensor)]
    floats = [leaf for leaf in floats if leaf.is_floating_point() and leaf.numel()]
    return not floats or any(bool(leaf.isfinite().any()) for leaf in floats)


def _note_guard(notes: list[str], places: list[int], about: str, error: GuardError) -> None:
    """Note that a guard excludes inputs: first with its message, then as a list; `places` number its notes."""
    if len(places) == 2:
        notes[places[1]] += f", {about}"
        return
    notes.append(f"nor, for the same line, on {about}" if places else f"not compared on {about}: {error}")
    places.append(len(notes) - 1)


def _refused(error: TorchIRError) -> VerificationReport:
    return VerificationReport(False, float("inf"), float("inf"), error_message=str(error))


def _not_run(error: TorchIRError) -> VerificationReport:
    """Return the report of a graph that cannot run here or on the given inputs, so that nothing was compared."""
    return replace(_refused(error), trials=0, not_compared=1)


def _has_operators(ir: IR) -> bool:
    """Whether all operators of a graph can run here."""
    try:
        check_operators(ir)
    except ExecutionError:
        return False
    return True
