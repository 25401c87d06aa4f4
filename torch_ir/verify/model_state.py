"""Save the state of a model before a run and restore it afterwards: the same objects, memory and values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from torch_ir.ops.effects import mutated_arguments
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_internals import OpOverload, TorchDispatchMode, memory_key, pytree, schema_of
from torch_ir.verify.reachable import Reachable, distinct

COPIED = 1 << 26  # bytes of parameters that are copied before a run; of more, only those that the run writes to
_Undo = Callable[[], object]


class ModelState:
    """The state of a model; `restored` is the context in which it may run.

    Its parameters stay the same objects, with `requires_grad`, and tensors that share memory still share it, so that
    the model runs as it does for its user.
    """

    def __init__(self, model: nn.Module) -> None:
        found = Reachable(model)
        parameters = {id(tensor) for tensor in model.parameters()}
        named = [*model.parameters(), *model.buffers()]  # TorchScript does not store them as attributes
        self.tensors = [_Held(tensor) for tensor in distinct([*named, *found.tensors]) if not tensor.is_meta]
        self.python = list(_python_state(found))
        mine = [held for held in self.tensors if id(held.tensor) in parameters]
        size = sum(held.alias.untyped_storage().nbytes() for held in mine if held.is_plain)
        self.memory = _Memory(self.tensors, [] if size <= COPIED else mine)
        self.by_tensor = {id(held.tensor): held for held in self.tensors}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore everything at the end, even after an error."""
        with ExitStack() as stack:
            for mode in self.memory.guards():
                stack.enter_context(mode)
            try:
                yield
            finally:
                self._restore()

    def is_as_before(self, tensor: torch.Tensor, now: torch.Tensor | None) -> bool:
        """Whether `now` has the values that a tensor of the model had before."""
        held = self.by_tensor[id(tensor)]
        if held.is_subclass:
            parts = [part for part in vars(tensor).values() if id(part) in self.by_tensor]
            return now is tensor and all(self.is_as_before(part, part) for part in parts)
        if now is tensor and not held.has_moved() and not self.memory.differs(held):
            return True
        return now is not None and now is not tensor and _equal(self.memory.original(held), now.detach())

    def _restore(self) -> None:
        for undo in self.python:
            undo()
        with torch.no_grad():
            for held in self.tensors:
                held.restore()
            self.memory.restore()


class _Held:
    """One tensor object: its memory, and its autograd state."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.alias = tensor.detach()
        self.requires_grad, self.grad = tensor.requires_grad, tensor.grad if tensor.is_leaf else None
        self.is_subclass = type(self.alias) is not torch.Tensor  # its parts are saved separately
        is_view = self.alias.is_conj() or self.alias.is_neg()
        is_dense = self.alias.layout == torch.strided and not self.alias.is_quantized
        self.is_plain = not self.is_subclass and is_dense and not is_view

    @property
    def storage(self) -> int:
        return memory_key(self.alias)

    def has_moved(self) -> bool:
        """Whether the object now refers to other memory, as after `t.data = ...`."""
        if not self.is_plain:
            return False
        return self.tensor.dtype != self.alias.dtype or not self.tensor.is_set_to(self.alias)

    def restore(self) -> None:
        if self.has_moved():
            self.tensor.data = self.alias
        if self.tensor.is_leaf:
            if self.tensor.requires_grad != self.requires_grad:
                self.tensor.requires_grad_(self.requires_grad)
            if self.tensor.grad is not self.grad:
                self.tensor.grad = self.grad


class _Memory:
    """The values of all tensors: copied beforehand, or, for `guarded` ones, before an operator first writes."""

    def __init__(self, tensors: Sequence[_Held], guarded: Sequence[_Held]) -> None:
        late = {held.storage for held in guarded if held.is_plain}
        late -= {held.storage for held in tensors if held.is_plain and held not in guarded}
        self.whole: dict[int, torch.Tensor] = {}  # all the bytes of a storage
        self.copies: dict[int, torch.Tensor] = {}
        self.others: list[tuple[_Held, torch.Tensor]] = []  # tensors without a plain storage
        self.late: dict[int, torch.Tensor] = {}
        for held in tensors:
            if held.is_subclass:
                continue
            if not held.is_plain:
                self.others.append((held, held.alias.clone()))
            elif held.storage in late:
                self.late.setdefault(held.storage, _all_bytes(held.alias))
            elif held.storage not in self.whole:
                self.whole[held.storage] = _all_bytes(held.alias)
                self.copies[held.storage] = self.whole[held.storage].clone()

    def storages(self) -> set[int]:
        return {*self.whole, *self.late}

    def guards(self) -> list[AbstractContextManager[Any]]:
        """Return contexts that save guarded memory before it is written; compiled code would bypass them."""
        if not self.late:
            return []
        return [torch.compiler.set_stance("force_eager"), _SavesBeforeWriting(self._save)]

    def _save(self, tensor: torch.Tensor) -> None:
        if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided:
            key = memory_key(tensor)
            if key in self.late:
                self.whole[key] = self.late.pop(key)
                self.copies[key] = self.whole[key].clone()

    def differs(self, held: _Held) -> bool:
        """Whether the values of a tensor differ from those at the beginning."""
        if held.is_plain and held.storage not in self.copies:
            return False
        if held.is_plain and torch.equal(self.whole[held.storage], self.copies[held.storage]):
            return False
        return not _equal(self.original(held), held.alias)

    def original(self, held: _Held) -> torch.Tensor:
        """Return the values that a tensor had at the beginning."""
        if not held.is_plain or held.storage not in self.copies:
            return next((copy for other, copy in self.others if other is held), held.alias)
        storage = self.copies[held.storage].untyped_storage()
        made = torch.empty(0, dtype=held.alias.dtype, device=held.alias.device)
        return made.set_(storage, held.alias.storage_offset(), held.alias.shape, held.alias.stride())

    def restore(self) -> None:
        for key, copy in self.copies.items():
            if not torch.equal(self.whole[key], copy):
                self.whole[key].copy_(copy)
        for held, copy in self.others:
            if not _equal(held.alias, copy):
                held.alias.copy_(copy)


class _SavesBeforeWriting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    supports_higher_order_operators = True

    def __init__(self, save: Callable[[torch.Tensor], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._save_tensor = save

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(func, OpOverload) and schema_of(func).is_mutable:
            bound = bind(func, args, kwargs or {})
            for tensor in pytree.tree_leaves([bound.get(name) for name in mutated_arguments(func)]):
                if isinstance(tensor, torch.Tensor):
                    self._save_tensor(tensor)
        return func(*args, **(kwargs or {}))


def _python_state(found: Reachable) -> Iterator[_Undo]:
    """Yield a function for each object that restores its present content."""
    yield from (partial(_restore_table, table, dict(table)) for table in found.tables)
    yield from (partial(_restore_sequence, sequence, list(sequence)) for sequence in found.sequences)
    yield from (partial(_restore_set, items, set(items)) for items in found.sets)
    yield from (partial(setattr, cell, "cell_contents", cell.cell_contents) for cell in found.cells)
    yield from (partial(_restore_class, kind, dict(vars(kind))) for kind in dict.fromkeys(found.classes))
    yield from (partial(generator.set_state, generator.get_state()) for generator in found.generators)


def _restore_table(table: Any, held: dict[Any, Any]) -> None:
    if [*table] != [*held] or not all(map(operator.is_, table.values(), held.values())):
        table.clear()
        table.update(held)


def _restore_sequence(sequence: Any, held: list[Any]) -> None:
    if len(sequence) != len(held) or not all(map(operator.is_, sequence, held)):
        sequence.clear()
        sequence.extend(held)


def _restore_set(items: Any, held: set[Any]) -> None:
    if set(items) != held:
        items.clear()
        items.update(held)


def _restore_class(kind: type, held: Mapping[str, Any]) -> None:
    for name in [name for name in vars(kind) if name not in held]:
        delattr(kind, name)
    for name, value in held.items():
        if vars(kind).get(name) is not value:
            setattr(kind, name, value)


def _all_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole storage of a tensor as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are bit-identical, or equal if their bits cannot be read."""
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return False
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.is_quantized or type(one) is not torch.Tensor or type(other) is not torch.Tensor:
        return torch.equal(one, other)
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
