"""The names that torch.export gives to weights, inputs and calls."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from torch import nn

from torch_ir.ir.graph.free_names import FreeNames, lengthened
from torch_ir.ops.torch_internals import (
    FxNamespace,
    bind_signature_to_inputs,
    name_of_target,
    pytree,
    rename_without_collisions,
)


class Names:
    """The names of one graph: weights and inputs first, then calls, which are renamed on a collision."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.left = FreeNames(self.taken)
        self._given: dict[str, str] = {}
        self._numbers: dict[str, int] = defaultdict(int)
        self._unsettled: list[str] = []  # placeholders without a collision so far

    def placeholder(self, wanted: str) -> str:
        """Return the name of a placeholder."""
        if wanted not in self.taken and not self._given:
            self.taken.add(wanted)
            self._unsettled.append(wanted)
            return wanted
        return self._settled(wanted, is_placeholder=True)

    def calls(self, wanted: Iterable[str]) -> list[str]:
        """Return the names of a graph's calls, in order, from those of their operators."""
        counts: dict[str, int] = {}
        found = []
        for base in wanted:
            count = counts[base] = counts[base] + 1 if base in counts else _first(base)
            found.append(f"{base}_{count}" if count else base)
        if self.taken.isdisjoint(found):
            self.taken.update(found)
            return found
        return [self._settled(name, is_placeholder=False) for name in found]

    def fresh(self, name: str) -> str:
        return lengthened(name, self.taken)

    def _settled(self, name: str, is_placeholder: bool) -> str:
        """Resolve a collision as torch.export does; its function must have seen all names before this one."""
        for earlier in self._unsettled:
            self.taken.discard(earlier)
            rename_without_collisions(self._given, self._numbers, self.taken, earlier, earlier, True)
        self._unsettled.clear()
        rename_without_collisions(self._given, self._numbers, self.taken, name, name, is_placeholder)
        return self._given[name]


@cache
def _first(base: str) -> int:
    """Return the number of the first call with this name: 0, unless the bare name is reserved in Python."""
    name = FxNamespace().create_name(base, None)
    return int(name[len(base) + 1 :]) if name != base else 0


@cache
def call_name(packet: str) -> str:
    """Return the name of a call of an operator, before it is numbered."""
    return name_of_target(packet)


def functional_name(name: str) -> str:
    """Return the name of an in-place call without its mark: `relu` for `relu_`, `relu_1` for `relu__1`."""
    return re.sub(r"_(?=(_\d+)?$)", "", name)


def weight_name(prefix: str, key: str) -> str:
    plain = key.lower().replace(".", "_")
    if not plain.isidentifier() or not plain.isascii():
        plain = re.sub(r"[^a-zA-Z0-9]", "_", plain)
    return f"{prefix}_{plain}"


def input_names(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """Return the names of the input leaves: the argument of forward, then the path inside it."""
    bound = bind_signature_to_inputs(model, args, kwargs)  # type: ignore[no-untyped-call]  # torch's own
    paths = pytree.tree_flatten_with_path(bound)[0]
    return ["_".join(map(_step, path)) for path, _ in paths]


def _step(key: Any) -> str:
    """Return one step of a key path as text: the index, key or field."""
    if isinstance(key, pytree.MappingKey):
        return re.sub(r"[^a-zA-Z0-9]", "_", str(key.key)).lower()
    return str(key.idx if isinstance(key, pytree.SequenceKey) else key.name).lower()


def names_of_inputs(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], count: int) -> list[str]:
    """Return the names of the input leaves; numbered if the signature of `forward` does not determine them."""
    try:
        names = input_names(model, args, kwargs)
    except (TypeError, ValueError):
        names = []
    return names if len(names) == count else [f"arg{number}" for number in range(count)]
