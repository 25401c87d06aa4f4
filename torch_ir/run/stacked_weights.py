"""Weights of a graph that are stacks: the tensors of a checkpoint that they consist of, read and stacked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.tensor import STACK
from torch_ir.run.stored import StoredTensor


@dataclass(frozen=True)
class StoredStack(StoredTensor):
    """Tensors in files of one shape and dtype, stacked along a new first dimension when they are read."""

    members: tuple[StoredTensor, ...]

    @classmethod
    def of(cls, members: tuple[StoredTensor, ...]) -> StoredStack:
        first = members[0]
        return cls(first.path, first.dtype, (len(members), *first.shape), first.offset, first.stamp, members)

    def elements(self, start: int, stop: int) -> torch.Tensor:
        size = max(1, math.prod(self.shape[1:]))
        found = torch.empty(max(0, stop - start), dtype=self.dtype, device="cpu")
        for index in range(start // size, math.ceil(stop / size)):
            low, high = max(start, index * size), min(stop, (index + 1) * size)
            found[low - start : high - start] = self.members[index].elements(low - index * size, high - index * size)
        return found


def add_stacks(graphs: Iterable[IR], weights: dict[str, Any]) -> None:
    """Add the stacks of graphs to weights, by key, unless a member is missing or differs from the others."""
    for graph in graphs:
        for param in stacks(graph):
            key = str(param.key)
            if key not in weights:
                members = [weights.get(each) for each in param.stored_keys]
                if members and _are_alike(members):
                    weights[key] = _stacked(members)


def stacks(ir: IR) -> Iterator[TensorMeta]:
    """Yield the weights of a graph that are stacks."""
    return (param for param in ir.params if param.param and param.param.kind == STACK)


def described(param: TensorMeta, weights: Mapping[str, Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the keys and shapes to compare with weights: those of its members if a stack could not be made."""
    if param.param is None or param.param.kind != STACK or param.key in weights:
        return [(str(param.key), param.shape)]
    return [(key, param.shape[1:]) for key in param.stored_keys]


def _are_alike(members: list[Any]) -> bool:
    """Whether all members are tensors of one shape and dtype, all with or without values."""
    kinds = {
        (tuple(each.shape), each.dtype, each.is_meta) if isinstance(each, (torch.Tensor, StoredTensor)) else None
        for each in members
    }
    return len(kinds) == 1 and None not in kinds


def _stacked(members: list[Any]) -> Any:
    if all(isinstance(each, StoredTensor) for each in members):
        return StoredStack.of(tuple(members))
    loaded = [each.load() if isinstance(each, StoredTensor) else each.detach() for each in members]
    return torch.stack(loaded)
