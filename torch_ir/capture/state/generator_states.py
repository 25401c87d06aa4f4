"""Random calls that repeat earlier ones, because the state of the generator was restored between them.

`torch.utils.checkpoint` saves the state before a block and restores it before it recomputes the block in backward, so
that dropout draws the same mask. In a graph, the second call is the first one's result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_ir.capture.instrument import all_intercepted
from torch_ir.errors import ConversionError
from torch_ir.ir import IR, OpNode
from torch_ir.ops.effects import may_draw
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload


class GeneratorStates:
    """The random calls of a run, by their position in the stream of random numbers."""

    def __init__(self) -> None:
        self._count = 0
        self._position = 0
        self._first: list[int] = []  # position -> the call that first drew there
        self._repeats: dict[int, int] = {}  # call -> the earlier call that it repeats
        self._states: dict[int, tuple[Any, int]] = {}  # identity of a saved state -> itself, position

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Follow `torch.get_rng_state` and `torch.set_rng_state` of this thread."""

        def save(original: Callable[[], Any]) -> Any:
            state = original()
            self._states[id(state)] = state, self._position
            return state

        def restore(original: Callable[[Any], None], new_state: Any) -> None:
            if id(new_state) not in self._states:
                original(new_state)
                return
            self._position = self._states[id(new_state)][1]

        saved, restored = (torch, "get_rng_state"), (torch, "set_rng_state")
        handlers: dict[tuple[Any, str], Callable[..., Any]] = {saved: save, restored: restore}
        with all_intercepted(handlers):
            yield

    def drawn(self) -> None:
        """Note a random call."""
        if self._position < len(self._first):
            self._repeats[self._count] = self._first[self._position]
        else:
            self._first.append(self._count)
        self._count += 1
        self._position += 1

    def reuse(self, ir: IR) -> None:
        """Replace the calls of a graph that repeat earlier ones by their results."""
        if not self._repeats:
            return
        calls = [node for node in ir.nodes if _draws(node)]
        pairs = [(calls[later], calls[first]) for later, first in self._repeats.items() if later < len(calls)]
        if len(calls) != self._count or any(_form(later) != _form(first) for later, first in pairs):
            raise ConversionError("the model restores the generator's state in a way that the graph cannot follow")
        for later, first in pairs:
            for new, old in zip(first.outputs, later.outputs, strict=True):
                old.replace_all_uses_with(new)
        ir.erase([later for later, _ in pairs])


def _draws(node: OpNode) -> bool:
    operator = find_operator(node.op_type)
    return isinstance(operator, OpOverload) and may_draw(operator)


def _form(node: OpNode) -> Any:
    return node.computation, [(tensor.shape, tensor.dtype) for tensor in node.outputs]
