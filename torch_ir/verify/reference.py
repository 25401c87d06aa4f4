"""Compare the values of a running graph with the recording of the original."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from torch_ir.ir import TensorMeta
from torch_ir.run.compiled_plan import Sizes
from torch_ir.run.tolerances import Difference, compare
from torch_ir.run.watched_values import DeclarationWatch
from torch_ir.verify.observe import undeclared
from torch_ir.verify.operator_log import Place, Recording
from torch_ir.verify.tensor_file import TensorFile, described

Tolerances = tuple[Union[float, None], Union[float, None]]


class Reference(DeclarationWatch):
    """Compares each value of a running graph with the recording."""

    def __init__(
        self,
        pairs: Mapping[TensorMeta, Place],
        read: Mapping[TensorMeta, list[Place]],
        recording: Recording,
        file: TensorFile,
        tolerances: Tolerances,
    ) -> None:
        self.pairs, self.read, self.recorded = pairs, read, recording.values
        self.file, self.tolerances = file, tolerances
        self.found: dict[TensorMeta, Difference] = {}
        self.undeclared: set[TensorMeta] = set()
        self.unclaimed: dict[Any, list[Place]] = {}
        claimed = set(pairs.values())
        for index, place in recording.values:
            if isinstance(place, int) and (index, place) not in claimed:
                self.unclaimed.setdefault(recording.calls[index].results[place], []).append((index, place))

    def __call__(self, tensor: TensorMeta, value: Any, sizes: Sizes) -> None:
        problem = undeclared(tensor, value, sizes)
        if problem and tensor.consumers:
            self.found[tensor] = Difference(problem, float("inf"), float("inf"))
            self.undeclared.add(tensor)
            return
        places = [self.pairs[tensor]] if tensor in self.pairs else self._arguments_like(tensor, value)
        differences = [self._compare(place, value) for place in places if place in self.recorded]
        if differences:
            self.found[tensor] = min(differences, key=lambda difference: difference.reason != "")
        # after fusion, the value may be that of a call that has no node
        if not differences or self.found[tensor].reason:
            elsewhere = self.unclaimed.get(described(value), ())
            compared = (self._compare(place, value) for place in elsewhere)
            close = next((difference for difference in compared if not difference.reason), None)
            if close is not None:
                self.found[tensor] = close

    def _arguments_like(self, tensor: TensorMeta, value: Any) -> list[Place]:
        """Return the original's arguments there that have the same type; it may lack a mask that the graph builds."""
        kind = described(value)
        kept = [(place, self.recorded[place]) for place in self.read.get(tensor, ()) if place in self.recorded]
        return [place for place, value in kept if described(self.file.get(value)) == kind]

    def _compare(self, place: Place, value: Any) -> Difference:
        return compare(self.file.get(self.recorded[place]), value, *self.tolerances)
