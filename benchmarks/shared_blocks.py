"""Count equal blocks in the graphs of a sweep, ignoring names.

python -m benchmarks.shared_blocks results

A block is what one module computes, with all inside it: operators, attributes, wiring, shapes and dtypes. Two blocks
with the same digest could be stored once.
"""

import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from torch_ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.origins import call_around, modules_around

_LEAST = 3  # nodes; a reference to a smaller block would be as long as the block


def blocks_of(ir: IR) -> Iterator[list[OpNode]]:
    """Return the nodes of every module with at least `_LEAST` nodes, in order."""
    found: dict[tuple[str, int], list[OpNode]] = defaultdict(list)
    for node in ir.nodes:
        for path in modules_around(node.origin.module)[1:] if node.origin else ():
            found[call_around(node.origin, path)[:2]].append(node)
    return (nodes for nodes in found.values() if len(nodes) >= _LEAST)


def digest_of(nodes: list[OpNode]) -> str:
    """Return a key that is equal for blocks that compute the same on inputs of the same shapes."""
    numbers: dict[TensorMeta, int] = {}
    told = []
    for node in nodes:
        for tensor in (*node.inputs, *node.outputs):
            if tensor not in numbers:
                numbers[tensor] = len(numbers)
                told.append((tensor.shape, tensor.dtype, tensor.param is None))
        wires = [numbers[tensor] for tensor in (*node.inputs, *node.outputs)]
        told.append((node.op_type, node.args, repr(node.attrs), wires))
    return hashlib.sha256(repr(told).encode()).hexdigest()


def main(folder: str) -> None:
    """Print the number of blocks, of distinct blocks, and of nodes in blocks that another model also has."""
    models: dict[str, set[str]] = defaultdict(set)
    count: Counter[str] = Counter()
    members: dict[str, list[tuple[str, list[str]]]] = {}
    nodes = 0
    for path in sorted(Path(folder, "graphs").glob("*.json")):
        ir = IR.load(path)
        nodes += len(ir.nodes)
        members[path.stem] = [(digest_of(block), [node.name for node in block]) for block in blocks_of(ir)]
        for digest, _ in members[path.stem]:
            count[digest] += 1
            models[digest].add(path.stem)
    within = sum(_covered(blocks, lambda digest: count[digest] > 1) for blocks in members.values())
    across = sum(_covered(blocks, lambda digest: len(models[digest]) > 1) for blocks in members.values())
    saved = _saved(members.values())
    print(f"{len(members)} graphs, {nodes:,} nodes, {count.total():,} blocks, {len(count):,} of them different")
    print(f"{within / nodes:.1%} of the nodes lie in a block that there is twice, {across / nodes:.1%} in two models")
    print(f"with equal blocks stored once, {nodes - saved:,} nodes and references are left: {1 - saved / nodes:.1%}")


def _covered(blocks: list[tuple[str, list[str]]], is_shared: Callable[[str], bool]) -> int:
    return len({name for digest, names in blocks if is_shared(digest) for name in names})


def _saved(graphs: Iterable[list[tuple[str, list[str]]]]) -> int:
    """Return the number of nodes saved if every repeated block is stored as one reference."""
    seen: set[str] = set()
    saved = 0
    for blocks in graphs:
        told: set[str] = set()
        for digest, names in sorted(blocks, key=lambda block: -len(block[1])):
            if digest in seen and told.isdisjoint(names):
                told.update(names)
                saved += len(names) - 1
            seen.add(digest)
    return saved


if __name__ == "__main__":
    main(sys.argv[1])
