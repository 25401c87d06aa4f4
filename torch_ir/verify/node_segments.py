"""Cut a graph into segments: its blocks, and the nodes between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from torch import nn

from torch_ir.errors import ExecutionError, did_you_mean
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.regroup.functions import read_by


@dataclass
class Segment:
    """Consecutive nodes of one block, or of none."""

    block: str
    nodes: list[OpNode]
    reads: list[TensorMeta]
    wanted: list[TensorMeta]  # results that later nodes or the outputs read
    done: list[TensorMeta]  # inputs that no later node reads
    sources: list[Hashable] = field(default_factory=list)  # where each read comes from, as seen from the block

    @property
    def name(self) -> str:
        ends = dict.fromkeys(repr(node.name) for node in (self.nodes[0], self.nodes[-1]))
        return self.block or f"between blocks, {' to '.join(ends)}"

    @property
    def function(self) -> str:
        """The function that the block calls, if it is a single call."""
        node = self.nodes[0]
        return str(node.attrs["function"]) if len(self.nodes) == 1 and node.is_call else ""

    def kind(self) -> Hashable:
        """Return a key that is equal for blocks with equal computations and equal sources relative to the block."""
        numbers = {tensor: number for number, tensor in enumerate([*self.reads, *_made(self.nodes)])}
        facts = [(tensor.shape, tensor.dtype, tensor.stride) for tensor in numbers]
        steps = [(node.computation, tuple(map(numbers.__getitem__, node.inputs))) for node in self.nodes]
        return tuple(self.sources), tuple(facts), tuple(steps), tuple(numbers[tensor] for tensor in self.wanted)


def segments(ir: IR, model: nn.Module, classes: Collection[str | type]) -> list[Segment]:
    """Return the segments in order; nodes of one block that are not consecutive form several segments."""
    block_of = _blocks(ir, model, classes)
    groups = [(block, list(nodes)) for block, nodes in groupby(ir.nodes, block_of)]
    later = set(ir.returns.inputs)
    found: list[Segment] = []
    for block, nodes in reversed(groups):
        reads = read_by(nodes)
        wanted = [tensor for tensor in _made(nodes) if tensor in later]
        found.append(Segment(block, nodes, reads, wanted, [tensor for tensor in reads if tensor not in later]))
        later.update(reads)
    found.reverse()
    makers = {tensor: index for index, segment in enumerate(found) if segment.block for tensor in segment.wanted}
    for index, segment in enumerate(found):
        for tensor in segment.reads:
            if tensor in makers:
                maker = found[makers[tensor]]
                segment.sources.append((index - makers[tensor], maker.wanted.index(tensor)))
            else:
                segment.sources.append((tensor.key or tensor.name).removeprefix(f"{segment.block}."))
    return found


def _made(nodes: Sequence[OpNode]) -> list[TensorMeta]:
    return [tensor for node in nodes for tensor in node.outputs]


def _blocks(ir: IR, model: nn.Module, classes: Collection[str | type]) -> Callable[[OpNode], str]:
    """Return a function from nodes to blocks: the outermost module of these classes, else a member of a module list."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if classes:
        paths = {path for path, module in modules.items() if _is_one(module, classes)}
        if not paths:
            known = {type(module).__name__ for module in modules.values()}
            wanted = ", ".join(kind if isinstance(kind, str) else kind.__name__ for kind in classes)
            raise ExecutionError(f"the model has no module of class {wanted}{did_you_mean(wanted, known)}")
    else:
        lists = [path for path, module in modules.items() if isinstance(module, (nn.ModuleList, nn.Sequential))]
        paths = {f"{path}.{name}".lstrip(".") for path in lists for name, _ in modules[path].named_children()}
        paths |= {node.origin.module for node in ir.nodes if node.is_call and node.origin.module}

    def block_of(node: OpNode) -> str:
        parts = node.origin.module.split(".")
        prefixes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return next((prefix for prefix in prefixes if prefix in paths), "")

    return block_of


def _is_one(module: nn.Module, classes: Collection[str | type]) -> bool:
    kind = type(module)
    return any(wanted in (kind, kind.__name__, f"{kind.__module__}.{kind.__qualname__}") for wanted in classes)
