"""Which scheme each layer gets. A function whose calls need different schemes is copied for each combination."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from torch_ir.errors import QuantizationError
from torch_ir.ir import IR, FunctionRef, OpNode
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.origins import modules_around
from torch_ir.quantization.activation_nodes import Range
from torch_ir.quantization.layers import CallPlaces, Place, Places, find_places
from torch_ir.quantization.recipe import Recipe, Scheme

Ranges = Mapping[str, Range]  # by the name of the layer that reads the tensor


@dataclass(frozen=True)
class Chosen:
    """The scheme of a node, and the layers that it is: several if its function is called several times."""

    scheme: Scheme | None
    range: Range | None
    places: tuple[Place, ...]


@dataclass(frozen=True)
class _Variant:
    """A function with one choice for each of its layers."""

    function: str
    inside: tuple[_Key, ...]


_Key = Union[tuple[Union[Scheme, None], Union[Range, None]], _Variant]


class Choices:
    """The choice for each layer of a graph and its functions, by node."""

    def __init__(self, ir: IR, recipe: Recipe, ranges: Ranges) -> None:
        self._ir, self._recipe, self._ranges = ir, recipe, ranges
        self.nodes: dict[OpNode, Chosen] = {}
        self._choose(ir, [find_places(ir)])

    def forget_modules(self, changed: Iterable[str]) -> None:
        """Drop the classes of the modules around these layers: a target must not lower them as if they were float."""
        for outer in {outer for path in changed for outer in modules_around(path)}:
            self._ir.modules.pop(outer, None)

    def _choose(self, ir: IR, versions: Sequence[Places]) -> None:
        """Record the choice for each node of a body; `versions` are the places in its calls, which are chosen alike."""
        variants: dict[_Variant, list[CallPlaces]] = {}
        for same in zip(*versions, strict=True):
            first = same[0]
            if isinstance(first, Place):
                places = tuple(place for place in same if isinstance(place, Place))
                self.nodes[first.node] = Chosen(*self._of(first), places)
            else:
                calls = [place for place in same if isinstance(place, CallPlaces)]
                variants.setdefault(self._variant(first), []).extend(calls)
        taken = Names(ir.functions)
        seen: set[str] = set()
        for variant, calls in variants.items():
            if variant.function in seen:  # cloned before any layer is changed
                name = fresh(variant.function, taken)
                ir.functions[name] = ir.functions[variant.function].clone()
                for call in calls:
                    call.node.attrs["function"] = FunctionRef(name)
            seen.add(variant.function)
        for calls in variants.values():
            body = ir.functions[calls[0].node.attrs["function"]]
            self._choose(body, [_inside(call, body) for call in calls])

    def _variant(self, call: CallPlaces) -> _Variant:
        inside = (self._of(place) if isinstance(place, Place) else self._variant(place) for place in call.inside)
        return _Variant(str(call.node.attrs["function"]), tuple(inside))

    def _of(self, place: Place) -> tuple[Scheme | None, Range | None]:
        """Return the scheme of a layer, and the observed range of its input if it needs one."""
        rule = self._recipe.rule_for(place.name, place.path, place.node.op_type)
        scheme = None if rule is None else rule.scheme
        is_static = scheme is not None and scheme.activation is not None and scheme.ranges == "static"
        range_ = self._ranges.get(place.name) if is_static else None
        if range_ is None:
            return scheme, None
        low, high = map(float, range_)
        if not -math.inf < low <= high < math.inf:
            raise QuantizationError(f"the range of {place.name!r} must be two numbers, the lower one first: {range_}")
        return scheme, (low, high)


def _inside(call: CallPlaces, body: IR) -> Places:
    """Return the places in the body of a call, with the nodes of that body, which may be a copy."""
    nodes = {node.name: node for node in body.nodes}
    return [
        Place(nodes[place.node.name], place.name, place.path)
        if isinstance(place, Place)
        else CallPlaces(nodes[place.node.name], place.inside)
        for place in call.inside
    ]
