"""Nesting of a model's inputs and outputs: tuples, lists, dicts and objects whose leaves are tensors or values."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from keyword import iskeyword
from typing import Any, Union

from torch_ir.errors import GraphError

BRANCH_KINDS = ("tuple", "list", "dict", "object")


class Slot(int):
    """A leaf that is a tensor: its position in the flat list of tensors."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Slot({int(self)})"


@dataclass(frozen=True)
class Branch:
    """A container; dicts, named tuples and objects with fields have `keys`, the latter two also a `type_name`."""

    kind: str
    items: tuple[Tree, ...]
    keys: tuple[Any, ...] = ()
    type_name: str = ""

    def __post_init__(self) -> None:
        if self.kind not in BRANCH_KINDS:
            raise GraphError(f"{self.kind!r:.60} is not one of {', '.join(BRANCH_KINDS)}", "$.$branch", rule="R5")
        wanted = {"dict": (len(self.items),), "list": (0,)}.get(self.kind, (0, len(self.items)))
        if len(self.keys) not in wanted:
            message = f"a {self.kind} of {len(self.items)} items cannot have {len(self.keys)} keys"
            raise GraphError(message, "$.keys", rule="R7")


# A Slot, a Branch, or an attribute value (None, number, string, Expr, ...), which is a constant leaf.
Tree = Union[Slot, Branch, Any]


class Record(dict[Any, Any]):
    """An object returned by the original model: a dict whose fields are also attributes and positions."""

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, int):
            return tuple(self.values())[key]
        raise KeyError(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class SparseRecord(Record):
    """A record whose absent fields are None, as those of output objects of `transformers` and `diffusers`."""

    def __getattr__(self, name: str) -> Any:
        return None if name.startswith("__") else self.get(name)


def flat(count: int) -> Branch:
    """Return a plain tuple of `count` tensors."""
    return Branch("tuple", tuple(Slot(index) for index in range(count)))


def call(positional: int) -> Branch:
    """Return the inputs of a call with `positional` tensors and no keywords."""
    return Branch("tuple", (flat(positional), Branch("dict", ())))


def with_keywords(inputs: Branch, added: Mapping[str, Tree]) -> Branch:
    """Return the inputs of a call with further keyword arguments, or others for those of the same names."""
    positional, keywords = inputs.items
    assert isinstance(keywords, Branch)  # the second part of a call
    named = {**dict(zip(keywords.keys, keywords.items, strict=True)), **added}
    return Branch("tuple", (positional, Branch("dict", tuple(named.values()), tuple(named))))


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path, such as `("[0].past.key", Slot(3))`, in order."""
    if not isinstance(tree, Branch):
        yield path, tree
        return
    for label, item in zip(_labels(tree), tree.items, strict=True):
        yield from leaves(item, path + label)


def _labels(branch: Branch) -> list[str]:
    if not branch.keys:
        return [f"[{index}]" for index in range(len(branch.items))]
    if branch.kind != "dict":
        return [f".{key}" for key in branch.keys]
    return [f"[{key!r}]" for key in branch.keys]


def rebuild(tree: Tree, tensors: Sequence[Any], leaf: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return the containers with `tensors` in their slots and `leaf` applied to other leaves; objects are `Record`s."""
    if isinstance(tree, Slot):
        return tensors[tree]
    if not isinstance(tree, Branch):
        return leaf(tree)
    items = [rebuild(item, tensors, leaf) for item in tree.items]
    if tree.kind == "dict":
        return dict(zip(tree.keys, items, strict=True))
    if tree.kind == "object" and tree.keys:
        return Record(zip(tree.keys, items, strict=True))
    if tree.kind == "tuple" and tree.keys:
        return tuple_class(tree)(*items)
    return items if tree.kind == "list" else tuple(items)


def tuple_class(tree: Branch) -> Any:
    """Return a named tuple class for a branch that has fields."""
    return _named_tuple(tree.type_name.rpartition(".")[2], tree.keys)


@lru_cache(maxsize=1024)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """Return a named tuple class with these fields; an invalid class name is replaced."""
    return namedtuple(name if name.isidentifier() and not iskeyword(name) else "Tuple", fields, rename=True)
