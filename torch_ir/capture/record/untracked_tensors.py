"""Tensors that no recorded operator made: constants, and results of code outside torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.weak import WeakTensorKeyDictionary

from torch_ir.capture.naming.running_modules import ModuleCalls
from torch_ir.capture.record.escapes import blank
from torch_ir.capture.record.fx_tape import Meta, Tape
from torch_ir.capture.record.opaque import OpaqueOperators
from torch_ir.capture.state.tensor_leaks import all_tensors
from torch_ir.ops.torch_internals import FakeTensor, dense_memory_key, pytree

Place = tuple[str, str]  # class name and source line
_NOWHERE: Place = ("", "")


@dataclass
class _Departure:
    """A tensor whose data left torch: its node and its values at that time."""

    tensor: torch.Tensor
    node: fx.Node
    values: torch.Tensor


class UntrackedTensors:
    """Creates a node for each untracked tensor; `here` and `meta` return the current place in the model."""

    def __init__(self, modules: ModuleCalls, here: Callable[[], Place], meta: Callable[[], Meta]) -> None:
        self.constants: dict[fx.Node, tuple[torch.Tensor, str]] = {}  # with the path of the module that reads it first
        self.inputs: list[fx.Node] = []
        self.opaque = OpaqueOperators()
        self._modules, self._here, self._meta = modules, here, meta
        self._existing: Any = WeakTensorKeyDictionary()  # whether a tensor existed before the run, as far as known
        self._departures: list[_Departure] = []
        self._door = _NOWHERE  # where data last left torch, until a result comes back

    def note_existing(self) -> None:
        """Record the tensors that exist before the run, except frozen ones, which stay hidden until its end."""
        for found in all_tensors():
            self._existing[found] = True

    def new_ones(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those tensors that were created during the run."""
        unknown = [tensor for tensor in tensors if tensor not in self._existing]
        if unknown:
            shown = set(map(id, all_tensors()))
            for tensor in unknown:
                self._existing[tensor] = id(tensor) not in shown
        return [tensor for tensor in tensors if not self._existing[tensor]]

    def note_new(self, tensor: torch.Tensor) -> None:
        """Record a tensor made from Python values or an array: a constant, unless data has left torch before."""
        if not self._departures:
            self._existing[tensor] = True

    def note_lost(self, tape: Tape, tensor: torch.Tensor) -> None:
        """Record that the memory of a tensor was replaced."""
        tape.forget(tensor)
        self._existing[tensor] = False

    def node_of(self, tape: Tape, tensor: torch.Tensor) -> fx.Node:
        """Return a constant for a tensor that existed before the run, else an opaque result."""
        if self.new_ones([tensor]):
            return self._opaque(tape, tensor)
        node = tape.placeholder("constant", tensor)
        scope = self._modules.scope
        self.constants[node] = (tensor, "" if scope is None else scope.module)
        return node

    def leave(self, tape: Tape, tensor: torch.Tensor) -> torch.Tensor:
        """Record that data leaves torch, and return the values to pass out."""
        node = tape.node_of(tensor)
        values = blank(tensor)
        if node not in self.constants:  # the graph has the values of constants
            self._door = self._here()
            self._departures.append(_Departure(tensor, node, values.clone()))
        return values

    def close(self, tape: Tape) -> None:
        """At the end of the run, add an opaque node for data that left torch without a result."""
        if self._door != _NOWHERE:
            self._opaque(tape, None)
        self._departures.clear()  # or the end of the capture would search the process for references to their tensors

    def notice_changes(self, tape: Tape, arguments: Any) -> None:
        """Detect writes by code outside torch to memory that it received."""
        if not self._departures:
            return
        places = {dense_memory_key(leaf) for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)}
        for departure in self._departures:
            tensor = departure.tensor
            is_read = dense_memory_key(tensor) in places and not isinstance(tensor, FakeTensor)
            if is_read and not torch.equal(tensor, departure.values):
                tape.forget(tensor)
                departure.values = tensor.clone()

    def keep_what_left(self, tape: Tape, written: Sequence[torch.Tensor]) -> None:
        """Before a call writes to memory that left torch, record a copy of the values that left."""
        for tensor in written:
            for departure in self._departures:
                if dense_memory_key(departure.tensor) == dense_memory_key(tensor):
                    clone: Any = torch.ops.aten.clone.default
                    copy = tape.call(clone, (departure.node,), {}, departure.values, self._meta())
                    departure.node, departure.tensor = copy, departure.values

    def _opaque(self, tape: Tape, result: torch.Tensor | None) -> fx.Node:
        """Record an opaque call on the data that left torch; if none has, on the inputs (work of another thread)."""
        name, place = self._door if self._door != _NOWHERE else self._here()
        self._door = _NOWHERE
        func = self.opaque.operator(name, place, result)
        sources = list(dict.fromkeys(departure.node for departure in self._departures)) or self.inputs
        return tape.call(func, (sources,), {"place": place}, result, self._meta())
