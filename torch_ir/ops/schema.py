"""Operator schemas: find an operator by name, and bind arguments to the names of its schema.

This is the only reader of torch schemas. Only registered operators are found.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Union

import torch

from torch_ir.errors import ConversionError
from torch_ir.ir import OpNode
from torch_ir.ops.torch_internals import (
    OPERATOR_MODULES,
    HigherOrderOperator,
    OpOverload,
    dispatched_operator_names,
    find_dispatched_schema,
    schema_of,
)

Operator = Union[OpOverload, HigherOrderOperator]
HIGHER_ORDER = "higher_order."

_found: dict[str, Operator] = {}
# Modules of torch, and of this package, that register operators only when they are imported.
_PROVIDERS = {**OPERATOR_MODULES, "torch_ir": "torch_ir.ops.guards"}
# Packages that do so, for a namespace or one operator. They are imported when a graph with such operators runs, not
# when it is read.
_PACKAGES = {"torchao": "torchao.quantization", "transformers.grouped_mm_fallback": "transformers.integrations.moe"}
# Defaults that torch's schemas write as numbers.
_NUMBERS: dict[str, dict[int, Any]] = {"MemoryFormat": {0: torch.contiguous_format}, "ScalarType": {4: torch.int64}}
_PART = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Argument:
    """One argument of an operator."""

    name: str
    default: Any
    has_default: bool
    keyword_only: bool
    is_tensor_list: bool


def find_operator(op_type: str) -> Operator | None:
    """Return the registered operator of that name, or None; never any other object of torch."""
    if op_type not in _found and (operator := _look_up(op_type)) is not None:
        _found[op_type] = operator  # unknown ones may be registered later
    return _found.get(op_type)


def _look_up(op_type: str) -> Operator | None:
    parts = op_type.split(".")
    if len(parts) != (2 if op_type.startswith(HIGHER_ORDER) else 3):
        return None
    if not all(_PART.fullmatch(part) for part in parts):
        return None
    if op_type.startswith(HIGHER_ORDER):
        return _find_higher_order(parts[1])
    namespace, name, overload = parts
    if namespace in _PROVIDERS:
        with contextlib.suppress(ImportError):  # not installed: its operators are unknown
            importlib.import_module(_PROVIDERS[namespace])
    try:  # only dispatched operators: TorchScript's own functions write files and seed generators
        find_dispatched_schema(f"{namespace}::{name}", "" if overload == "default" else overload)
    except RuntimeError:
        return None
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload, None)
    return found if isinstance(found, OpOverload) else None


def _find_higher_order(name: str) -> HigherOrderOperator | None:
    found = getattr(torch.ops.higher_order, name, None)
    return found if isinstance(found, HigherOrderOperator) else None


def import_packages(op_types: Iterable[str]) -> None:
    """Import the known packages that register these operators, if installed."""
    named = {op_type.rpartition(".")[0] for op_type in op_types}
    for name in (named | {name.partition(".")[0] for name in named}) & _PACKAGES.keys():
        with contextlib.suppress(ImportError):
            importlib.import_module(_PACKAGES[name])


def operator_names(namespace: str = "") -> list[str]:
    """Return every registered operator, optionally of one namespace: `aten.add.Tensor`, `aten.relu.default` etc."""
    prefix = f"{namespace}::" if namespace else ""
    found = (name for name in dispatched_operator_names() if name.startswith(prefix))
    return [name.replace("::", ".") if "." in name else f"{name.replace('::', '.')}.default" for name in found]


def overloads_by_name() -> dict[str, list[str]]:
    """Return `{"aten.add": ["aten.add.Tensor", "aten.add.Scalar", ...]}`, for all registered operators."""
    found: dict[str, list[str]] = {}
    for name in operator_names():
        found.setdefault(name.rpartition(".")[0], []).append(name)
    return found


def operator_name(operator: Operator) -> str:
    """Return `aten.conv2d.default`, `higher_order.cond`."""
    return str(operator) if isinstance(operator, OpOverload) else f"{HIGHER_ORDER}{operator}"


@cache
def arguments(operator: Operator) -> tuple[Argument, ...]:
    """Return the arguments of an operator, in schema order."""
    if isinstance(operator, OpOverload):
        return tuple(
            Argument(
                argument.name,
                _default(argument),
                argument.has_default_value(),
                argument.kwarg_only,
                "Tensor" in str(argument.type) and "List" in str(argument.type),
            )
            for argument in schema_of(operator).arguments
        )
    return tuple(_python_arguments(type(operator).__call__))


def _default(argument: Any) -> Any:
    """Return the default of an argument; torch writes that of a memory format or dtype as a number."""
    kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
    numbers = _NUMBERS.get(kind, {})
    return numbers.get(argument.default_value, argument.default_value) if numbers else argument.default_value


def _python_arguments(function: Callable[..., Any]) -> Iterator[Argument]:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        has_default = parameter.default is not parameter.empty
        default = parameter.default if has_default else None
        yield Argument(parameter.name, default, has_default, parameter.kind is parameter.KEYWORD_ONLY, False)


def takes_any_keyword(operator: Operator) -> bool:
    """Whether a higher-order operator takes arbitrary keywords."""
    return not isinstance(operator, OpOverload) and _has_parameter(operator, inspect.Parameter.VAR_KEYWORD)


def takes_any_number(operator: HigherOrderOperator) -> bool:
    """Whether a higher-order operator takes arbitrary positional arguments."""
    return _has_parameter(operator, inspect.Parameter.VAR_POSITIONAL)


def _has_parameter(operator: HigherOrderOperator, kind: object) -> bool:
    return any(parameter.kind is kind for parameter in inspect.signature(type(operator).__call__).parameters.values())


def bind(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return every argument by name, in schema order, with defaults filled in."""
    known = arguments(operator)
    places = [argument.name for argument in known if not argument.keyword_only]
    surplus = [f"arg{index}" for index in range(len(places), len(args))]  # of a higher-order operator with *args
    given = {**dict(zip([*places, *surplus], args, strict=False)), **kwargs}
    bound = {}
    for argument in known:
        if argument.name not in given and not argument.has_default:
            raise ConversionError(f"{operator_name(operator)} lacks the argument {argument.name!r}")
        bound[argument.name] = given.pop(argument.name, argument.default)
    return {**bound, **given}


def name_arguments(node: OpNode) -> None:
    """Name the arguments of a node that lists its tensors by position, and fill in defaults.

    This completes hand-written nodes and files of the documented format: tensors are bound to the tensor arguments in
    order, and tensor lists take as many as `_tensor_list_sizes` says.
    """
    operator = find_operator(node.op_type)
    if not isinstance(operator, OpOverload) or node.has_named_args:
        return
    attrs = dict(node.attrs)
    masks = _list_masks(node, attrs.pop("_tensor_list_sizes", []), attrs.pop("_tensor_list_none_masks", []))
    left = len(node.inputs)
    names: list[str] = []
    values: dict[str, Any] = {}
    for argument, schema in zip(arguments(operator), schema_of(operator).arguments, strict=True):
        if argument.name in attrs:
            values[argument.name] = attrs.pop(argument.name)
        elif argument.is_tensor_list and left:
            mask = masks.pop(0) if masks else [False] * left
            for index, absent in enumerate(mask):
                if absent:
                    values[f"{argument.name}.{index}"] = None
                else:
                    names.append(f"{argument.name}.{index}")
            left -= mask.count(False)
        elif "Tensor" in str(schema.type) and left and not argument.is_tensor_list:
            names.append(argument.name)
            left -= 1
        elif argument.has_default or "Optional" in str(schema.type):
            values[argument.name] = argument.default
    if len(names) != len(node.inputs):
        few = "more" if left > 0 else "fewer"
        raise ConversionError(f"{node!r} has {len(node.inputs)} tensors, {few} than {node.op_type} takes")
    node.set_inputs(node.inputs, names)
    node.attrs = {**values, **attrs}


def _list_masks(node: OpNode, sizes: Any, masks: Any) -> list[list[bool]]:
    """Return which elements of each tensor list are absent, as the documented format states it."""
    if not isinstance(sizes, list) or not isinstance(masks, list) or len(masks) > len(sizes):
        raise ConversionError(f"{node!r} does not state the lengths of its tensor lists")
    found = []
    for index, size in enumerate(sizes):
        if type(size) is not int or not 0 <= size <= len(node.inputs):
            raise ConversionError(f"{node!r} cannot have {size!r:.60} of its {len(node.inputs)} tensors in a list")
        mask = masks[index] if index < len(masks) else [False] * size
        if not isinstance(mask, list) or mask.count(False) != size or not {True, False}.issuperset(mask):
            raise ConversionError(f"{node!r} has an invalid mask for a list of {size} tensors")
        found.append(mask)
    return found
