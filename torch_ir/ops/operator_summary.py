"""Summary of an operator: its schema and its effects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_ir.errors import CommandError, did_you_mean
from torch_ir.ops.effects import may_alias, may_draw, mutated_arguments
from torch_ir.ops.forbidden import reaches
from torch_ir.ops.registry import get_execution_fn
from torch_ir.ops.schema import Operator, arguments, find_operator, operator_names
from torch_ir.ops.torch_internals import OpOverload, schema_of


@dataclass(frozen=True)
class OperatorFacts:
    """An operator of torch; `reaches` is what it does outside a graph, which forbids running it."""

    op_type: str
    schema: str
    writes: tuple[str, ...]
    may_alias: bool
    is_random: bool
    reaches: str


def operators_named(text: str) -> list[OperatorFacts]:
    """Return an operator, or all overloads: `aten.conv2d.default`, `aten.conv2d`, `aten::conv2d` or `conv2d`."""
    name = text.replace("::", ".")
    name = name if "." in name else f"aten.{name}"
    exact = [name] if find_operator(name) else [found for found in operator_names() if found.startswith(f"{name}.")]
    if not exact:
        bases = {found.rpartition(".")[0] for found in operator_names()}
        raise CommandError(f"torch has no operator {text!r}{did_you_mean(name, sorted(bases))}")
    return list(_described(sorted(exact)))


def operators_with(word: str) -> list[OperatorFacts]:
    """Return every registered operator whose name contains a word."""
    return list(_described(sorted(name for name in operator_names() if word.lower() in name.lower())))


def why_not_run(op_type: str) -> str:
    """Return why a graph with this operator cannot run here; empty if it can."""
    if get_execution_fn(op_type) is not None:
        return ""
    if message := reaches(op_type):
        return f"it {message}"
    return "" if find_operator(op_type) else "torch has no such operator, and no executor is registered"


def _described(names: list[str]) -> Iterator[OperatorFacts]:
    for name in names:
        operator = find_operator(name)
        if operator is not None:
            yield _facts(name, operator)


def _facts(name: str, operator: Operator) -> OperatorFacts:
    if not isinstance(operator, OpOverload):
        taken = ", ".join(argument.name for argument in arguments(operator))
        return OperatorFacts(name, f"{name}({taken})", (), False, False, reaches(name))
    return OperatorFacts(
        name,
        str(schema_of(operator)),
        mutated_arguments(operator),
        may_alias(operator),
        may_draw(operator),
        reaches(name),
    )
