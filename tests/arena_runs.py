"""Run a graph with every tensor at the place that a memory plan gives it, in one real buffer for each bank."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ir import IR, IRExecutor
from torch_ir.analysis import Bank, plan_memory
from torch_ir.analysis.values.prologue import split_prologue

ONE = (Bank("arena", alignment=16),)


class ArenaRun:
    """Moves each tensor to its place as soon as its node has made it; `memory` are the buffers by bank.

    `allocated` are the bytes that torch had allocated for them.
    """

    def __init__(self, ir: IR, weights: Mapping[str, Tensor], banks: Sequence[Bank] = ONE) -> None:
        plan = plan_memory(ir, banks)
        self.places = {place.name: place for place in plan.places}
        self.memory = {bank: torch.full((size,), 0x55, dtype=torch.uint8) for bank, size in plan.used.items()}
        self.allocated: dict[str, int] = {}
        self._once = {tensor.name for node in split_prologue(ir)[0] for tensor in node.outputs}
        self._held: list[Tensor] = []
        self._wrong: list[str] = []
        self.executor = IRExecutor(ir, weights, watch=self._move)
        self._held += self.executor.state.values()

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Return the outputs; fail if a tensor needs more memory than planned, or is nowhere in the plan."""
        kept = [*self._held]
        self._held += [value for value in values if isinstance(value, Tensor)]
        outputs = list(self.executor.run(values).outputs)
        self._held = kept
        assert not self._wrong, self._wrong[0]
        assert self.allocated.keys() == {place.name for place in self.places.values() if place.bytes}
        return outputs

    def _move(self, tensor: Any, value: Any, sizes: Any) -> None:
        place = self.places.get(tensor.name)
        if tensor.producer is None or not isinstance(value, Tensor) or not value.numel():
            return
        if tensor.name in self._once:
            self._held.append(value)
        elif place is None:
            if value.untyped_storage().data_ptr() not in {each.untyped_storage().data_ptr() for each in self._held}:
                self._wrong.append(f"{tensor!r} of {tensor.producer} is no view of a tensor that has a place")
        elif (span := _span(value)) > place.bytes:
            self._wrong.append(f"{tensor!r} takes {span} bytes, not {place.bytes}")
        else:
            self.allocated[tensor.name] = value.untyped_storage().nbytes()
            kept = value.clone(memory_format=torch.preserve_format)
            buffer = self.memory[place.bank].numpy()
            there = torch.frombuffer(buffer, dtype=torch.uint8, count=place.bytes, offset=place.offset)
            value.set_(there.untyped_storage(), 0, value.size(), value.stride())  # counted from its own beginning
            value.copy_(kept)
            self._held.append(value)


def _span(value: Tensor) -> int:
    """The bytes from the first element of a tensor to the end of its last one."""
    steps = zip(value.shape, value.stride(), strict=True)
    return (1 + sum((size - 1) * step for size, step in steps)) * value.element_size()
