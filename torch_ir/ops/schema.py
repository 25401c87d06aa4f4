"""Operator schemas: finding an operator by its name, and binding arguments to the names that its schema gives.

This is the only reader of torch schemas. An operator is found among the registered ones and nowhere else.
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
# Parts of torch, and of this package, that register operators only when they are imported.
_PROVIDERS = {**OPERATOR_MODULES, "torch_ir": "torch_ir.ops.guards"}
# Packages that do so, for a namespace or one operator. A file that names such an operator makes nobody import them,
# before it runs.
_PACKAGES = {"torchao": "torchao.quantization", "transformers.grouped_mm_fallback": "transformers.integrations.moe"}
# What torch's schemas write as numbers in defaults.
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
    """The registered operator of that name, or None; never anything else that torch holds."""
    if op_type not in _found and (operator := _look_up(op_type)) is not None:
        _found[op_type] = operator  # what is not there yet may be registered later
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
        with contextlib.suppress(ImportError):  # not installed: its operators are unknown here
            importlib.import_module(_PROVIDERS[namespace])
    try:  # only what is dispatched: TorchScript's own functions write files and seed generators
        find_dispatched_schema(f"{namespace}::{name}", "" if overload == "default" else overload)
    except RuntimeError:
        return None
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload, None)
    return found if isinstance(found, OpOverload) else None


def _find_higher_order(name: str) -> HigherOrderOperator | None:
    found = getattr(torch.ops.higher_order, name, None)
    return found if isinstance(found, HigherOrderOperator) else None


def import_packages(op_types: Iterable[str]) -> None:
    """Import the known packages, where they are installed, that register these operators."""
    named = {op_type.rpartition(".")[0] for op_type in op_types}
    for name in (named | {name.partition(".")[0] for name in named}) & _PACKAGES.keys():
        with contextlib.suppress(ImportError):
            importlib.import_module(_PACKAGES[name])


def operator_names(namespace: str = "") -> list[str]:
    """Every registered operator, maybe of one namespace: `aten.add.Tensor`, `aten.relu.default` and so on."""
    prefix = f"{namespace}::" if namespace else ""
    found = (name for name in dispatched_operator_names() if name.startswith(prefix))
    return [name.replace("::", ".") if "." in name else f"{name.replace('::', '.')}.default" for name in found]


def operator_name(operator: Operator) -> str:
    """`aten.conv2d.default`, `higher_order.cond`."""
    return str(operator) if isinstance(operator, OpOverload) else f"{HIGHER_ORDER}{operator}"


@cache
def arguments(operator: Operator) -> tuple[Argument, ...]:
    """The arguments of an operator, in the order of its schema."""
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
    """The default of an argument; torch writes that of a memory format or a dtype as a number."""
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
    """Whether a Python operator takes keywords beyond those that it names."""
    if isinstance(operator, OpOverload):
        return False
    parameters = inspect.signature(type(operator).__call__).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def takes_any_number(operator: HigherOrderOperator) -> bool:
    """Whether a Python operator takes more arguments by position than it names."""
    parameters = inspect.signature(type(operator).__call__).parameters.values()
    return any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)


def bind(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Every argument by name, in schema order, defaults filled in."""
    known = arguments(operator)
    places = [argument.name for argument in known if not argument.keyword_only]
    surplus = [f"arg{index}" for index in range(len(places), len(args))]  # of a Python operator with *args
    given = {**dict(zip([*places, *surplus], args, strict=False)), **kwargs}
    bound = {}
    for argument in known:
        if argument.name not in given and not argument.has_default:
            raise ConversionError(f"{operator_name(operator)} is called without {argument.name!r}")
        bound[argument.name] = given.pop(argument.name, argument.default)
    return {**bound, **given}


def name_arguments(node: OpNode) -> None:
    """Give a node that lists its tensors by position the names of its schema's arguments, and fill in defaults.

    This is how hand-written nodes and files of the documented format become exact: tensors go to the tensor arguments
    in order, tensor lists take as many as `_tensor_list_sizes` says.
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
    """For each list of tensors, which of its elements are absent; as the documented format says it."""
    if not isinstance(sizes, list) or not isinstance(masks, list) or len(masks) > len(sizes):
        raise ConversionError(f"{node!r} does not say how long its lists of tensors are")
    found = []
    for index, size in enumerate(sizes):
        if type(size) is not int or not 0 <= size <= len(node.inputs):
            raise ConversionError(f"{node!r} cannot have {size!r:.60} of its {len(node.inputs)} tensors in a list")
        mask = masks[index] if index < len(masks) else [False] * size
        if not isinstance(mask, list) or mask.count(False) != size or not {True, False}.issuperset(mask):
            raise ConversionError(f"{node!r} says otherwise which of {size} tensors in a list are absent")
        found.append(mask)
    return found
