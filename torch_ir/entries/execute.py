"""Run the entry points of a file, one by one or along their map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from torch import Tensor

from torch_ir.entries.entry_feeds import EXTENSION, Feed, entries_of, feeds_of
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR
from torch_ir.run import IRExecutor
from torch_ir.run.weight_files import weights_for, weights_read


def bind_entries(ir: IR, weights: Mapping[str, Tensor]) -> dict[str, IRExecutor]:
    """Return an executor for each entry point of a file, by name."""
    graphs = entries_of(ir)
    bound = weights_for(graphs.values(), weights)
    return {name: IRExecutor(graph, weights_read(graph, bound)) for name, graph in graphs.items()}


def run_entries(ir: IR, weights: Mapping[str, Tensor], inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Run every entry point once, in the order of the map; return the outputs by entry.

    `inputs` are the keyword inputs of each entry point that no other one returns.
    """
    feeds, names = feeds_of(ir), entries_of(ir)
    for feed in feeds:
        if not feed.is_direct or "." in feed.argument:
            raise ExecutionError(f"code between {feed.source} and {feed.target} is not in the file; call bind_entries")
    given: set[tuple[str, str]] = set()
    for name, values in inputs.items():
        if name not in names:
            raise ExecutionError(f"there is no entry point {name!r:.80}; the file has {', '.join(names)}")
        if not isinstance(values, Mapping):
            raise ExecutionError(f"the inputs of {name} must be a dict by name, not {type(values).__name__}")
        given |= {(name, argument) for argument in values}
    for feed in feeds:
        if (feed.target, feed.argument) in given:
            raise ExecutionError(f"{feed.target}.{feed.argument} has another value than {feed.source}.{feed.place}")
        given.add((feed.target, feed.argument))
    order = _in_order(names, feeds)
    executors = bind_entries(ir, weights)
    results: dict[str, Any] = {}
    for name, own in order:
        fed = {feed.argument: _value(results, feed) for feed in own}
        results[name] = executors[name](**{**inputs.get(name, {}), **fed})
    return results


def _in_order(names: Iterable[str], feeds: list[Feed]) -> list[tuple[str, list[Feed]]]:
    """Return the entry points with their feeds, each after those that feed it."""
    by_target: dict[str, list[Feed]] = {name: [] for name in names}
    for feed in feeds:
        by_target[feed.target].append(feed)
    order = TopologicalSorter({name: {feed.source for feed in own} for name, own in by_target.items()})
    try:
        return [(name, by_target[name]) for name in order.static_order()]
    except CycleError:
        raise ExecutionError(f"the map in extensions.{EXTENSION} has a cycle; call bind_entries") from None


def _value(results: Mapping[str, Any], feed: Feed) -> Any:
    """Return the value at a place of the outputs of an entry point."""
    value = results[feed.source]
    if isinstance(value, Tensor):
        return value
    try:
        for part in feed.place.split("."):
            is_name = not part.isdecimal() or (isinstance(value, Mapping) and part in value)
            value = value[part if is_name else int(part)]
    except (LookupError, TypeError, ValueError):  # a key with a dot, or one that is not text
        message = f"{feed.source:.80} returns {feed.place:.80} under another key; call bind_entries"
        raise ExecutionError(message) from None
    return value
