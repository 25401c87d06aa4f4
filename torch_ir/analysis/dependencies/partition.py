"""Islands: connected parts of a graph that one device can run without handing over in between."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import total
from torch_ir.errors import GraphError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.ir.json.json_fields import Dim

_LEAST_WORK, _WORK_PER_NODE = 20_000_000, 1000  # sets of pieces that may be read or written
_LEAST_BYTES, _BYTES_PER_NODE = 1 << 28, 1 << 14  # of all sets
_BITS = 8192  # of a set that takes twice as long as a small one


@dataclass(frozen=True)
class Island:
    """Nodes that run together, in program order, and the bytes transferred into and out of them."""

    nodes: tuple[OpNode, ...]
    bytes_in: Dim
    bytes_out: Dim


def islands(ir: IR, chosen: Container[OpNode], weights: Container[TensorMeta] = ()) -> list[Island]:
    """Partition the chosen nodes into as few islands as greedy merging finds, ordered by first node.

    An island is connected and convex: none of its outputs comes back to it through a node outside. Nodes are visited in
    program order; each joins every island that it reads from, unless it also depends on that island through a node of
    another island or of none. So no two islands of which one reads from the other could be merged.

    `bytes_in` counts tensors that an island reads but does not produce, except params and `weights`; `bytes_out` counts
    tensors that it produces and other nodes, or the caller, read. Each tensor counts once. A node without outputs is an
    assertion: it belongs to no island, and nothing is transferred to it.

    Raises GraphError if so many islands depend on each other that this could take quadratic time or memory.
    """
    pieces = _Pieces(len(ir.nodes))
    for node in ir.nodes:
        if node.outputs:
            pieces.add(node, node in chosen)
    found = [sorted(nodes, key=pieces.positions.__getitem__) for nodes in pieces.nodes.values() if nodes[0] in chosen]
    first_come = sorted(found, key=lambda nodes: pieces.positions[nodes[0]])
    readers = {*pieces.positions, ir.returns}
    return [_with_borders(nodes, readers, weights) for nodes in first_come]


def _with_borders(nodes: list[OpNode], readers: Container[OpNode], weights: Container[TensorMeta]) -> Island:
    inside = set(nodes)
    read = dict.fromkeys(
        tensor
        for node in nodes
        for tensor in node.inputs
        if tensor.producer not in inside and tensor.param is None and tensor not in weights
    )
    made = [
        tensor
        for node in nodes
        for tensor in node.outputs
        if any(user not in inside and user in readers for user in tensor.consumers)
    ]
    return Island(tuple(nodes), total(map(bytes_of, read)), total(map(bytes_of, made)))


class _Pieces:
    """Partition of the nodes visited so far; the dependencies between pieces are acyclic, and unchosen nodes are alone.

    A piece without remaining readers is closed: nothing can join it or depend on it any more. A set of open pieces is
    an int with a bit for each; the bits of closed ones are cleared from all sets, and used again, a few at a time.
    """

    def __init__(self, count: int) -> None:
        self.positions: dict[OpNode, int] = {}
        self.piece: dict[OpNode, int] = {}
        self.nodes: dict[int, list[OpNode]] = {}
        self.before: dict[int, int] = {}  # open piece -> all pieces that must run before it
        self.readers: dict[int, int] = {}  # open piece -> number of remaining reads
        self.needed = 0  # the pieces on which others depend
        self.joinable: set[int] = set()
        self._bits: dict[int, int] = {}  # open piece -> its bit
        self._free: list[int] = []
        self._closed: list[int] = []  # bits of closed pieces that may be in sets
        self._work = Budget(max(_LEAST_WORK, _WORK_PER_NODE * count))
        self._most_bytes = max(_LEAST_BYTES, _BYTES_PER_NODE * count)

    def add(self, node: OpNode, is_chosen: bool) -> None:
        self.positions[node] = len(self.positions)
        reads = [self.piece[tensor.producer] for tensor in node.inputs if tensor.producer in self.piece]
        sources = set(reads)
        joined = self._joinable(sources) if is_chosen else []
        own = max(joined, key=lambda piece: len(self.nodes[piece]), default=self.positions[node])
        if not joined:
            self._bits[own] = self._new_bit()
        self._merge(own, [piece for piece in joined if piece != own])
        known = self.before.get(own, 0)
        self.before[own] = known | self._all_before(sources - set(joined))
        self.needed |= self.before[own]
        if joined and self.before[own] != known:
            self._add_predecessors(self._bits[own], self.before[own])
        self.piece[node] = own
        self.nodes.setdefault(own, []).append(node)
        if is_chosen:
            self.joinable.add(own)
        uses = sum(bool(user.outputs) for tensor in node.outputs for user in tensor.consumers)
        self.readers[own] = self.readers.get(own, 0) + uses
        for piece in [own if piece in joined else piece for piece in reads]:
            self.readers[piece] -= 1
        for piece in {own, *sources.difference(joined)}:
            if not self.readers[piece]:
                del self.before[piece], self.readers[piece]
                self._closed.append(self._bits.pop(piece))

    def _joinable(self, sources: Iterable[int]) -> list[int]:
        """Return the sources that are islands and on which no other source depends."""
        reached = 0
        for source in sources:
            reached |= self.before[source]
        return [piece for piece in sources if piece in self.joinable and not reached & self._bits[piece]]

    def _merge(self, own: int, others: list[int]) -> None:
        """Merge other pieces, which are independent of it, into a piece."""
        if not others:
            return
        mask = self._bits[own]
        for other in others:
            self.piece.update(dict.fromkeys(self.nodes[other], own))
            self.nodes[own] += self.nodes.pop(other)
            self.before[own] |= self.before.pop(other)
            self.readers[own] += self.readers.pop(other)
            self._closed.append(self._bits.pop(other))
            mask |= self._closed[-1]
        self._add_predecessors(mask, self.before[own] | self._bits[own])

    def _add_predecessors(self, pieces: int, needed: int) -> None:
        """Add predecessors to every piece that depends on one of these pieces."""
        mask = pieces & self.needed
        if not mask:
            return
        self._spend(len(self.before), needed)
        for piece, before in self.before.items():
            if before & mask:
                self.before[piece] = before | needed

    def _all_before(self, pieces: Iterable[int]) -> int:
        needed = 0
        for piece in pieces:
            self._spend(1, needed)
            needed |= self.before[piece] | self._bits[piece]
        return needed

    def _new_bit(self) -> int:
        """Return a bit that no set has."""
        if not self._free and len(self._closed) > len(self.before):
            gone = sum(self._closed)
            self._spend(len(self.before), gone)
            self.before = {piece: before & ~gone for piece, before in self.before.items()}
            self.needed &= ~gone
            self._free, self._closed = self._closed, []
        if self._free:
            return self._free.pop()
        count = len(self._bits) + len(self._closed)
        _require(len(self.before) * count // 8 < self._most_bytes)
        return 1 << count

    def _spend(self, sets: int, largest: int) -> None:
        """Count sets that are read or written."""
        _require(self._work.take(sets * (1 + largest.bit_length() // _BITS)))


def _require(is_bounded: bool) -> None:
    if not is_bounded:
        raise GraphError("the chosen nodes depend on each other in too many ways to be partitioned into islands")
