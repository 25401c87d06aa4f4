"""The map of a file with several entry points: which outputs of one are inputs of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch_ir.errors import GraphError, did_you_mean
from torch_ir.ir import IR, Branch, Slot, TensorMeta
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.io_tree import Tree, leaves
from torch_ir.ir.regroup.functions import further_entries

T = TypeVar("T")
EXTENSION = "entry_points"  # key in the extensions of a graph
ALONE = "output"  # the place of an output that is a tensor, not a container
_FIELDS = {"from": "source", "to": "target", "argument": "argument", "place": "place"}


@dataclass(frozen=True)
class Feed:
    """An output of one entry point that is an input of another.

    `place` is the path of the value in the outputs of `source`, and `argument` its path in the inputs of `target`. Not
    `is_direct`, code between the two changes the value, such as the scheduler of a diffusion pipeline.
    """

    source: str
    place: str
    target: str
    argument: str
    is_direct: bool = True


def entries_of(ir: IR) -> dict[str, IR]:
    """Return the entry points of a file by name; the graph itself is the one that is not a function."""
    described, further = ir.extensions.get(EXTENSION), further_entries(ir)
    names = described.get("graphs") if isinstance(described, dict) else None
    if not isinstance(names, dict) or len(outside := [name for name in names if name not in further]) != 1:
        raise GraphError(f"{ir!r} has no map of entry points; make such a graph with torch_ir.entries.extract_entries")
    return {name: ir if name == outside[0] else further[name] for name in names}


def feeds_of(ir: IR) -> list[Feed]:
    """Return the map of a file from `extract_entries` or `extract_pipeline`; raise GraphError where it does not fit."""
    graphs = entries_of(ir)
    listed: Any = ir.extensions[EXTENSION].get("edges", [])
    if not isinstance(listed, list):
        raise GraphError(f"the edges of {EXTENSION} must be a list, not {listed!r:.60}")
    found, places_of = [], EntryPlaces(graphs)
    for at, edge in enumerate(listed):
        values: dict[str, Any] = (
            {name: edge.get(key) for key, name in _FIELDS.items()} if isinstance(edge, dict) else {}
        )
        if not values or not all(isinstance(value, str) for value in values.values()):
            raise GraphError(f"edge {at} of {EXTENSION} must have the strings {', '.join(_FIELDS)}")
        found.append(places_of.checked(Feed(**values, is_direct=edge.get("direct", True) is True)))
    return found


class EntryPlaces:
    """The outputs and inputs of entry points by their paths, listed once for any number of feeds."""

    def __init__(self, graphs: dict[str, IR]) -> None:
        self._graphs = graphs
        self._outputs: dict[str, dict[str, TensorMeta]] = {}
        self._inputs: dict[str, dict[str, TensorMeta]] = {}

    def checked(self, feed: Feed) -> Feed:
        """Return the feed; raise GraphError if one of its ends does not exist, or their types differ."""
        before = self._end(feed.source, feed.place, "output", self._outputs)
        after = self._end(feed.target, feed.argument, "input", self._inputs)
        if feed.is_direct and (before.dtype, _fixed(before)) != (after.dtype, _fixed(after)):
            raise GraphError(
                f"{feed.source:.80}.{feed.place:.80} is {before.dtype}{list(before.shape)}, but "
                f"{feed.target:.80}.{feed.argument:.80} is {after.dtype}{list(after.shape)}"
            )
        return feed

    def _end(self, entry: str, path: str, kind: str, listed: dict[str, dict[str, TensorMeta]]) -> TensorMeta:
        if entry not in self._graphs:
            raise GraphError(f"there is no entry point {entry!r:.80}{did_you_mean(entry, self._graphs)}")
        if entry not in listed:
            listed[entry] = _PLACES[kind](self._graphs[entry])
        if path not in listed[entry]:
            raise GraphError(f"{entry!r:.80} has no {kind} {path!r:.80}{did_you_mean(path, listed[entry])}")
        return listed[entry][path]


def describe(graphs: dict[str, IR], feeds: Iterable[Feed]) -> dict[str, Any]:
    """Return the map as JSON, for the extensions of the graph."""
    return {
        "graphs": {name: [tensor.name for tensor in graph.graph_inputs] for name, graph in graphs.items()},
        "edges": [
            {
                **{key: getattr(feed, name) for key, name in _FIELDS.items()},
                **({} if feed.is_direct else {"direct": False}),
            }
            for feed in feeds
        ],
    }


def output_places(ir: IR) -> dict[str, TensorMeta]:
    """Return the outputs of a graph by their paths, such as `hidden_states.0`."""
    return places(ir.output_tree, ir.graph_outputs)


def input_places(ir: IR) -> dict[str, TensorMeta]:
    """Return the inputs of a graph in keyword arguments by their paths."""
    keywords = ir.input_tree.items[1]
    return places(keywords, ir.graph_inputs) if isinstance(keywords, Branch) else {}


def list_weights(ir: IR) -> None:
    """List the weights of all entry points with the graph itself, which has the table of weights of the file."""
    known = {key for param in ir.params for key in param.stored_keys}
    taken = Names(tensor.name for tensor in ir.tensors())
    for graph in further_entries(ir).values():
        for param in graph.params:
            if param.param is not None and param.param.in_state_dict and not known.issuperset(param.stored_keys):
                ir.params.append(param.copy(fresh(param.name, taken)))
                known.update(param.stored_keys)


def plain_path(path: str) -> str:
    """Return a path such as `.pooler_output[0]` as `pooler_output.0`."""
    return path.replace("[", ".").replace("]", "").replace("'", "").strip(".")


def places(tree: Tree, tensors: Sequence[T]) -> dict[str, T]:
    """Return the tensors in the slots of nested inputs or outputs by their paths."""
    return {plain_path(path) or ALONE: tensors[leaf] for path, leaf in leaves(tree) if isinstance(leaf, Slot)}


_PLACES = {"output": output_places, "input": input_places}


def _fixed(tensor: TensorMeta) -> list[int | None]:
    """Return the sizes of a tensor; None for those that vary."""
    return [dim if isinstance(dim, int) else None for dim in tensor.shape]
