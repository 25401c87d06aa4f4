"""Guard operators: they raise if an assumption of a recorded graph does not hold, and have no outputs.

torch_ir.decision.default(value=gt, assumed=True, place="model.py:12")
torch_ir.fixed_shape.default(value=nonzero, shape=[5, 2], place="model.py:14")
torch_ir.fixed_value.default(value=grid, expected=fixed_grid, place="grid")
torch_ir.fixed_attribute.default(value=x, name="requires_grad", assumed=False, place="model.py:9")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.fx.node import has_side_effect

from torch_ir.errors import GuardError
from torch_ir.ir import OpNode
from torch_ir.ops.torch_internals import BASE, IS_PARAMETER, base_of, disabled_torch_function, gradient_of

DECISION = "torch_ir.decision.default"
FIXED_SHAPE = "torch_ir.fixed_shape.default"
FIXED_VALUE = "torch_ir.fixed_value.default"
FIXED_ATTRIBUTE = "torch_ir.fixed_attribute.default"
GUARDS = (DECISION, FIXED_SHAPE, FIXED_VALUE, FIXED_ATTRIBUTE)
_ASSERTIONS = ("aten._assert_async.", "aten._assert_scalar.", "aten.sym_constrain_range")
OFFSET = " (storage_offset)"  # suffix of `IR.fixed_layout` if the line reads the storage offset

_library: Any = torch.library.Library("torch_ir", "DEF")  # type: ignore[no-untyped-call]  # torch does not annotate it
_library.define("decision(Tensor value, Scalar assumed, str place) -> ()")
_library.define("fixed_shape(Tensor value, int[] shape, str place) -> ()")
_library.define("fixed_value(Tensor value, Tensor expected, str place) -> ()")
_library.define("fixed_attribute(Tensor value, str name, Scalar assumed, str place) -> ()")
_MOST_SHOWN = 12  # elements of a tensor in a message

# What Python can ask an input besides its shape, dtype, device and values: the name, and the answer as a number.
ATTRIBUTES: dict[str, Callable[[torch.Tensor], bool | int]] = {
    "requires_grad": lambda value: value.requires_grad,
    "is_leaf": lambda value: value.is_leaf,
    "grad_fn": lambda value: value.grad_fn is not None,
    "grad": lambda value: gradient_of(value) is not None,
    BASE: lambda value: base_of(value) is not None,
    "is_inference": torch.Tensor.is_inference,
    "is_conj": torch.Tensor.is_conj,
    "is_neg": torch.Tensor.is_neg,
    "is_shared": torch.Tensor.is_shared,
    "is_pinned": lambda value: value.is_pinned(),
    IS_PARAMETER: lambda value: isinstance(value, nn.Parameter),
}
OWN = "."  # prefix of the name of a Python attribute, such as ".scale", which a plain tensor does not have
_SHOWN = {
    "grad_fn": "grad_fn is not None", "grad": "grad is not None", BASE: "its base is not None",
    IS_PARAMETER: "isinstance(nn.Parameter)",
}  # fmt: skip
_HARMLESS = frozenset((
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__", "__new__", "__init__",
    "__init_subclass__", "__repr__", "__str__", "__format__", "__reduce__", "__reduce_ex__", "__setstate__",
    "__deepcopy__", "__hash__", "__dir__", "__static_attributes__", "__firstlineno__",
))  # fmt: skip


@torch.library.impl(_library, "decision", "CompositeExplicitAutograd")
def _decision(value: torch.Tensor, assumed: Any, place: str) -> None:
    found = value.item()
    if found != assumed and (found == found or assumed == assumed):  # NaN equals NaN here
        values = f"at capture the value was {assumed}, now it is {found}"
        if isinstance(assumed, bool):
            raise GuardError(
                f"{place or 'the model'} branches on data: {values}; capture with explore=8 (--explore 8) to include "
                "both branches",
                place=place,
            )
        raise GuardError(
            f"{place or 'the model'} reads a number from the data: {values}; the graph is only for that number: "
            "compute with the tensor instead, without .item(), or capture for other data",
            place=place,
        )


@torch.library.impl(_library, "fixed_shape", "CompositeExplicitAutograd")
def _fixed_shape(value: torch.Tensor, shape: Sequence[int], place: str) -> None:
    if list(value.shape) != list(shape):
        raise GuardError(
            f"{place or 'the model'} has a data-dependent size: at capture the shape was {list(shape)}, "
            f"now it is {list(value.shape)}; torch.export can capture a varying size",
            place=place,
        )


@torch.library.impl(_library, "fixed_value", "CompositeExplicitAutograd")
def _fixed_value(value: torch.Tensor, expected: torch.Tensor, place: str) -> None:
    if not torch.equal(value, expected):
        values = f"{_shown(expected)}, not for {_shown(value)}"
        raise GuardError(f"the graph is only for {place} = {values}; capture with fixed= for other values")


@torch.library.impl(_library, "fixed_attribute", "CompositeExplicitAutograd")
def _fixed_attribute(value: torch.Tensor, name: str, assumed: Any, place: str) -> None:
    check_attribute("the input", value, name, assumed, place)


def check_attribute(what: str, value: torch.Tensor, name: str, assumed: Any, place: str) -> None:
    """Raise GuardError if an attribute of a tensor is not as at capture."""
    if name not in ATTRIBUTES and not name.startswith(OWN):
        raise GuardError(f"the graph guards the attribute {name!r:.40} of {what}, which this version does not know")
    if (found := answer(value, name)) != assumed:
        shown = f"hasattr({name[len(OWN) :]!r:.40})" if name.startswith(OWN) else _SHOWN.get(name, name)
        raise GuardError(
            f"{place or 'the model'} reads {shown} of {what}: at capture it was {assumed}, now it is "
            f"{found}; capture with such an input, or pass a plain tensor (x.detach().clone())",
            place=place,
        )


def answer(value: torch.Tensor, name: str) -> bool | int:
    """Return what an attribute of a tensor is, as a number; of Python attributes, whether there is one."""
    if not name.startswith(OWN):
        return ATTRIBUTES[name](value)
    own = name[len(OWN) :]  # not read: a property runs code
    return any(own in vars(holder) for holder in (value, *type(value).__mro__))


def is_check(node: OpNode) -> bool:
    """Whether a node only checks values: a guard of the capture, or an assertion of the model."""
    return not node.outputs and (node.op_type in GUARDS or node.op_type.startswith(_ASSERTIONS))


def is_users_class(kind: type[torch.Tensor]) -> bool:
    """Whether a class of tensors is neither torch's nor has an inner form, which torch traces."""
    if kind is torch.Tensor or kind is nn.Parameter:
        return False
    return not (kind.__module__.partition(".")[0] == "torch" or hasattr(kind, "__tensor_flatten__"))


@lru_cache(maxsize=256)
def overridden(kind: type[torch.Tensor]) -> str:
    """Return what a subclass of Tensor changes in Python, such as `__torch_function__`; empty for torch's own classes.

    The graph contains operators; the Python of such a class would run in eager mode, and not in the graph.
    """
    if not is_users_class(kind):
        return ""
    for each in kind.__mro__[: kind.__mro__.index(torch.Tensor)]:
        if each is nn.Parameter:
            continue
        for name, value in vars(each).items():
            if name not in _HARMLESS and hasattr(torch.Tensor, name) and value is not disabled_torch_function:
                return name
    return ""


def _shown(tensor: torch.Tensor) -> str:
    return str(tensor.tolist()) if tensor.numel() <= _MOST_SHOWN else f"a tensor of shape {list(tensor.shape)}"


decision: Any = torch.ops.torch_ir.decision.default
fixed_shape: Any = torch.ops.torch_ir.fixed_shape.default
fixed_value: Any = torch.ops.torch_ir.fixed_value.default
fixed_attribute: Any = torch.ops.torch_ir.fixed_attribute.default
for _operator in (decision, fixed_shape, fixed_value, fixed_attribute):
    # without values, there is nothing to guard; register_fake would look through every module of the process
    _library.impl(_operator, lambda *args: None, "Meta")
    has_side_effect(_operator)  # fx must keep it, though it has no users
