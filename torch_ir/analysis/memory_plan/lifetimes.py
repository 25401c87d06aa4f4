"""Lifetimes: what `liveness` says about each tensor, in numbers, for a planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_ir.analysis.memory.live_tensors import Liveness, liveness
from torch_ir.errors import GraphError
from torch_ir.ir import IR
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.sizes.expressions import names_in


@dataclass(frozen=True)
class Lifetime:
    """The bytes of a tensor, or of a node's scratch memory, from step `first` to step `last`, both included.

    `uses` counts the node that writes it and those that read it or a view of it.
    """

    name: str
    bytes: int
    first: int
    last: int
    uses: int
    is_scratch: bool = False


def lifetimes(ir: IR, sizes: Mapping[str, int]) -> tuple[Liveness, list[Lifetime]]:
    """Return the liveness of a graph, and a lifetime for each tensor that owns memory, in program order."""
    memory = liveness(ir, sizes)
    end = len(memory.steps) - 1
    last = {tensor: number for number, step in enumerate(memory.steps) for tensor in step.dies}
    found = []
    for number, step in enumerate(memory.steps):
        for tensor, size in step.makes.items():
            uses = 1 + len(tensor.consumers)
            found.append(Lifetime(tensor.name, _bytes(ir, tensor.name, size), number, last.get(tensor, end), uses))
        if step.inside != 0:
            scratch = _bytes(ir, step.node.name, step.inside)
            found.append(Lifetime(step.node.name, scratch, number, number, 2, is_scratch=True))
    return memory, found


def _bytes(ir: IR, name: str, size: Dim) -> int:
    if isinstance(size, int):
        return size
    open_sizes = sorted(set(names_in(size)))
    how = ", ".join(f"--dim {each}=SIZE" for each in open_sizes if each in ir.symbols)
    raise GraphError(
        f"the bytes of {name!r:.80} depend on {', '.join(open_sizes)}; a plan needs numbers (sizes=, or {how})"
    )
