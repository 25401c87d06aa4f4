"""Tensors that no operator on the tape has made: constants, and what comes back after data left torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.weak import WeakTensorKeyDictionary

from torch_ir.capture.naming.running_modules import ModuleCalls
from torch_ir.capture.record.escapes import blank
from torch_ir.capture.record.fx_tape import Meta, Tape, address
from torch_ir.capture.record.opaque import OpaqueOperators
from torch_ir.capture.state.tensor_leaks import all_tensors
from torch_ir.ir.json.json_text import unfrozen
from torch_ir.ops.torch_internals import FakeTensor, pytree

Place = tuple[str, str]  # a name for it, and the line
_NOWHERE: Place = ("", "")


@dataclass
class _Departure:
    """A tensor whose data left torch: the node that it was, and its values then."""

    tensor: torch.Tensor
    node: fx.Node
    values: torch.Tensor


class Strangers:
    """Gives a node to every tensor that the tape does not know; `here` and `meta` say where the model is."""

    def __init__(self, modules: ModuleCalls, here: Callable[[], Place], meta: Callable[[], Meta]) -> None:
        self.constants: dict[fx.Node, tuple[torch.Tensor, str]] = {}  # with the module that reads it first
        self.inputs: list[fx.Node] = []
        self.opaque = OpaqueOperators()
        self._modules, self._here, self._meta = modules, here, meta
        self._existing: Any = WeakTensorKeyDictionary()
        self._departures: list[_Departure] = []
        self._door = _NOWHERE  # where data left last, until something comes back

    def note_existing(self) -> None:
        """What exists before the model runs is no result of it."""
        with unfrozen():
            for found in all_tensors():
                self._existing[found] = True

    def is_new(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was not there before the model ran."""
        return tensor not in self._existing

    def note_new(self, tensor: torch.Tensor) -> None:
        """A tensor made of Python's values, or of an array: a constant, unless it may come from what left torch."""
        if not self._departures:
            self._existing[tensor] = True

    def note_lost(self, tape: Tape, tensor: torch.Tensor) -> None:
        """Something puts other memory under a tensor."""
        tape.forget(tensor)
        self._existing.pop(tensor, None)

    def node_of(self, tape: Tape, tensor: torch.Tensor) -> fx.Node:
        """A constant, if it was there before; else the result of what nobody has seen."""
        if tensor not in self._existing:
            return self._opaque(tape, tensor)
        node = tape.placeholder("constant", tensor)
        scope = self._modules.scope
        self.constants[node] = (tensor, "" if scope is None else scope.module)
        return node

    def leave(self, tape: Tape, tensor: torch.Tensor) -> torch.Tensor:
        """Data leaves torch, and nobody can say what becomes of it; this is what to hand out."""
        node = tape.node_of(tensor)
        values = blank(tensor)
        if node not in self.constants:  # whose values the graph itself holds
            self._door = self._here()
            self._departures.append(_Departure(tensor, node, values.clone()))
        return values

    def close(self, tape: Tape) -> None:
        """After the last result is known: data that left and never came back has its place in the graph, too."""
        if self._door != _NOWHERE:
            self._opaque(tape, None)

    def notice_changes(self, tape: Tape, arguments: Any) -> None:
        """Code outside torch may have written to memory that it was given."""
        if not self._departures:
            return
        places = {address(leaf) for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)}
        for departure in self._departures:
            tensor = departure.tensor
            is_read = address(tensor) in places and not isinstance(tensor, FakeTensor)
            if is_read and not torch.equal(tensor, departure.values):
                tape.forget(tensor)
                departure.values = tensor.clone()

    def keep_what_left(self, tape: Tape, written: Sequence[torch.Tensor]) -> None:
        """Before a call writes: what code outside torch has seen of the memory is a value of its own."""
        for tensor in written:
            for departure in self._departures:
                if address(departure.tensor) == address(tensor):
                    clone: Any = torch.ops.aten.clone.default
                    copy = tape.call(clone, (departure.node,), {}, departure.values, self._meta())
                    departure.node, departure.tensor = copy, departure.values

    def _opaque(self, tape: Tape, result: torch.Tensor | None) -> fx.Node:
        """The place where data that left torch comes back; what another thread made comes from the inputs."""
        name, place = self._door if self._door != _NOWHERE else self._here()
        self._door = _NOWHERE
        func = self.opaque.operator(name, place, result)
        sources = list(dict.fromkeys(departure.node for departure in self._departures)) or self.inputs
        return tape.call(func, (sources,), {"place": place}, result, self._meta())
