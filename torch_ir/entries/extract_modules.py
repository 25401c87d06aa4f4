"""Capture several calls of a model, or of several modules, as entry points of one file over one table of weights."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from torch_ir.capture import extract_ir
from torch_ir.entries.entry_feeds import EXTENSION, EntryPlaces, Feed, describe, list_weights
from torch_ir.errors import ExportError, GraphError
from torch_ir.ir import IR


@dataclass(frozen=True)
class Entry:
    """One entry point: the call of a module or method, with an example of its keyword inputs."""

    call: str  # path from the model, such as `get_text_features` or `vae.decode`; "" is the model's forward
    inputs: Mapping[str, Any]
    dynamic_shapes: Mapping[str, Any] | None = None
    fixed: Mapping[str, Tensor] = field(default_factory=dict)


def extract_entries(
    model: nn.Module | Mapping[str, nn.Module],
    entries: Mapping[str, Entry],
    *,
    feeds: Mapping[str, str] | None = None,
    model_name: str | None = None,
    blocks: str = "inline",
) -> IR:
    """Capture each entry without reading weights: the IR is the first one, the others are its functions.

    `model` is one model, or modules by name, whose weights have the keys `name.key`. Weights that several entries read
    are in the file once. `feeds` says which inputs are outputs of other entries, such as
    `{"scores.text_embeds": "text.pooler_output"}`; it is kept in the file, and `feeds_of` returns it.
    """
    if not entries:
        raise ExportError("no entries were given; pass at least one")
    root = model if isinstance(model, nn.Module) else joined(model)
    name = model_name or (type(root).__name__ if root is model else "Modules")
    graphs = {each: _extract(root, entry, f"{name}.{each}", blocks) for each, entry in entries.items()}
    try:
        places = EntryPlaces(graphs)
        found = [places.checked(_feed(target, source)) for target, source in (feeds or {}).items()]
    except GraphError as error:
        raise ExportError(f"feeds: {error}") from error
    return join(graphs, found)


def join(graphs: dict[str, IR], feeds: list[Feed]) -> IR:
    """Return one file: the first graph with the others as functions, and their map."""
    main, *others = graphs
    ir = graphs[main]
    clash = next((name for name in others if name in ir.functions), None)
    if clash is not None:
        raise ExportError(f"{main!r} has a function with the name of the entry {clash!r}; rename the entry")
    ir.functions.update({name: graphs[name] for name in others})
    ir.extensions[EXTENSION] = describe(graphs, feeds)
    list_weights(ir)
    return ir.check()


def joined(modules: Mapping[str, nn.Module]) -> nn.Module:
    """Return one module that has all of them, so that the keys of their weights differ."""
    root = nn.Module()
    for name, module in modules.items():
        root.add_module(name, module)
    return root.eval() if not any(module.training for module in modules.values()) else root


def call_of(root: nn.Module, path: str) -> Callable[..., Any]:
    """Return the module or method at a path of a model."""
    try:
        found: Callable[..., Any] = attrgetter(path)(root) if path else root.forward
    except AttributeError as error:
        raise ExportError(f"there is no {path!r} to call: {error}") from None
    return found


def entry_module(root: nn.Module, function: Callable[..., Any], names: list[str]) -> nn.Module:
    """Return the model with this function as its forward; keys and module paths stay those of the model."""
    module = copy.copy(root)

    def forward(**inputs: Any) -> Any:
        return function(**inputs)

    words = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    forward.__signature__ = inspect.Signature(words)  # type: ignore[attr-defined]  # read by torch
    module.forward = forward
    return module


def _extract(root: nn.Module, entry: Entry, name: str, blocks: str) -> IR:
    inputs = dict(entry.inputs)
    module = entry_module(root, call_of(root, entry.call), [*inputs, *entry.fixed])
    shapes = None if entry.dynamic_shapes is None else {**dict.fromkeys(inputs), **entry.dynamic_shapes}
    return extract_ir(
        module,
        (),
        kwargs=inputs,
        dynamic_shapes=shapes,
        strict=False,
        model_name=name,
        fixed=entry.fixed,
        blocks=blocks,
    )


def _feed(target: str, source: str) -> Feed:
    (entry, _, argument), (giver, _, place) = target.partition("."), source.partition(".")
    return Feed(giver, place or "output", entry, argument)
