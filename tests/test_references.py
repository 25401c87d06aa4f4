"""How Python objects hold others, and what a search for the state of a model finds with that."""

import functools
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torch_ir.ops.references import ABSENT, attribute_tables, cells_of, content_of, held_by
from torch_ir.verify.reachable import Reachable


class Table(dict[str, Any]):
    """A dict that also has attributes."""

    note: list[int]

    def first(self) -> Any:
        return next(iter(self))


def counting(start: list[int]) -> Callable[..., int]:
    def count(by: tuple[int, ...] = (7,), *, of: str = "k") -> int:
        return len(start) + len(later)

    if not start:
        later = [1]
    return count


def test_each_way_to_hold_an_object() -> None:
    """Items, attributes, closures, defaults, bound methods and partial functions, with their names."""
    table = Table(a=1)
    table.note = [2]
    assert list(held_by(table)) == [("a", 1), ("note", [2])]
    assert list(held_by(Counter("x"))) == [("x", 1)]
    assert list(held_by((5, 6))) == [(0, 5), (1, 6)]
    count = counting([1])
    assert list(held_by(count)) == [("start", [1]), ("a default of count", (7,)), ("a default of count", "k")]
    assert list(held_by(functools.partial(count, 3, of=4))) == [(0, count), (1, 3), (2, 4)]
    assert list(held_by(table.first)) == [("__self__", table), ("__func__", Table.first)]
    assert list(held_by(5)) == []


def test_a_variable_without_a_value() -> None:
    """A variable that is not assigned yet has a cell and no content."""
    count = counting([1])
    assert [name for name, _, _ in cells_of(count)] == ["start"]  # type: ignore[arg-type]  # it is a function
    assert [content_of(cell) is ABSENT for cell in count.__closure__] == [True, False]  # type: ignore[attr-defined]


def test_tensors_that_a_model_reaches() -> None:
    """Through a closure, a subclass of dict, its attribute, a method and a partial function; not through torch."""
    tensors = [torch.zeros(index) for index in range(5)]

    def closure() -> Tensor:
        return tensors[0]

    table, other = Table(a=tensors[1]), Table(b=tensors[3])
    table.note = [tensors[2]]  # type: ignore[list-item]
    model = nn.Module()
    model.held = [closure, table, other.first, functools.partial(print, tensors[4])]  # type: ignore[assignment]
    found = {id(tensor) for tensor in Reachable(model).tensors}
    assert found.issuperset(map(id, tensors[1:])), "containers and callables"
    assert id(tensors[0]) in found, "the closure holds the list"


class Slotted:
    __slots__ = ("first", "second")
    first: Any
    second: Any


def test_slots_are_attributes() -> None:
    """Those with a value; a table of them can be restored, also in a child that has a dict."""
    child: Any = type("Child", (Slotted,), {})()
    child.first, child.other = [1], 2
    assert list(held_by(child)) == [("other", 2), ("first", [1])]
    (_, slots) = attribute_tables(child)
    before = dict(slots)
    child.second = 3
    del child.first
    slots.clear()
    slots.update(before)
    assert dict(slots) == before
    assert not hasattr(child, "second")


def test_keys_and_weak_references_are_held() -> None:
    key = Counter[str]()
    other = torch.nn.Module()
    assert ("a key", other) in list(held_by({other: 1}))
    assert ("its object", other) in list(held_by(weakref.ref(other)))
    assert list(held_by({"a": key})) == [("a", key)]


def test_verification_restores_slots() -> None:
    held = Slotted()
    held.first = torch.zeros(2)
    found = Reachable([held])
    assert [dict(table) for table in found.tables if not isinstance(table, dict)] == [{"first": held.first}]
    assert id(held.first) in {id(tensor) for tensor in found.tensors}
