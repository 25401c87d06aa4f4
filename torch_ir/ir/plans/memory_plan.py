"""Memory plans: the bank, offset and lifetime of every tensor that a graph computes. Plain data.

    plan.used                      # {"sram": 3211264}: bytes, by bank
    plan.place("conv2d").offset
    ir.extensions[MemoryPlan.KEY] = plan.to_dict()     # kept in the file

A lifetime is counted in steps: the nodes that run, in program order, without those that are computed once from weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from torch_ir.errors import DeviceError, GraphError, SerializationError, suggestion
from torch_ir.ir.graph.name_grammar import is_line
from torch_ir.ir.json.json_fields import allow_keys, optional, typed
from torch_ir.ir.json.json_fields import field as required

MOST_BYTES = 1 << 62  # of a bank, and the largest offset
_MOST_BANKS = 64
_LONGEST_NAME = 100
_MOST_STEPS = 1 << 22


@dataclass(frozen=True)
class Bank:
    """A memory of an accelerator: offsets in it are multiples of `alignment`; without `bytes`, it has no limit."""

    name: str
    bytes: int | None = None
    alignment: int = 1

    def __post_init__(self) -> None:
        if not is_line(self.name, _LONGEST_NAME):
            raise DeviceError(f"a bank needs a name of at most {_LONGEST_NAME} printable characters")
        if self.bytes is not None and not 0 < self.bytes <= MOST_BYTES:
            raise DeviceError(f"bank {self.name!r:.60} must have more than 0 bytes, and at most 2**62")
        if not 0 < self.alignment <= MOST_BYTES:
            raise DeviceError(f"the alignment of bank {self.name!r:.60} must be at least 1 byte, and at most 2**62")


@dataclass(frozen=True)
class Place:
    """Place of a tensor while steps `first` to `last` run, both included.

    With `is_scratch`, it is the memory that the node `name` needs inside, for the functions that it calls.
    """

    name: str
    bank: str
    offset: int
    bytes: int
    first: int
    last: int
    is_scratch: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    """The places of all tensors that a graph computes; `peak` is the largest sum of bytes at any step.

    `sizes` are the values of the graph's symbols that the plan is made for.
    """

    KEY: ClassVar[str] = "memory_plan"  # of the graph's extensions

    banks: tuple[Bank, ...]
    places: tuple[Place, ...]
    steps: int
    peak: int
    sizes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def used(self) -> dict[str, int]:
        """The bytes of each bank that the plan needs: the end of the highest tensor."""
        found = {bank.name: 0 for bank in self.banks}
        for place in self.places:
            found[place.bank] = max(found[place.bank], place.offset + place.bytes)
        return found

    @cached_property
    def _by_name(self) -> dict[str, Place]:
        return {place.name: place for place in self.places if not place.is_scratch}

    def place(self, tensor: str) -> Place:
        """Return the place of a tensor; a view has none."""
        if tensor not in self._by_name:
            hint = suggestion(tensor, self._by_name)
            raise GraphError(f"the plan has no tensor {tensor!r:.80}", rule="R8", hint=hint)
        return self._by_name[tensor]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values, for `ir.extensions` or a file."""
        return {
            "banks": [_bank_record(bank) for bank in self.banks],
            "steps": self.steps,
            "peak": self.peak,
            "sizes": dict(self.sizes),
            "places": [_place_record(place) for place in self.places],
        }

    @classmethod
    def from_dict(cls, record: Any, path: str = "$") -> MemoryPlan:
        """Read a plan strictly; every error has the JSON path of its place. `check_plan` checks the places."""
        allow_keys(record, {"banks", "steps", "peak", "sizes", "places"}, path)
        banks = [
            _read_bank(bank, f"{path}.banks[{index}]")
            for index, bank in enumerate(required(record, "banks", list, path))
        ]
        names = {bank.name for bank in banks}
        if not 0 < len(banks) <= _MOST_BANKS or len(names) < len(banks):
            raise SerializationError(
                f"expected 1 to {_MOST_BANKS} banks of different names", f"{path}.banks", rule="R4"
            )
        sizes = optional(record, "sizes", dict, path) or {}
        return cls(
            tuple(banks),
            tuple(_read_places(required(record, "places", list, path), names, f"{path}.places")),
            _number(record, "steps", path, _MOST_STEPS),
            _number(record, "peak", path),
            {name: typed(size, int, f"{path}.sizes.{name:.60}") for name, size in sizes.items()},
        )


def _bank_record(bank: Bank) -> dict[str, Any]:
    limit = {} if bank.bytes is None else {"bytes": bank.bytes}
    return {"name": bank.name, **limit, "alignment": bank.alignment}


def _place_record(place: Place) -> dict[str, Any]:
    kind = "scratch_of" if place.is_scratch else "tensor"
    numbers = {name: getattr(place, name) for name in ("offset", "bytes", "first", "last")}
    return {kind: place.name, "bank": place.bank, **numbers}


def _read_bank(record: Any, path: str) -> Bank:
    allow_keys(record, {"name", "bytes", "alignment"}, path)
    limit = optional(record, "bytes", int, path)
    name, alignment = required(record, "name", str, path), required(record, "alignment", int, path)
    try:
        return Bank(name, limit, alignment)
    except DeviceError as error:
        raise SerializationError(str(error), path, rule="R4") from None


def _read_places(records: list[Any], banks: Iterable[str], path: str) -> Iterable[Place]:
    for index, record in enumerate(records):
        here = f"{path}[{index}]"
        allow_keys(record, {"tensor", "scratch_of", "bank", "offset", "bytes", "first", "last"}, here)
        kind = "scratch_of" if "scratch_of" in record else "tensor"
        bank = required(record, "bank", str, here)
        if bank not in banks:
            raise SerializationError(
                f"unknown bank {bank!r:.60}", f"{here}.bank", rule="R4", hint=suggestion(bank, banks)
            )
        offset, size, first, last = (_number(record, name, here) for name in ("offset", "bytes", "first", "last"))
        yield Place(required(record, kind, str, here), bank, offset, size, first, last, kind == "scratch_of")


def _number(record: Any, key: str, path: str, most: int = MOST_BYTES) -> int:
    number = required(record, key, int, path)
    if not 0 <= number <= most:
        raise SerializationError(
            f"expected a number from 0 to {most}, found {number!r:.40}", f"{path}.{key}", rule="R4"
        )
    return number
