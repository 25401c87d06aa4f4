"""Remove the tensors of a capture from caches that forward has filled with them.

A capture runs forward on tensors without values. If forward keeps one of them outside the model, such as in a
`functools.lru_cache`, a global, a class attribute, a closure or an object, the next capture or eager call would read
it. The snapshot of Python state (`python_state`) restores most holders. If a tensor is alive after that, its other
holders are searched: caches are cleared, and entries of containers are removed.
"""

from __future__ import annotations

import gc
import itertools
import sys
import types
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torch_ir.capture.fast.shape_tensors import Ghost
from torch_ir.capture.instrument import intercepted, set_attribute
from torch_ir.capture.program.provenance import is_users_module
from torch_ir.capture.state.python_state import PythonState
from torch_ir.errors import CaptureWarning
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.ops.references import CONTAINERS, LRU_CACHE, held_by
from torch_ir.ops.torch_internals import LAST_EXPORT, FakeTensor, FakeTensorMode, forget_random_states

_OURS = (types.FrameType, types.TracebackType, BaseException, types.GeneratorType, weakref.ref)
_BLANK = (Ghost, FakeTensor)
_BATCH = 16  # objects whose holders are searched together, on the way to the user's code
_LEVELS = 8  # of nested containers
_FEW = 200  # objects that `gc.get_referrers` finds quickly: it compares each of them with every reference
_MOST_LOOKS = 32  # scans of all objects of the process, which may have millions


class Tensors:
    """The tensors of one capture: those that refer to one of its tokens, and those that `others` returns."""

    def __init__(self) -> None:
        self._tokens: list[weakref.ref[Any]] = []
        self._attributes: list[str] = []
        self.others: Callable[[], Collection[torch.Tensor]] = tuple

    def watch(self, attribute: str, token: Any) -> None:
        """Count tensors with this object as an attribute as tensors of the capture; only they keep it alive."""
        self._attributes.append(attribute)
        self._tokens.append(weakref.ref(token))

    @contextmanager
    def of_every_mode(self) -> Iterator[None]:
        """Count the fake tensors of every mode that this thread creates meanwhile as tensors of the capture."""

        def note(make: Callable[..., None], mode: FakeTensorMode, *args: Any, **kwargs: Any) -> None:
            make(mode, *args, **kwargs)
            self.watch("fake_mode", mode)

        # torch keeps the last graph that it traced, with all of its tensors
        with intercepted(FakeTensorMode, "__init__", note), set_attribute(*LAST_EXPORT, {}):
            yield

    def may_be_alive(self) -> bool:
        """Whether a tensor is alive, or garbage that is not collected yet."""
        for mode in (ref() for ref in self._tokens):
            if isinstance(mode, FakeTensorMode):
                _let_go(mode)
        return any(ref() is not None for ref in self._tokens) or bool(self.others())

    def alive(self, among: list[Any]) -> list[torch.Tensor]:
        """Return the tensors that are alive among some objects."""
        tokens = [(name, token) for name, ref in zip(self._attributes, self._tokens, strict=True) if (token := ref())]
        found = list(self.others())
        if tokens:
            found += [
                tensor
                for tensor in tensors_among(among)
                if type(tensor) in _BLANK and any(getattr(tensor, name, None) is token for name, token in tokens)
            ]
        return found


def _let_go(mode: FakeTensorMode) -> None:
    """Drop references that torch keeps after a trace: to its inputs and to states of random generators."""
    if mode.shape_env is not None and mode.shape_env.tracked_fakes:
        mode.shape_env.tracked_fakes.clear()
    forget_random_states()


def all_tensors() -> list[torch.Tensor]:
    """Return every tensor of the process, except those that the user has frozen by `gc.freeze`."""
    return tensors_among(gc.get_objects())


def tensors_among(objects: list[Any]) -> list[torch.Tensor]:
    """Return the tensors among objects, of which there are often millions, so that the loops run in C."""
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.Tensor)}
    return list(itertools.compress(objects, map(kinds.__contains__, map(type, objects))))


@contextmanager
def contained(model: nn.Module) -> Iterator[Tensors]:
    """Remove references to the tensors of a capture at its end; warn about those that cannot be removed."""
    tensors, search = Tensors(), _Search()
    has_failed = False
    try:
        with uncollected():
            gc.collect(0)  # so that the objects of the capture are the youngest generation
            collections = _collections()
            gc.callbacks.append(search.note_collection)
            try:
                yield tensors
            except BaseException:
                has_failed = True
                raise
            finally:
                gc.callbacks.remove(search.note_collection)
                if tensors.may_be_alive():
                    search.note_new()
                    search.is_mixed = _collections() != collections  # forward has moved some to older generations
                    gc.collect(2 if search.is_mixed else 0)
                    if tensors.may_be_alive():
                        search.begin(model, tensors.alive(search.young()))
                if not has_failed:  # until an error is handled, it holds tensors
                    search.climb()
    finally:
        search.clean()


def _collections() -> list[int]:
    """Return how often each generation was collected."""
    return [generation["collections"] for generation in gc.get_stats()]


class _Search:
    """A search for the holders of a capture's tensors: first among new objects, then among all of the process."""

    def __init__(self) -> None:
        self._named: dict[str, None] = {}
        self._left: list[weakref.ref[torch.Tensor]] = []
        self._born: set[int] = set()  # objects that the capture created
        self._held: list[Any] = []  # tensors, and new objects that hold them
        self._seen: set[int] = set()  # the same by identity
        self._looks = _MOST_LOOKS
        self.is_mixed = False  # whether new objects are in any generation, not in the younger two

    def note_new(self) -> None:
        """Note the objects that the capture has created: the youngest generation."""
        self._born.update(map(id, gc.get_objects(generation=0)))

    def note_collection(self, phase: str, _: dict[str, int]) -> None:
        """Note the new objects before a collection, which forward or torch may start, moves them."""
        if phase == "start":
            self.note_new()

    def begin(self, model: nn.Module, found: list[torch.Tensor]) -> None:
        """Note the tensors that are alive, and clear caches of the model's code that hold one: it may be the last."""
        self._left = [weakref.ref(tensor) for tensor in found]
        stale = set(map(id, found))
        for cache in PythonState(model).caches if found else ():
            if any(_holds(item, stale) for item in gc.get_referents(cache)):
                cache.cache_clear()

    def climb(self) -> None:
        """Find the new objects that hold tensors, level by level."""
        level: list[Any] = [tensor for ref in self._left if (tensor := ref()) is not None]
        if not level:
            return
        self.note_new()
        holders = self._new_holders(level)
        for _ in range(_LEVELS):
            self._held += level
            self._seen.update(map(id, level))
            found = [holder for each in level for holder in holders.get(id(each), ()) if id(holder) not in self._seen]
            level = list({id(holder): holder for holder in found}.values())
            found.clear()
        level.clear()
        holders.clear()
        self._drop_unreachable()

    def _new_holders(self, level: list[Any]) -> dict[int, list[Any]]:
        """Return the new objects that refer to each object, by its identity."""
        found: dict[int, list[Any]] = {}
        for holder in filter(self._is_new, self.young()):
            if holder is not level and not isinstance(holder, _OURS):
                for referent in gc.get_referents(holder):
                    found.setdefault(id(referent), []).append(holder)
        return found

    def _drop_unreachable(self) -> None:
        """Drop objects to which only new objects refer: searching all of the process would find no other holder."""
        if not self._held:
            return
        wanted = set(map(id, self._held))
        new = filter(self._is_new, self.young())
        known = Counter(filter(wanted.__contains__, map(id, itertools.chain.from_iterable(map(gc.get_referents, new)))))
        alone = next(map(sys.getrefcount, [object()]))  # of an object to which one list refers
        counts = list(map(sys.getrefcount, self._held))
        self._held = [each for each, count in zip(self._held, counts, strict=True) if count - known[id(each)] > alone]

    def clean(self) -> None:
        """Remove the tensors from the older objects that hold them, or that hold a new object with them."""
        for holder in self._holders(self._held):
            if isinstance(holder, LRU_CACHE):
                holder.cache_clear()
            elif not self._is_new(holder) and self._is_reached_by_user(holder):
                self._clean(holder)
        self._held.clear()
        if self._named:
            text = f"{', '.join(self._named)} keeps tensors of the capture, which have no values"
            warnings.warn(f"{text}; clear it before the model is used again", CaptureWarning, stacklevel=2)

    def _is_new(self, holder: Any) -> bool:
        return id(holder) in self._born and not isinstance(holder, LRU_CACHE)

    def young(self) -> list[Any]:
        """Return the new objects, and others of their generations."""
        return gc.get_objects() if self.is_mixed else gc.get_objects(generation=0) + gc.get_objects(generation=1)

    def _holders(self, objects: list[Any]) -> list[Any]:
        """Return the objects that refer to others, without those of the search itself and those already found."""
        return [
            holder
            for holder in self._referrers(objects)
            if holder is not objects and id(holder) not in self._seen and not isinstance(holder, _OURS)
        ]

    def _referrers(self, objects: Sequence[Any]) -> list[Any]:
        """Return the objects that refer to others; empty once the limit of scans is reached."""
        if not objects or not self._looks:
            return []
        self._looks -= 1
        if len(objects) <= _FEW:
            return gc.get_referrers(*objects)
        wanted = set(map(id, objects))
        return [holder for holder in gc.get_objects() if not wanted.isdisjoint(map(id, gc.get_referents(holder)))]

    def _is_reached_by_user(self, holder: Any) -> bool:
        """Whether the user's code refers to an object, and not only torch, whose caches must not be changed."""
        level, seen = [holder], {id(holder)}
        for _ in range(_LEVELS // 2):
            above: list[Any] = []
            for each in level:
                home = each.get("__name__") if isinstance(each, dict) and "__spec__" in each else None
                home = home or getattr(each if callable(each) else type(each), "__module__", None)
                if home not in (None, "builtins", "_functools", "collections"):
                    return is_users_module(str(home))
            for each in self._referrers(level):
                if each is not level and id(each) not in seen and not isinstance(each, (*_OURS, list)):
                    above.append(each)
                    seen.add(id(each))
            level = above[:_BATCH]
        return False

    def _clean(self, holder: Any) -> None:
        """Remove tensors of the capture from an object that existed before; an attribute's old value is unknown."""
        if isinstance(holder, dict):
            self._clean_dict(holder)
        elif isinstance(holder, (list, deque)):
            kept = [item for item in holder if id(item) not in self._seen]
            holder.clear()
            holder.extend(kept)
        elif isinstance(holder, set):
            holder.difference_update([item for item in holder if id(item) in self._seen])
        elif isinstance(holder, types.CellType):
            self._named[f"a variable that functions share ({type(holder.cell_contents).__name__})"] = None
        elif hasattr(holder, "__dict__"):
            self._clean_dict(holder.__dict__, holder)
        else:
            self._named[f"a {type(holder).__module__}.{type(holder).__qualname__}"] = None

    def _clean_dict(self, holder: Any, owner: Any = None) -> None:
        names = [key for key, value in list(dict.items(holder)) if id(value) in self._seen or id(key) in self._seen]
        owner = owner or next((each for each in self._referrers([holder]) if _is_namespace(each, holder)), None)
        if owner is not None and not isinstance(owner, types.FunctionType):  # its dict is created on first use
            for name in names:
                if type(holder[name]) in CONTAINERS:  # likely older: an empty dict is tracked only once it is filled
                    self._clean(holder[name])
                else:
                    self._named[f"{_named(owner)}.{name}"] = None
            return
        for name in names:
            dict.__delitem__(holder, name)


def _holds(value: Any, wanted: Collection[int], depth: int = 6) -> bool:
    """Whether a value is one of these objects (identities), or a container or plain object that holds one."""
    if id(value) in wanted:
        return True
    if not depth or isinstance(value, (str, type, types.ModuleType, types.FunctionType, torch.Tensor, nn.Module)):
        return False
    return any(_holds(item, wanted, depth - 1) for pair in held_by(value) for item in pair)  # keys hold tensors, too


def _is_namespace(owner: Any, holder: Any) -> bool:
    """Whether a dict holds the attributes of an object."""
    if isinstance(owner, type):
        return any(table is holder for table in gc.get_referents(vars(owner)))
    return not isinstance(owner, dict) and getattr(owner, "__dict__", None) is holder


def _named(owner: Any) -> str:
    """Return a name for the owner of a namespace."""
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    kind = owner if isinstance(owner, type) else type(owner)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name if owner is kind else f"an object of {name}"
