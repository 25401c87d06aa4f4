"""Conversion of torch's pytrees to the IR's structures, and access to values by structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch_ir.errors import ExecutionError
from torch_ir.ir import Branch, Slot
from torch_ir.ir.graph.io_tree import Record, Tree, rebuild
from torch_ir.ops.torch_internals import pytree
from torch_ir.ops.torch_types import to_name, to_torch

_KINDS: dict[type, str] = {tuple: "tuple", list: "list", dict: "dict"}

# what a graph returns instead of a model's own object: torch flattens it as it would the object
pytree.register_pytree_node(
    Record,
    lambda record: (list(record.values()), list(record)),
    lambda items, keys: Record(zip(keys, items, strict=True)),
    serialized_type_name="torch_ir.Record",
)


def to_structure(spec: pytree.TreeSpec, leaves: Iterator[Tree]) -> Tree:
    """Convert a torch tree, with `leaves` filled in from left to right."""
    if spec.type is None:
        return next(leaves)
    items = tuple(to_structure(child, leaves) for child in spec.children())
    made = spec.context if isinstance(spec.context, type) else spec.type  # the class of a named tuple
    type_name = "" if made in _KINDS else f"{made.__module__}.{made.__qualname__}"
    if issubclass(made, tuple):
        fields: Any = getattr(made, "_fields", None) or getattr(made, "__match_args__", ())
        return Branch("tuple", items, fields, type_name)
    return Branch(_KINDS.get(made, "object"), items, _keys(spec.context, len(items)), type_name)


def _keys(context: Any, count: int) -> tuple[Any, ...]:
    """Return dict keys, or field names of an object: the list of `count` plain values in torch's context."""
    if not isinstance(context, (list, tuple)):
        return ()
    if len(context) == count and all(isinstance(key, (str, int, float, bytes)) for key in context):
        return tuple(context)
    return next((keys for part in context if (keys := _keys(part, count))), ())


def structure_of(value: Any, leaf: Callable[[int, Any], Tree]) -> Tree:
    """Return the structure of a value; `leaf` maps the i-th leaf."""
    leaves, spec = pytree.tree_flatten(value)
    return to_structure(spec, (leaf(index, item) for index, item in enumerate(leaves)))


_KEYWORDS = "keywords"  # the path of the keyword arguments of a call, which have no order


def values_of_call(tree: Branch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the graph's inputs from a call in the model's signature; other arguments must equal the captured ones."""
    values = dict(slots_of_call(tree, args, kwargs))
    return [values[index] for index in range(len(values))]


def slots_of_call(tree: Branch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int, Any]]:
    """Return the same inputs, each with its slot, in the order of `leaves`."""
    values: list[tuple[int, Any]] = []
    positional, keywords = tree.items
    for path, leaf, value in [*values_along(positional, args, "inputs"), *values_along(keywords, kwargs, _KEYWORDS)]:
        if isinstance(leaf, Slot):
            values.append((leaf, value))
        elif not is_same_value(to_name(value), leaf):
            raise ExecutionError(f"{path} is {value!r:.60}, but the graph was captured for {to_torch(leaf)!r:.60}")
    return values


def is_same_value(value: Any, captured: Any) -> bool:
    """Whether Python code cannot distinguish a value from the captured one: same type, equal, same sign of zero."""
    kinds: tuple[Any, ...] = (bool, int, float, complex)
    for kind in kinds:
        if isinstance(captured, kind):
            same_kind = isinstance(value, kind) and isinstance(value, bool) == isinstance(captured, bool)
            return same_kind and (value == captured or value != value) and repr(kind(value)) == repr(kind(captured))
    return value is captured or (isinstance(value, type(captured)) and bool(value == captured))


def call_of(tree: Branch, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and keywords of a model call with these tensors."""
    args, kwargs = rebuild(tree, values, to_torch)
    return args, kwargs


def values_along(tree: Tree, value: Any, path: str = "") -> Iterator[tuple[str, Tree, Any]]:
    """Yield each leaf of a structure with the value at its place: (path, leaf, value)."""
    if not isinstance(tree, Branch):
        yield path, tree, value
        return
    for (label, item), child in zip(_children(tree, value, path), tree.items, strict=True):
        yield from values_along(child, item, path + label)


def _children(tree: Branch, value: Any, path: str) -> list[tuple[str, Any]]:
    if tree.kind == "dict":
        if not isinstance(value, dict) or set(value) != set(tree.keys):
            given = list(value) if isinstance(value, dict) else type(value).__name__
            raise ExecutionError(f"{path}: expected a dict with keys {list(tree.keys)}, got {given}")
        if path != _KEYWORDS and list(value) != list(tree.keys):
            raise ExecutionError(
                f"{path} has its keys in the order {list(value)}, but the graph was captured for {list(tree.keys)}: "
                "the model may depend on it; pass them in that order"
            )
        return [(f"[{key!r}]", value[key]) for key in tree.keys]
    if isinstance(value, (tuple, list)) or type(value) in pytree.SUPPORTED_NODES:
        items = (
            list(value)
            if isinstance(value, (tuple, list))
            else pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0]
        )
        if len(items) == len(tree.items):
            return [(f"[{index}]", item) for index, item in enumerate(items)]
        raise ExecutionError(f"{path}: expected {len(tree.items)} item{'s' * (len(tree.items) != 1)}, got {len(items)}")
    expected = tree.type_name or f"a {tree.kind}"
    raise ExecutionError(f"{path}: expected {expected}, got {type(value).__name__}")
