"""Repeated blocks: one shared function for equal layers of a model, and one call for each layer.

    before   126 times 62 nodes, from `model.layers.0` to `model.layers.125`
    after    model_layers_0: float32[1, 8, 4096] = LlamaDecoderLayer(input=embedding, function=@LlamaDecoderLayer, ...)
             and so on, over one function of 62 nodes

A block is a call of a module whose name is a number, as in module lists, or that is called several times. Blocks are
equal if only names and weights differ. Inlining restores exactly the original graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from torch_ir.ir.graph.attr_types import FunctionRef, values_in
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.node import OpNode, Origin
from torch_ir.ir.graph.origins import call_around, modules_around, placed_in, seen_from
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.regroup.functions import CALL, FUSED, called_by, captured_names, element_name, holds_modules
from torch_ir.ir.regroup.granularity import identifier, is_gap, local_name, public_name, short

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_Run = tuple[tuple[str, int], int, list[OpNode]]  # module call, position, nodes
_LEAST = 2  # nodes of a block; a function of one node would save nothing


def fold_blocks(ir: IR) -> IR:
    """Return a copy of a graph in which repeated blocks are calls; equal blocks share one function."""
    groups = _Search(ir).groups()
    return _Folding(ir).folded(groups) if groups else ir.clone()


def has_blocks(ir: IR) -> bool:
    """Whether any node is a call of a module that ran other modules, except fused operators."""
    calls = [node for node in ir.nodes if node.is_call and not node.op_type.startswith(FUSED)]
    return any(holds_modules(ir.functions[name]) for name in called_by(calls))


class _Block:
    """Adjacent nodes from one module call, at positions `start` to `stop` in the graph."""

    __slots__ = ("call", "nodes", "op_type", "reads", "start", "stop")

    def __init__(self, start: int, nodes: list[OpNode], call: Origin, op_type: str) -> None:
        self.start = start
        self.stop = start + len(nodes)
        self.nodes = nodes
        self.op_type = op_type
        has_lines = all(node.origin.source for node in nodes)  # a node without a line would get that of the call
        self.call = call._replace(source=nodes[-1].origin.source if has_lines else "")
        self.reads: list[TensorMeta] = []

    def structure(self, captured: set[str]) -> Hashable | None:
        """Return a key of what the block computes, independent of names; None if inlining could not restore it."""
        numbers: dict[TensorMeta, int] = {}
        rows: list[Hashable] = []
        for node in self.nodes:
            name, computation, origin = node.name, node.computation, self._seen(node.origin)
            if origin is None or node.origins != (name,):
                return None
            if any(isinstance(value, FunctionRef) for value in values_in(node.attrs)):
                return None
            read = []
            for tensor in node.inputs:
                number = numbers.get(tensor)
                if number is None:
                    number = numbers[tensor] = len(numbers)
                    self.reads.append(tensor)
                    rows.append((tensor.shape, tensor.dtype, tensor.stride, tensor.placement, tensor.param is None))
                read.append(number)
            rows.append((computation, origin, tuple(read)))
            for tensor in node._outputs:
                numbers[tensor] = len(numbers)
                suffix = tensor.name[len(name) :]
                if tensor.name != name and tensor.name != element_name(name, suffix, captured):
                    return None
                rows.append((suffix.rstrip("_") or suffix, tensor.shape, tensor.dtype, tensor.stride, tensor.placement))
        return tuple(rows)

    def _seen(self, origin: Origin) -> Hashable | None:
        """Return the part of an origin that is equal in equal blocks; None if it cannot be derived from the call."""
        module, number, module_class, source, outer, function = origin
        call = self.call
        if not (outer or function or call.call or call.outer):
            return module[len(call.module) + 1 :], number, module_class, "" if source == call.source else source
        inside = seen_from(call, origin)
        if placed_in(call, inside) != origin:
            return None
        changed = [text for text in inside.outer if not text.endswith("@0")]
        return inside.module, inside.call, module_class, inside.source, *changed

    def has_origins_of(self, first: _Block) -> bool:
        """Whether the nodes get the right origins if the body is that of another block."""
        if not (self.call.call or first.call.call or self.call.outer or first.call.outer):
            return True
        pairs = zip(self.nodes, first.nodes, strict=True)
        return all(mine.origin == placed_in(self.call, seen_from(first.call, its.origin)) for mine, its in pairs)

    def gives(self, position: dict[OpNode, int]) -> set[int]:
        """Return the indices, among the block's outputs, of those that are read after it."""
        made = (tensor for node in self.nodes for tensor in node.outputs)
        last = self.stop - 1
        return {at for at, tensor in enumerate(made) if any(position.get(user, 0) > last for user in tensor._uses)}


class _Search:
    """Finds repeated blocks: outermost first, then inside blocks that do not repeat."""

    def __init__(self, ir: IR) -> None:
        self._ir = ir
        self._captured = captured_names(ir)
        self._bound = {symbol.tensor for symbol in ir.symbols.values() if symbol.tensor is not None}
        again = {node.origin.module for node in ir.nodes if node.origin.call}
        self._again = again.union(text.rpartition("@")[0] for node in ir.nodes for text in node.origin.outer)
        self._paths: dict[str, list[str]] = {}

    def groups(self) -> list[list[_Block]]:
        """Return groups of two or more equal blocks; no two blocks share a node."""
        found: list[list[_Block]] = []
        level, pieces = 0, [(0, self._ir.nodes)]
        while pieces:
            by_structure: dict[Hashable, list[_Block]] = {}
            for block in self._blocks(pieces, level):
                structure = None if self._is_bound(block) else block.structure(self._captured)
                key = block if structure is None else (block.op_type, structure)
                by_structure.setdefault(key, []).append(block)
            pieces = []
            for blocks in by_structure.values():
                first = max(blocks, key=lambda block: block.call.call > 0)  # its inner calls are numbered
                has_gap = any(map(is_gap, first.nodes))  # must stay visible
                equal = [] if has_gap else [each for each in blocks if each is not first and each.has_origins_of(first)]
                found += [[first, *equal]] if equal else []
                inside = {first, *equal} if equal else set()
                pieces += [(block.start, block.nodes) for block in blocks if block not in inside]
            level += 1
        return found

    def _blocks(self, pieces: Iterable[tuple[int, list[OpNode]]], level: int) -> Iterator[_Block]:
        """Yield calls of possibly repeated modules that are nested in `level` other such modules.

        If other nodes interrupt a call, its parts are numbered, as none of them is the whole module.
        """
        runs = [run for start, nodes in pieces for run in self._runs(start, nodes, level)]
        sizes = Counter(call for call, _, _ in runs)
        parts: Counter[tuple[str, int]] = Counter()
        for call, start, nodes in runs:
            part = f"[{parts[call]}]" if sizes[call] > 1 else ""
            parts[call] += 1
            if len(nodes) >= _LEAST:
                name = public_name(self._ir.modules.get(call[0], ""))
                origin = call_around(nodes[0].origin, call[0])._replace(module_class=short(name), function="")
                yield _Block(start, nodes, origin, f"{name or CALL}{part}")

    def _runs(self, start: int, nodes: list[OpNode], level: int) -> Iterator[_Run]:
        """Yield runs of adjacent nodes from one module call."""
        first, now = 0, ("", 0)
        for at, node in enumerate(nodes):
            call = self._call(node.origin, level)
            if call != now:
                if now[0]:
                    yield now, start + first, nodes[first:at]
                first, now = at, call
        if now[0]:
            yield now, start + first, nodes[first:]

    def _call(self, origin: Origin, level: int) -> tuple[str, int]:
        """Return the path and call number of the possibly repeated module at this level; an empty path if none."""
        paths = self._paths.get(origin.module)
        if paths is None:
            paths = self._paths[origin.module] = self._repeatable(origin.module)
        if len(paths) <= level:
            return "", 0
        is_first = not origin.call and not origin.outer
        return paths[level], 0 if is_first else call_around(origin, paths[level]).call

    def _repeatable(self, module: str) -> list[str]:
        """Return the possibly repeated modules that contain a node, outermost first."""
        paths = modules_around(module)[1:]
        return [path for path in paths if path.rpartition(".")[2].isdecimal() or path in self._again]

    def _is_bound(self, block: _Block) -> bool:
        """Whether a tensor of the block determines a size of the graph, which must stay outside functions."""
        return bool(self._bound) and any(tensor in self._bound for node in block.nodes for tensor in node.outputs)


class _Folding:
    """Builds the graph with calls; only nodes outside functions are copied."""

    def __init__(self, ir: IR) -> None:
        self._ir = ir
        self._copies: dict[TensorMeta, TensorMeta] = {}
        self._position = {node: at for at, node in enumerate(ir.nodes)}
        self._position[ir.returns] = len(ir.nodes)
        self._names = Names(node.name for node in ir.nodes)  # also those inside functions, which may be inlined again
        self._functions = {name: body.clone() for name, body in ir.functions.items()}
        self._function_names = Names(self._functions)

    def folded(self, groups: Iterable[Sequence[_Block]]) -> IR:
        calls: dict[int, tuple[_Block, OpNode]] = {}
        for blocks in groups:
            gives = sorted(set().union(*(block.gives(self._position) for block in blocks)))
            if gives:
                calls.update((block.start, (block, call)) for block, call in self._calls(blocks, gives))
        nodes, at = [], 0
        while at < len(self._ir.nodes):
            if at in calls:
                block, call = calls[at]
                call.name = fresh(identifier(block.call.module), self._names)
                nodes.append(call)
                at = block.stop
            else:
                nodes.append(self._ir.nodes[at].copy(self._copied))
                at += 1
        return self._ir._rebuilt(nodes, self._copied, self._functions)

    def _calls(self, blocks: Sequence[_Block], gives: Sequence[int]) -> Iterator[tuple[_Block, OpNode]]:
        """Create a function from the first of equal blocks; yield an unnamed call for each block."""
        op_type = blocks[0].op_type
        name = fresh(identifier(short(op_type)), self._function_names)
        self._functions[name] = body = self._body(blocks[0], gives)
        args = [tensor.name for tensor in body.graph_inputs]
        for block in blocks:
            made = [tensor for node in block.nodes for tensor in node.outputs]
            yield (
                block,
                OpNode(
                    "",
                    op_type,
                    map(self._copied, block.reads),
                    [self._copied(made[place]) for place in gives],
                    {"function": FunctionRef(name)},
                    args=args,
                    origin=block.call,
                    origins=[node.name for node in block.nodes],
                ),
            )

    def _body(self, block: _Block, gives: Sequence[int]) -> IR:
        copies = {tensor: tensor.copy() for node in block.nodes for tensor in node.outputs}
        made = list(copies.values())
        taken = Names(tensor.name for tensor in made)
        for tensor in block.reads:
            copies[tensor] = tensor.copy(fresh(local_name(tensor, block.call.module), taken))
            copies[tensor].param = None
        nodes = [node.copy(copies.__getitem__) for node in block.nodes]
        for node in nodes:
            node.origin = seen_from(block.call, node.origin)
        return type(self._ir)(nodes, [copies[tensor] for tensor in block.reads], [made[place] for place in gives])

    def _copied(self, tensor: TensorMeta) -> TensorMeta:
        if tensor not in self._copies:
            self._copies[tensor] = tensor.copy()
        return self._copies[tensor]
