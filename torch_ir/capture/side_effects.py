"""What forward leaves behind when it is captured: attributes with tensors that have no values, calls that failed."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn
from torch._ops import OpOverload

_CONTAINERS = (list, dict, set, OrderedDict)  # these very types: what a class of its own does when cleared is unknown


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Afterwards every module has the attributes that it had, and its plain containers hold what they held."""
    before = [(module, _held(module)) for module in model.modules()]
    try:
        yield
    finally:
        for module, held in before:
            vars(module).clear()
            for name, (value, content) in held.items():
                vars(module)[name] = value
                _put_back(value, content)


def _held(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Attributes with a copy of those that forward could change in place: tables of the module, and containers."""
    return {
        name: (value, copy.copy(value) if type(value) in _CONTAINERS else None) for name, value in vars(module).items()
    }


def _put_back(value: Any, content: Any) -> None:
    if type(value) is list:
        value[:] = content
    elif type(value) in _CONTAINERS:
        value.clear()
        value.update(content)


def drop_failed_calls(module: fx.GraphModule) -> None:
    """Erase calls that gave nothing although they should: they raised, and forward caught it and went on."""
    failed = [node for node in module.graph.nodes if _has_failed(node)]
    for node in failed:
        module.graph.erase_node(node)
    if failed:
        module.recompile()


def _has_failed(node: fx.Node) -> bool:
    gives_something = isinstance(node.target, OpOverload) and bool(node.target._schema.returns)
    return gives_something and node.meta.get("val") is None and not node.users
