"""Value numbering for runs of a model, to compare the results of two runs on tensors without values.

Two tensors have the same number if the same operators computed them from the same inputs, weights and constants. The
number belongs to the storage, so that a write changes it for every view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import py_sym_types

from torch_ir.ops.effects import written_arguments
from torch_ir.ops.grouped_products import grouped_rule
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_internals import (
    FakeTensor,
    OpOverload,
    TorchDispatchMode,
    memory_key,
    pytree,
    storage_key,
    unset_fake_temporarily,
)

_MOST_ELEMENTS = 4096  # of a constant that is identified by its values


@dataclass
class _Memory:
    """The number of a storage, which is kept alive so that its address is not reused."""

    storage: Any
    number: int
    is_of_inputs: bool  # whether it depends on inputs or on random numbers


class ValueNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Numbers the results of operators, over several runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._numbers: dict[Any, int] = {}
        self._memory: dict[int, _Memory] = {}
        self._random_calls = 0

    def give(self, tensor: torch.Tensor, name: Any, is_input: bool) -> None:
        """Number a tensor at the start of a run."""
        self._set(tensor, self._number(("given", name)), is_input)

    def begin(self) -> None:
        """Start another run: values that the last one computed from its inputs get new numbers."""
        self._random_calls = 0
        for memory in self._memory.values():
            if memory.is_of_inputs:
                memory.number = self._number(("of an earlier run", memory.number))

    def digest(self, value: Any) -> Any:
        """Return a key for a nested result."""
        leaves, structure = pytree.tree_flatten(value)
        return str(structure), [self._key(leaf) for leaf in leaves]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            raise NotImplementedError(f"{func} is a higher-order operator")
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        self._random_calls += is_random
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        key = (func, self._key((args, kwargs)), self._random_calls if is_random else 0)
        is_of_inputs = is_random or any(self._of(tensor).is_of_inputs for tensor in tensors)
        known = {memory_key(tensor) for tensor in tensors}
        rule = grouped_rule(str(func), tensors[0].dtype if tensors else None)
        result = (rule or func)(*args, **kwargs)
        bound = bind(func, args, kwargs)
        for name in written_arguments(func, bound):
            for place, tensor in enumerate(pytree.tree_leaves(bound.get(name))):
                if isinstance(tensor, torch.Tensor):
                    self._set(tensor, self._number((key, name, place)), is_of_inputs)
        for place, tensor in enumerate(pytree.tree_leaves(result)):
            if isinstance(tensor, torch.Tensor) and memory_key(tensor) not in known:
                self._set(tensor, self._number((key, place)), is_of_inputs)
        return result

    def _of(self, tensor: torch.Tensor) -> _Memory:
        """Return the entry of a tensor's memory; memory from before the run is a constant."""
        storage = tensor.untyped_storage()
        if storage_key(storage) not in self._memory:
            is_known = not isinstance(tensor, FakeTensor) and not tensor.is_meta and tensor.numel() <= _MOST_ELEMENTS
            name = (_shown(tensor), tensor.dtype) if is_known else storage_key(storage)
            self._set(tensor, self._number(("constant", name)), False)
        return self._memory[storage_key(storage)]

    def _set(self, tensor: torch.Tensor, number: int, is_of_inputs: bool) -> None:
        storage = tensor.untyped_storage()
        self._memory[storage_key(storage)] = _Memory(storage, number, is_of_inputs)

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _key(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            sizes = map(_size, (*value.shape, *value.stride(), value.storage_offset()))
            return self._of(value).number, value.dtype, *sizes
        if isinstance(value, Mapping):
            return tuple((name, self._key(item)) for name, item in value.items())
        if isinstance(value, (list, tuple)):
            return type(value).__name__, *map(self._key, value)
        return type(value).__name__, "?" if isinstance(value, py_sym_types) else str(value)


def _size(size: Any) -> Any:
    """Return a size; a data-dependent one, whose symbol differs in every run, as a common marker."""
    return size if type(size) is int else "?"


def _shown(tensor: torch.Tensor) -> str:
    with unset_fake_temporarily():
        return str(tensor.tolist())
