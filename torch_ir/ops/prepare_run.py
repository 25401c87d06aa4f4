"""Prepare nodes for running: resolve operators, order arguments by schema, flatten results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, OpNode
from torch_ir.ir.regroup.functions import with_calls_open
from torch_ir.ops import effects as facts
from torch_ir.ops.forbidden import misuses, reaches
from torch_ir.ops.registry import executor_of
from torch_ir.ops.schema import Operator, arguments, find_operator, import_packages, name_arguments, takes_any_keyword
from torch_ir.ops.torch_internals import OpOverload, schema_of

_Value = TypeVar("_Value")


def check_operators(ir: IR) -> None:
    """Raise ExecutionError for operators that cannot run, naming all of them; import packages that provide some."""
    import_packages(node.op_type for node in ir.all_nodes())
    unknown: dict[str, OpNode] = {}
    for node in ir.all_nodes():
        known = executor_of(node) or find_operator(node.op_type)
        is_label = known is None and (node.is_call or node.is_layer)
        if not is_label and (why := reaches(node.op_type) or misuses(node)):
            raise ExecutionError(f"{node!r} reaches outside the graph: it {why}; no graph may run it")
        if known is None and not node.is_call:
            unknown.setdefault(node.op_type, node)
    if unknown:
        listed = ", ".join(f"{op_type} (node {node.name!r})" for op_type, node in unknown.items())
        how = "import what defines it (on the command line: --import MODULE), or use @register_executor"
        if all(map(facts.is_opaque, unknown.values())):
            how = (
                "data left torch there during the capture; write what it computes as a function with @register_executor"
            )
        raise ExecutionError(f"no executor for {listed}; {how}")


def with_named_arguments(ir: IR) -> IR:
    """Return the graph itself, or a copy whose arguments have their schema names."""
    if all(node.has_named_args for node in ir.all_nodes()):
        return ir
    named = ir.clone()
    for node in named.all_nodes():
        name_arguments(node)
    return named


def with_operators(ir: IR) -> IR:
    """Check a graph and its operators; return it, or a copy whose arguments have their schema names."""
    check_operators(ir.check())
    return with_named_arguments(ir)


def with_calls_inline(ir: IR) -> IR:
    """Return the graph itself, or a copy in which calls are inlined unless an operator or executor computes them."""
    return with_calls_open(with_operators(ir), has_body_alone)


def has_body_alone(node: OpNode) -> bool:
    """Whether a node is a call that neither an operator nor an executor computes."""
    return node.is_call and executor_of(node) is None and find_operator(node.op_type) is None


def ordered_arguments(
    node: OpNode, operator: Operator, values: Mapping[str, _Value], default: Callable[[Any], _Value]
) -> tuple[list[_Value], dict[str, _Value], dict[str, _Value]]:
    """Return the arguments of a call: positional, by name, and by names that the schema does not have."""
    left = dict(values)
    places: list[_Value] = []
    keywords: dict[str, _Value] = {}
    for argument in arguments(operator):
        if argument.name not in left and not argument.has_default:
            raise ExecutionError(f"{node!r} lacks the argument {argument.name!r} of {node.op_type}")
        value = left.pop(argument.name) if argument.name in left else default(argument.default)
        if argument.keyword_only:
            keywords[argument.name] = value
        else:
            places.append(value)
    while (surplus := f"arg{len(places)}") in left:  # a Python operator with *args
        places.append(left.pop(surplus))
    if left and not takes_any_keyword(operator):
        raise ExecutionError(f"{node!r} has an argument {next(iter(left))!r} that {node.op_type} does not have")
    return places, keywords, left


def present(result: Any) -> Any:
    """Return the outputs of an operator, flattened, without absent ones."""
    if not isinstance(result, (tuple, list)):
        return () if result is None else (result,)
    return [item for part in result for item in present(part)]


def returns_one(operator: Operator) -> bool:
    """Whether an operator returns one tensor rather than a list."""
    if not isinstance(operator, OpOverload):
        return False
    returns = schema_of(operator).returns
    return len(returns) == 1 and "List" not in str(returns[0].type)


def on_copies(operator: OpOverload) -> Callable[..., list[Any]]:
    """Wrap an operator that writes: it works on copies, and returns them after its results."""
    names = [argument.name for argument in arguments(operator)]
    written = facts.mutated_arguments(operator)

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        bound = {**dict(zip(names, args, strict=False)), **kwargs}
        copies = {name: _copied(bound[name]) for name in written if bound[name] is not None}
        result = operator(**{**bound, **copies})
        results = result if isinstance(result, tuple) else (result,)
        return [*results, *copies.values()]

    return call


def _copied(value: Any) -> Any:
    """Copy a tensor, or each in a list."""
    return [_copied(item) for item in value] if isinstance(value, (list, tuple)) else value.clone()
