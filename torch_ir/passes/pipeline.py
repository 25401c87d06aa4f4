"""The pipeline: passes in order, each checked, and a report of what they bought.

better, report = optimize(ir)                        # level "basic"
better, report = optimize(ir, passes=["dead-code", my_pass], verify=True)
print(report)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

from torch_ir.analysis.cost_model.measure import measured_in_all
from torch_ir.analysis.shapes.inference import wrong_shapes
from torch_ir.analysis.shapes.open_sizes import inside
from torch_ir.analysis.values.rewrite_context import Knowledge, remembering
from torch_ir.errors import CommandError, GraphError, did_you_mean
from torch_ir.ir import IR, OpNode
from torch_ir.ir.json.json_text import uncollected
from torch_ir.ir.regroup.functions import FUSED, called_by, calls_by_function, inline_all, retell_origins
from torch_ir.ops.effects import writes_in_place
from torch_ir.ops.schema import name_arguments
from torch_ir.passes.opened_calls import forget_opened_calls
from torch_ir.passes.optimize_levels import LEVELS
from torch_ir.passes.pass_registry import Pass, find_pass
from torch_ir.passes.random_check import Inputs, Weights, prove
from torch_ir.passes.savings import Report, Row
from torch_ir.passes.soundness import Watchdog
from torch_ir.passes.squeezed_sizes import keep_squeezed_sizes
from torch_ir.rewrite.change_log import journal

Step = Union[str, Pass, Callable[[IR], int]]
_MOST_ROUNDS = 5
_DEEP = 1000  # nodes


def optimize(
    ir: IR,
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
) -> tuple[IR, Report]:
    """A better graph that computes the same, and what was done; the given graph stays as it is.

    `passes` are names or functions and stand for a level. With `verify`, both graphs are run on `inputs` and `weights`,
    or random ones, all in `dtype` where one is given. With `each`, the report has the cost after every pass.

    With `by_block`, blocks that repeat are optimised once, and only what lies within a block or outside of all of them
    is seen; left open, that is so for graphs of more than a thousand nodes.
    """
    steps = [_as_pass(step) for step in (_of_level(level) if passes is None else passes)]
    with uncollected(), remembering(), journal() as entries:
        is_flat = not any(node.is_call for node in ir.nodes)
        folds = is_flat and (len(ir.nodes) > _DEEP if by_block is None else by_block)
        better = _fit(ir.fold_blocks() if folds else ir.clone())
        try:
            rows = _run(better, steps, each, progress or (lambda text: None))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            _blame(ir)
            raise
        forget_opened_calls(better, entries.opened)
        if folds:
            inline_all(better, lambda call: not call.op_type.startswith(FUSED))
        better.check()
    if verify and progress is not None:
        progress("running both graphs")
    proof = prove(ir, better, dtype, inputs=inputs, weights=weights) if verify else None
    return better, Report(ir, better, rows, entries.changes, list(entries.declined), proof)


def _blame(ir: IR) -> None:
    """Name the node that does not go together with what its operator takes and gives, which passes count on."""
    for node, why in wrong_shapes(ir):
        raise GraphError(f"{node!r} {why}", rule="R12", node=node.name) from None


def _run(ir: IR, steps: Sequence[Pass], each: bool, progress: Callable[[str], None]) -> list[Row]:
    """Apply passes in order, again and again, until none of them finds anything; each is checked.

    Passes that fuse come last, as nodes inside a call are out of the others' sight.
    """
    watchdog = Watchdog(ir)
    rows: list[Row] = []
    changes = 0
    seen: dict[str, int] = {}  # how many changes there were when a pass had last been applied
    for phase in ([step for step in steps if not step.fuses], [step for step in steps if step.fuses]):
        for round_ in range(_MOST_ROUNDS):
            for step in phase:
                if seen.get(step.name) == changes:
                    continue
                progress(f"round {round_ + 1}: {step.name}")
                made = _applied(ir, step)
                if made:
                    watchdog.look(step.name)
                    rows.append(Row(step.name, made, measured_in_all(ir) if each else None))
                changes += made
                seen[step.name] = changes
    return rows


def _of_level(level: str) -> Sequence[str]:
    if level not in LEVELS:
        raise CommandError(f"there is no level {level!r}{did_you_mean(level, LEVELS)}; there are: {', '.join(LEVELS)}")
    return LEVELS[level]


def _as_pass(step: Step) -> Pass:
    if isinstance(step, Pass):
        return step
    return find_pass(step) if isinstance(step, str) else Pass(getattr(step, "__name__", "pass"), step)


def _fit(ir: IR) -> IR:
    """The graph, made fit to be rewritten: its arguments have names; what writes in place is refused."""
    for node in ir.all_nodes():
        name_arguments(node)
        if writes_in_place(node):
            raise GraphError(
                f"{node!r} writes in place, and only graphs in functional form are optimised; extract it anew"
            )
    keep_squeezed_sizes(ir, ir)
    return ir


def _applied(ir: IR, step: Pass) -> int:
    """The changes of a pass to the functions of a graph, then to itself; bodies of fused operators are finished."""
    count = 0
    finished = called_by(node for node in ir.nodes if node.op_type.startswith(FUSED))
    called, calls = called_by(ir.nodes), calls_by_function(ir)
    outer = Knowledge.of(ir) if called else None  # asked once for all functions: no body changes what callers give
    for name, body in list(ir.functions.items()):
        if name not in called:  # an entry point, which stands for itself
            count += _applied(body, step)
        elif name not in finished and outer is not None:
            with inside(ir):
                count += _applied_inside(outer, body, calls.get(name, []), step)
    return count + step(ir)


def _applied_inside(outer: Knowledge, body: IR, calls: Sequence[OpNode], step: Pass) -> int:
    """The changes of a pass to a function; where every call gives it a weight or a constant, it may count on that."""
    inner = Knowledge.of(body)
    given = [dict(zip(call.args, call.inputs, strict=True)) for call in calls]
    for tensor in body.graph_inputs if calls else ():
        inner.assume(tensor, {values[tensor.name] for values in given}, outer)
    before = [name for node in body.nodes for name in node.origins]
    count = _applied(body, step)
    if count:
        retell_origins(calls, before, body)
    return count
