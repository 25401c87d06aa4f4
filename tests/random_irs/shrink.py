"""Reduce a failing graph: remove everything from its document that the failure does not need."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from torch_ir.errors import TorchIRError
from torch_ir.ir import IR

Record = dict[str, Any]
_KEPT = frozenset(("format", "version", "name", "op_type", "shape", "dtype", "min", "max", "tensor", "dim"))
_MOST_TRIES = 3000


def shrunk(ir: IR, fails: Callable[[IR], bool]) -> IR:
    """The graph without nodes, functions, weights, attributes and other things that it fails without."""
    document = ir.to_dict()
    tries = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(document):
            tries += 1
            if tries > _MOST_TRIES:
                break
            if (found := _read(candidate)) is not None and fails(found):
                document, is_smaller = candidate, True
                break
    return IR.from_dict(document)


def _read(document: Record) -> IR | None:
    try:
        return IR.from_dict(document)
    except TorchIRError:
        return None


def _smaller(document: Record) -> Iterator[Record]:
    """The document without one node, then without one entry of any list or object."""
    for index in reversed(range(len(document["nodes"]))):
        yield _without_node(document, index)
    for path in _paths(document):
        copy = _copied(document)
        holder = copy
        for step in path[:-1]:
            holder = holder[step]
        del holder[path[-1]]
        yield copy


def _without_node(document: Record, index: int) -> Record:
    """Remove a node and make its used outputs graph inputs."""
    copy = _copied(document)
    gone = copy["nodes"].pop(index)
    for key in ("input_tree", "output_tree"):
        copy.pop(key, None)
    made = {tensor["name"]: tensor for tensor in gone["outputs"]}
    reads = [read for node in copy["nodes"] for read in node["inputs"] if read["name"] in made]
    for read in reads:
        read.update(producer_node=read["name"], producer_output_idx=0)
    named = {*(read["name"] for read in reads), *(tensor["name"] for tensor in copy["graph_outputs"])}
    copy["graph_inputs"] += [tensor for name, tensor in made.items() if name in named]
    return copy


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all entries, outer ones first."""
    if isinstance(value, dict):
        steps: list[Any] = [key for key in value if key not in _KEPT]
    else:
        steps = list(range(len(value))) if isinstance(value, list) else []
    yield from ((*path, step) for step in reversed(steps))
    for step in steps:
        yield from _paths(value[step], (*path, step))


def _copied(document: Record) -> Record:
    copy: Record = json.loads(json.dumps(document))
    return copy
