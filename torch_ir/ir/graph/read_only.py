"""Read-only lists and dicts, returned by computed properties so that no change to them is lost silently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from torch_ir.errors import ReadOnlyError

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class ListView(list[T]):
    """A list that cannot be modified; `remedy` says what to do instead."""

    __slots__ = ("_is_assignable", "_remedy")

    def __init__(self, items: Iterable[T], remedy: str, *, is_assignable: bool = False) -> None:
        super().__init__(items)
        self._remedy, self._is_assignable = remedy, is_assignable

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ReadOnlyError(f"this list is computed, and a change of it would be lost; {self._remedy}")

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __imul__ = _refuse

    def __iadd__(self, items: Iterable[T]) -> list[T]:  # type: ignore[override,misc]  # what is assigned is a new list
        """`ir.graph_outputs += [tensor]` is an assignment, so it works wherever assigning does."""
        return [*self, *items] if self._is_assignable else self._refuse()

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class DictView(dict[K, V]):
    """A dict that cannot be modified; `remedy` says what to do instead."""

    __slots__ = ("_remedy",)

    def __init__(self, items: Mapping[K, V], remedy: str) -> None:
        super().__init__(items)
        self._remedy = remedy

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ReadOnlyError(f"this dict is computed, and a change of it would be lost; {self._remedy}")

    clear = pop = popitem = setdefault = update = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
