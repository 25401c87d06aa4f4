"""Names of the values of a run: unique also inside functions, `block/linear@2` in the third call of `block`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch_ir.ir import IR, TensorMeta
from torch_ir.run.compiled_plan import Sizes


class DeclarationWatch:
    """Base class of watchers of declarations: they receive the graph's own tensors, and operands of functions too."""

    def __call__(self, tensor: TensorMeta, value: Any, sizes: Sizes) -> None:
        raise NotImplementedError


class NamedValues:
    """Passes every value that a node makes to `watch`; inside functions, its tensor is a copy with a unique name."""

    def __init__(self, ir: IR, watch: Callable[[TensorMeta, Any, Sizes], None]) -> None:
        self._watch = watch
        self._paths = dict(_paths(ir, ""))
        self._runs = self._bound = Counter[TensorMeta]()

    def start_binding(self) -> None:
        """Number calls from 0; those of the prologue come before those of every run."""
        self._runs = self._bound = Counter()

    def start_run(self) -> None:
        self._runs = self._bound.copy()

    def __call__(self, tensor: TensorMeta, value: Any, sizes: Sizes) -> None:
        if tensor.producer is None:  # the operand of a function, which has a name at the call
            return
        path = self._paths.get(tensor)
        if path is not None:
            named = tensor.copy(inner_name(path, tensor, self._runs[tensor]))
            named.producer, named.index = tensor.producer, tensor.index
            self._runs[tensor] += 1
            tensor = named
        self._watch(tensor, value, sizes)


def inner_name(path: str, tensor: TensorMeta, call: int) -> str:
    """Return the name of a value inside a function: `block/linear@2`."""
    return f"{path}/{tensor.name}@{call}"


def _paths(ir: IR, prefix: str) -> Iterator[tuple[TensorMeta, str]]:
    """Yield the values of all functions, each with the path of its function: `outer/inner`."""
    for name, body in ir.functions.items():
        path = f"{prefix}{name}"
        yield from ((tensor, path) for node in body.nodes for tensor in node.outputs)
        yield from _paths(body, f"{path}/")
