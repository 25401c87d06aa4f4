"""Dynamic sizes: the request, the model's decisions on sizes, and requested sizes that turn out to be fixed."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.export import Dim

from torch_ir.capture.instrument import intercepted
from torch_ir.capture.program.provenance import is_users_code
from torch_ir.errors import Cause, ExportError
from torch_ir.ir import IR, Slot, Symbol, TensorMeta, evaluate
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ir.sizes.specialize import replace_symbols, substitute
from torch_ir.ir.sizes.symbols import broken_constraint, ordered_constraints
from torch_ir.ops.pytree import values_along
from torch_ir.ops.torch_internals import HigherOrderOperator, OpOverload, combine_args, map_dynamic_shapes, pytree

if TYPE_CHECKING:
    import sympy

_ARITHMETIC = "torch_ir_size"  # name of size arithmetic in an fx graph
Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword inputs
DECISIONS = "torch_ir_decisions"  # key in the meta of a graph module


@contextmanager
def recorded_decisions(dynamic_shapes: Any) -> Iterator[list[sympy.Basic]]:
    """Yield a list to which each decision on sizes in the user's code is added during the trace.

    Torch assumes that a dynamic size is at least 2, so `if n == 1` is decided without a guard.
    """
    made: list[sympy.Basic] = []
    if dynamic_shapes is None:
        yield made
        return
    import sympy  # slow, and not needed for fixed sizes

    def record(decide: Callable[[torch.SymBool], bool], condition: torch.SymBool) -> bool:
        outcome = decide(condition)
        frame = sys._getframe(2)  # of the caller of the patched method
        if frame.f_code.co_filename == torch.__file__ and frame.f_back is not None:  # `if n:` asks `n != 0`
            frame = frame.f_back
        if is_users_code(frame.f_code):
            made.append(condition.node.expr if outcome else sympy.Not(condition.node.expr))
        return outcome

    # torch inspects the user's frame for an assertion; this function must look like one of torch's
    record.__code__ = record.__code__.replace(co_filename=torch.__file__)
    with intercepted(torch.SymBool, "__bool__", record):  # torch offers no hook
        yield made


@contextmanager
def arithmetic_named_apart(dynamic_shapes: Any) -> Iterator[None]:
    """Name size arithmetic, which has no node in the IR, apart from operators: `add` is the first sum of tensors."""
    if dynamic_shapes is None:
        yield
        return

    def create(
        original: Callable[..., Any],
        graph: fx.Graph,
        op: str,
        target: Any,
        args: Any = None,
        kwargs: Any = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> fx.Node:
        if op == "call_function" and name is None and not isinstance(target, (OpOverload, HigherOrderOperator)):
            name = None if target is operator.getitem else _ARITHMETIC
        node: fx.Node = original(graph, op, target, args, kwargs, name, type_expr)
        return node

    with intercepted(fx.Graph, "create_node", create):
        yield


def requested_minimums(dynamic_shapes: Any) -> dict[str, int]:
    """Return the lower bounds that the user set for named dimensions."""
    dims = [leaf for leaf in pytree.tree_leaves(dynamic_shapes) if isinstance(leaf, Dim)]
    return {dim.__name__: dim.min for dim in (getattr(dim, "root", dim) for dim in dims)}  # 2*seq refers to seq


def fixed_sizes(ir: IR, model: nn.Module, call: Call, dynamic_shapes: Any) -> list[str]:
    """Return a line for each dimension that was requested as dynamic (`Dim.AUTO`), but is fixed in the graph."""
    return [
        f"dimension {dim} of {tensor.name!r} is always {tensor.shape[dim]}"
        for tensor, dim, asked in _asked(ir, model, call, dynamic_shapes)
        if getattr(asked, "type", None) == Dim.AUTO.type and isinstance(tensor.shape[dim], int)
    ]


def narrowed_size(ir: IR, dynamic_shapes: Any) -> str:
    """Return sizes within the range of a `Dim` that a constraint of the graph excludes; empty if none are found."""
    is_promised = any(isinstance(leaf, Dim) for leaf in pytree.tree_leaves(dynamic_shapes))
    return broken_constraint(ir) if is_promised else ""


def loosened(dynamic_shapes: Any) -> Any:
    """Return the request with `Dim.AUTO` for each `Dim`; `keep_promises` checks and names the sizes afterwards.

    A `Dim` must be valid for its whole range, and torch cannot prove some simple facts, such as
    `min(past, 2 * past) == past`.
    """
    return pytree.tree_map_only(Dim, _loosened, dynamic_shapes)


def _loosened(dim: Any) -> Any:
    hint: Any = Dim.AUTO(min=dim.min, max=_highest(dim))
    hint.promised = name_promised(dim)
    return hint


def name_promised(asked: Any) -> str:
    """Return the name of a requested size, which is the same for sizes that must be equal; empty if it has none."""
    if isinstance(asked, Dim):
        return "" if hasattr(asked, "root") else asked.__name__
    return getattr(asked, "promised", "")


def keep_promises(ir: IR, model: nn.Module, call: Call, dynamic_shapes: Any) -> None:
    """Rename sizes to the user's `Dim`s and set their ranges; raise ExportError if the graph does not admit these."""
    asked = [each for each in _asked(ir, model, call, dynamic_shapes) if isinstance(each[2], Dim)]
    asked.sort(key=lambda each: hasattr(each[2], "root"))  # `seq` before `2*seq`
    problem = _name_sizes(ir, asked) or _widen_ranges(ir, asked) or broken_constraint(ir)
    if problem:
        message = f"cannot capture {type(model).__name__}: a size cannot vary as asked: {problem}"
        raise ExportError(message, cause=Cause.SIZE_CANNOT_VARY)


def _name_sizes(ir: IR, asked: Sequence[tuple[TensorMeta, int, Any]]) -> str:
    """Rename torch's symbols to the requested names; return the first problem, or an empty string."""
    names: dict[str, str] = {}
    for tensor, dim, wanted in asked:
        found = substitute(tensor.shape[dim], names)
        if found in ir.symbols and found not in names:
            names[found] = wanted.__name__
        elif not _is_same(found, wanted.__name__):
            return f"{wanted.__name__}, dimension {dim} of {tensor.name!r}, is always {found}"
    replace_symbols(ir, names)
    ir.constraints = ordered_constraints(ir.constraints)
    return ""


def _widen_ranges(ir: IR, asked: Sequence[tuple[TensorMeta, int, Any]]) -> str:
    """Set the requested ranges; return the first one that the model narrows, or an empty string."""
    for wanted in (getattr(dim, "root", dim) for _, _, dim in asked):
        symbol, promised = ir.symbols[wanted.__name__], Symbol(wanted.__name__, wanted.min, _highest(wanted))
        if not symbol.admits(max(wanted.min, 2)) or not symbol.admits(_highest(wanted) or symbol.max or inf):
            return f"{promised.range} was asked for, but the model holds only where {symbol.range}"
        symbol.min, symbol.max = promised.min, promised.max
    return ""


def _is_same(found: Any, wanted: str) -> bool:
    """Whether two expressions over one size are equal for sizes from 2 to 65."""
    names = names_in(found) | names_in(wanted)
    return len(names) == 1 and all(
        evaluate(found, {name: size}) == evaluate(wanted, {name: size}) for name in names for size in range(2, 66)
    )


def _highest(dim: Any) -> int | None:
    return dim.max if isinstance(dim.max, int) else None


def _asked(ir: IR, model: nn.Module, call: Call, dynamic_shapes: Any) -> Iterator[tuple[TensorMeta, int, Any]]:
    """Yield each dimension of a graph input that the request names, with its entry there."""
    if not isinstance(dynamic_shapes, (dict, tuple, list)):
        return
    combined: Any = combine_args(model, *call)
    if not isinstance(dynamic_shapes, dict):
        combined = type(dynamic_shapes)(combined.values())
    requests: dict[int, dict[int, Any]] = {}

    def note(path: Any, value: Any, asked: Any) -> None:
        if isinstance(value, torch.Tensor) and isinstance(asked, (dict, tuple, list)):
            requests[id(value)] = dict(asked.items() if isinstance(asked, dict) else enumerate(asked))

    map_dynamic_shapes(note, combined, dynamic_shapes, tree_name="inputs")
    for _, leaf, value in values_along(ir.input_tree, call):
        if isinstance(leaf, Slot):
            for dim, asked in requests.get(id(value), {}).items():
                yield ir.graph_inputs[leaf], dim, asked
