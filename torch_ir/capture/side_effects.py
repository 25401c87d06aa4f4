"""What forward leaves behind when it is captured: attributes with tensors that have no values, calls that failed."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx, nn
from torch._ops import OpOverload

from torch_ir.capture.walk import modules

_CONTAINERS = frozenset(
    (list, dict, set, OrderedDict)
)  # these very types: what a class of its own does when cleared is unknown


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Afterwards every module has the attributes that it had, and its plain containers hold what they held."""
    before = [(module.__dict__, module.__dict__.copy(), *_containers(module)) for module in modules(model)]
    try:
        yield
    finally:
        for attributes, held, full, empty in before:
            if not _is_same(attributes, held):
                attributes.clear()
                attributes.update(held)
            for container, content in full:
                _put_back(container, content)
            for container in filter(None, empty):
                container.clear()


def _containers(module: nn.Module) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """Containers that forward could change in place, tables of the module among them: full ones with a copy, empty."""
    full, empty = [], []
    for value in module.__dict__.values():
        if type(value) in _CONTAINERS:
            if value:
                full.append((value, value.copy()))
            else:
                empty.append(value)
    return full, empty


def _put_back(container: Any, content: Any) -> None:
    if type(container) is list:
        container[:] = content
    elif type(container) is set or not _is_same(container, content):
        container.clear()
        container.update(content)


def _is_same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Whether two tables hold the same objects under the same keys, in the same order."""
    return [*one] == [*other] and all(map(operator.is_, one.values(), other.values()))


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
