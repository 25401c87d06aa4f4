"""Literals whose values torch.export remembers, and which forward overwrites through another view.

    t = torch.tensor([0.0])
    view = t[0]
    t += x.sum()
    if view > 0: ...        # torch answers with the value of the literal, 0.0

torch answers `item()` on a small literal with its value, and forgets the value of the tensor object that is written to,
but not those of other views of the same memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_slot

from torch_ir.capture.instrument import intercepted
from torch_ir.ops.effects import mutated_arguments
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_internals import TRACE_CALL, OpOverload, dense_memory_key, pytree


@contextmanager
def written_literals_forgotten() -> Iterator[None]:
    """Make torch forget the values of all views of a literal to which forward writes unknown values."""
    known: dict[int | None, list[Any]] = defaultdict(list)  # memory -> torch's records of the literals in it

    def call(
        original: Callable[..., Any],
        mode: Any,
        func: OpOverload,
        before_dispatch: bool,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        result = original(mode, func, before_dispatch, args, kwargs)
        for tensor, record in _records(result, mode.tracer):
            if record.constant is not None:
                known[dense_memory_key(tensor)].append(record)
        if known and (names := mutated_arguments(func)):
            bound = bind(func, args, kwargs)
            for tensor, record in _records([bound.get(name) for name in names], mode.tracer):
                if record.constant is None:
                    for literal in known.pop(dense_memory_key(tensor), ()):
                        literal.constant = None
        return result

    with intercepted(*TRACE_CALL, call) if hasattr(*TRACE_CALL) else nullcontext():
        yield


def _records(value: Any, tracer: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    """Yield the tensors in a nested value, with torch's record of each."""
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and (record := get_proxy_slot(leaf, tracer, None)) is not None:
            yield leaf, record
