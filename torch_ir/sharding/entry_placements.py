"""Placements of the inputs and outputs of a graph and its further entry points.

A file may contain several graphs over one table of weights, such as prefill and decode of a language model. An output
of one that is an input of another under the same name, such as a cache, stays sharded between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from torch_ir.errors import ShardError, did_you_mean, listed
from torch_ir.ir import IR, Branch, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Tree, leaves
from torch_ir.ir.graph.placements import REPLICATE, Placement, Shard, counted, parse
from torch_ir.ir.graph.training_parts import EXTENSION
from torch_ir.ir.regroup.functions import further_entries

_KEYWORDS = "[1]"  # the keyword arguments in the structure of a call
_WILDCARDS = frozenset("*?[")
_MOST_PATTERNS = 100  # each is compared with each input or output
_LONGEST = 1000  # characters of a pattern
_MOST_SHOWN = 8  # names in an error


def all_entries(ir: IR) -> Iterator[IR]:
    """Yield the graph itself and all further entry points."""
    yield ir
    for entry in further_entries(ir).values():
        yield from all_entries(entry)


class Ends:
    """Placements of inputs and outputs: as requested by name, else as their producer returns them, else replicated."""

    def __init__(self, ir: IR, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        self._inputs, self._outputs = _Requests(inputs), _Requests(outputs)
        entries = list(all_entries(ir))
        given = {tensor.name for entry in entries for tensor in entry.graph_inputs}
        made = {tensor.name for entry in entries for tensor in entry.graph_outputs}
        _refuse_unknown(inputs, "input", given, made)
        _refuse_unknown(outputs, "output", made, given)
        further = (entry for body in further_entries(ir).values() for entry in all_entries(body))
        self._taken = {path for entry in further for path in _keyword_paths(entry)}
        self._carried: dict[str, Placement] = {}  # of values passed between entry points

    def of_inputs(self, ir: IR) -> list[Placement]:
        """Return the placement of each input of an entry point."""
        paths = {slot: path for path, slot in _keyword_paths(ir).items()}
        return [
            self._inputs.of(tensor) or self._carried.get(paths.get(index, ""), REPLICATE)
            for index, tensor in enumerate(ir.graph_inputs)
        ]

    def of_outputs(self, ir: IR, made: Callable[[TensorMeta], Placement]) -> list[Placement]:
        """Return the placement of each output of an entry point; `made` returns that of an unrequested one."""
        paths = {slot: path for path, slot in _slots(ir.output_tree)}
        return [self._of_output(tensor, paths.get(index, ""), made) for index, tensor in enumerate(ir.graph_outputs)]

    def _of_output(self, tensor: TensorMeta, path: str, made: Callable[[TensorMeta], Placement]) -> Placement:
        requested = self._outputs.of(tensor)
        if path not in self._taken:
            return requested or REPLICATE
        place = requested or self._carried.get(path) or made(tensor)
        return self._carried.setdefault(path, place if isinstance(place, Shard) else REPLICATE)


def gradients_of(ir: IR) -> dict[str, TensorMeta]:
    """Return the gradients that a training step computes, by parameter key: results of its backward entry point."""
    by_name = {tensor.name: tensor for node in ir.nodes for tensor in node.outputs}
    found = {}
    for entry in (ir, *further_entries(ir).values()):
        tree = entry.output_tree
        fields = dict(zip(tree.keys, tree.items, strict=True)) if isinstance(tree, Branch) and tree.keys else {}
        gradients = fields.get("gradients") if EXTENSION in entry.extensions else None
        if not isinstance(gradients, Branch) or gradients.kind != "dict":
            continue
        for key, slot in zip(gradients.keys, gradients.items, strict=True):
            if isinstance(slot, Slot) and entry.graph_outputs[slot].name in by_name:
                found[key] = by_name[entry.graph_outputs[slot].name]
    return found


class _Requests:
    """Placements by the name of a tensor, or by a pattern with `*`; the first that fits is taken."""

    def __init__(self, table: Mapping[str, str]) -> None:
        rows = [(at, name, parse(text)) for at, (name, text) in enumerate(table.items())]
        self._exact = {name: (at, place) for at, name, place in rows if _WILDCARDS.isdisjoint(name)}
        self._patterns = [(at, name, place) for at, name, place in rows if name not in self._exact]
        if len(self._patterns) > _MOST_PATTERNS or any(len(name) > _LONGEST for _, name, _ in self._patterns):
            raise ShardError(f"at most {_MOST_PATTERNS} placements may have '*', of {_LONGEST} characters each")

    def of(self, tensor: TensorMeta) -> Placement | None:
        """Return the placement of a tensor; None if there is no request for it."""
        first, place = self._exact.get(tensor.name, (math.inf, None))
        earlier = (each for at, name, each in self._patterns if at < first and fnmatchcase(tensor.name, name))
        found = next(earlier, place)
        return None if found is None else counted(found, len(tensor.shape))


def _refuse_unknown(table: Mapping[str, str], kind: str, names: Collection[str], others: Collection[str]) -> None:
    """Raise ShardError for a name of no such tensor; a pattern may be that of inputs or outputs."""
    known = set(names)
    for name in table:
        is_pattern = not _WILDCARDS.isdisjoint(name)
        if name not in known and not (is_pattern and any(fnmatchcase(each, name) for each in (*known, *others))):
            nearest = did_you_mean(name, known) or f"; {kind}s: {listed(sorted(known), _MOST_SHOWN) or 'none'}"
            raise ShardError(f"the graph has no {kind} {name!r:.80}{nearest}")


def _slots(tree: Tree) -> Iterable[tuple[str, int]]:
    return ((path, leaf) for path, leaf in leaves(tree) if isinstance(leaf, Slot))


def _keyword_paths(ir: IR) -> dict[str, int]:
    """Return the keyword inputs, as `['cache']['layers.0.key']`, with their positions."""
    return {
        path.removeprefix(_KEYWORDS): slot for path, slot in _slots(ir.input_tree) if path.startswith(f"{_KEYWORDS}[")
    }
