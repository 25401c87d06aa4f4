"""The optimisation pipeline: run passes in order, check the graph after each, report the savings.

better, report = optimize(ir)                        # level "basic"
better, report = optimize(ir, passes=["dead-code", my_pass], verify=True)
print(report)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

from torch_ir.analysis.cost_model.cost_summary import measured_in_all
from torch_ir.analysis.shapes.inference import wrong_shapes
from torch_ir.analysis.shapes.open_sizes import inside
from torch_ir.analysis.values.rewrite_context import Knowledge, remembering
from torch_ir.errors import INVALID_ARGUMENTS, CommandError, GraphError, did_you_mean
from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.given_graph import ExampleInputs, Model, graph_of
from torch_ir.ir.plans.memory_plan import MemoryPlan
from torch_ir.ir.regroup.functions import FUSED, called_by, calls_by_function, inline_all, retell_origins
from torch_ir.ops.effects import writes_in_place
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.schema import name_arguments
from torch_ir.passes.clean.canonicalize import NAME as CANONICALIZE
from torch_ir.passes.opened_calls import forget_opened_calls
from torch_ir.passes.optimize_levels import LEVELS
from torch_ir.passes.optimize_report import Report, Row
from torch_ir.passes.pass_registry import Pass, find_pass
from torch_ir.passes.random_check import Inputs, Weights, prove
from torch_ir.passes.soundness import Watchdog
from torch_ir.passes.squeezed_sizes import keep_squeezed_sizes
from torch_ir.rewrite.change_log import journal

Step = Union[str, Pass, Callable[[IR], int]]
_MOST_ROUNDS = 5
_DEEP = 1000  # nodes


def optimize(
    ir: IR | Model,
    level: str = "basic",
    *,
    passes: Sequence[Step] | None = None,
    verify: bool = False,
    dtype: str | None = None,
    inputs: Inputs | None = None,
    weights: Weights | None = None,
    each: bool = False,
    by_block: bool | None = None,
    progress: Callable[[str], None] | None = None,
    example_inputs: ExampleInputs | None = None,
) -> tuple[IR, Report]:
    """Return an optimised graph and a report; the given graph is not changed.

    A model is captured first, with `example_inputs`: a tuple, or a dict of keyword inputs.

    `passes`, names or functions, replace the level. With `verify`, both graphs are run on `inputs` and `weights`,
    random by default, all in `dtype` if given. With `each`, the report has the cost after every pass.

    With `by_block`, repeated blocks are optimised once, and rewrites across block boundaries are not found; the default
    is True for graphs of more than a thousand nodes.
    """
    ir = graph_of(ir, example_inputs, "optimize")
    steps = [_as_pass(step) for step in (_of_level(level) if passes is None else passes)]
    with NeutralState(new_on_cpu=True), remembering(), journal() as entries:
        is_flat = not any(node.is_call for node in ir.nodes)
        folds = is_flat and (len(ir.nodes) > _DEEP if by_block is None else by_block)
        better = prepared(ir.fold_blocks() if folds else ir.clone())
        try:
            rows = _run(better, steps, each, progress or (lambda text: None))
        except INVALID_ARGUMENTS:
            _raise_wrong_shapes(ir)
            raise
        forget_opened_calls(better, entries.opened)
        if rows:
            for graph in better.all_graphs():
                graph.extensions.pop(MemoryPlan.KEY, None)  # it was for the graph before
        if folds:
            inline_all(better, lambda call: not call.op_type.startswith(FUSED))
        better.check()
    if verify and progress is not None:
        progress("running both graphs")
    with NeutralState(new_on_cpu=True):
        proof = prove(ir, better, dtype, inputs=inputs, weights=weights, changes=entries.changes) if verify else None
    return better, Report(ir, better, rows, entries.changes, list(entries.declined), proof)


def _raise_wrong_shapes(ir: IR) -> None:
    """Raise GraphError for a node whose recorded outputs do not match its operator, which passes rely on."""
    for node, why in wrong_shapes(ir):
        raise GraphError(f"{node!r} {why}", rule="R12", node=node.name) from None


def _run(ir: IR, steps: Sequence[Pass], each: bool, progress: Callable[[str], None]) -> list[Row]:
    """Apply passes until none changes anything. Fusing passes come last, as the others cannot see nodes inside a call.

    Fusing moves nodes, and operands are in the order of nodes. Where that changes operands, all passes follow again.
    """
    rounds = _Rounds(ir, each, progress)
    others, fusing = ([step for step in steps if step.fuses is fuses] for fuses in (False, True))
    rounds.settle(others)
    rounds.settle(fusing)
    if rounds.settle([step for step in others if step.name == CANONICALIZE]):
        rounds.settle(others)
        rounds.settle(fusing)
    return rounds.rows


class _Rounds:
    """Applies passes to a graph in order, repeatedly; checks the graph after each."""

    def __init__(self, ir: IR, each: bool, progress: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self._ir = ir
        self._each = each
        self._progress = progress
        self._watchdog = Watchdog(ir)
        self._changes = 0
        self._seen: dict[str, int] = {}  # pass -> total number of changes when it last ran

    def settle(self, steps: Sequence[Pass]) -> int:
        """Apply passes until none changes anything; return the number of changes."""
        before = self._changes
        for round_ in range(_MOST_ROUNDS):
            for number, step in enumerate(steps, 1):
                if self._seen.get(step.name) != self._changes:
                    self._progress(
                        f"round {round_ + 1}, pass {number} of {len(steps)}: {step.name}, {len(self._ir.nodes)} nodes"
                    )
                    self._apply(step)
        return self._changes - before

    def _apply(self, step: Pass) -> None:
        made = apply_pass(self._ir, step)
        if made:
            self._watchdog.check(step.name)
            self.rows.append(Row(step.name, made, measured_in_all(self._ir) if self._each else None))
        self._changes += made
        self._seen[step.name] = self._changes


def _of_level(level: str) -> Sequence[str]:
    if level not in LEVELS:
        raise CommandError(f"unknown level {level!r}; expected one of {', '.join(LEVELS)}{did_you_mean(level, LEVELS)}")
    return LEVELS[level]


def _as_pass(step: Step) -> Pass:
    if isinstance(step, Pass):
        return step
    return find_pass(step) if isinstance(step, str) else Pass(getattr(step, "__name__", "pass"), step)


def prepared(ir: IR) -> IR:
    """Prepare a graph for rewriting: name its arguments; reject in-place operators."""
    for node in ir.all_nodes():
        name_arguments(node)
        if writes_in_place(node):
            raise GraphError(f"{node!r} writes in place, but only functional graphs can be optimised; capture it again")
    keep_squeezed_sizes(ir, ir)
    return ir


def apply_pass(ir: IR, step: Pass) -> int:
    """Apply a pass to the functions of a graph, then to the graph; bodies of fused calls are left alone."""
    count = 0
    finished = called_by(node for node in ir.nodes if node.op_type.startswith(FUSED))
    called, calls = called_by(ir.nodes), calls_by_function(ir)
    outer = Knowledge.of(ir) if called else None  # shared by all functions: a body does not change its callers' inputs
    for name, body in list(ir.functions.items()):
        if name not in called:  # an entry point
            count += apply_pass(body, step)
        elif name not in finished and outer is not None:
            with inside(ir):
                count += _applied_inside(outer, body, calls.get(name, []), step)
    return count + step(ir)


def _applied_inside(outer: Knowledge, body: IR, calls: Sequence[OpNode], step: Pass) -> int:
    """Apply a pass to a function, assuming an input is a weight or constant if it is one at every call."""
    inner = Knowledge.of(body)
    given = [dict(zip(call.args, call.inputs, strict=True)) for call in calls]
    for tensor in body.graph_inputs if calls else ():
        inner.assume(tensor, {values[tensor.name] for values in given}, outer)
    before = [name for node in body.nodes for name in node.origins]
    count = apply_pass(body, step)
    if count:
        retell_origins(calls, before, body)
    return count
