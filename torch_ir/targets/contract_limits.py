"""Limits of a contract on one node: ranges of numbers, and conditions on shapes and attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch_ir.errors import ExpressionError, SerializationError
from torch_ir.ir import Expr, OpNode, TensorMeta, evaluate
from torch_ir.ir.json.json_fields import allow_keys
from torch_ir.ir.sizes.expressions import names_in

_RANGE = frozenset(("min", "max"))
_PLAIN = (bool, int, float, str)
# weight.shape[0], tensors.1.rank, output.shape[-1], stride[0]: references in conditions beside plain attributes
_REFERENCE = re.compile(
    r"(?<![\w.])(?P<name>[A-Za-z_]\w*(?:\.\d+)?)"
    r"(?:\.shape\[(?P<dim>-?\d{1,3})\]|\.rank(?!\w)|\[(?P<place>-?\d{1,3})\])"
)


@dataclass(frozen=True)
class Limit:
    """The allowed values: a few, or a range of numbers; for a list, of every element."""

    allowed: tuple[Any, ...] = ()
    min: float | None = None
    max: float | None = None

    @classmethod
    def read(cls, value: Any, path: str) -> Limit:
        """Read `1`, `[1, 2]` or `{max = 7}`."""
        if isinstance(value, Mapping):
            allow_keys(dict(value), _RANGE, path)
            for key, bound in value.items():
                if isinstance(bound, bool) or not isinstance(bound, (int, float)):
                    raise SerializationError(f"expected a number, found {bound!r:.60}", f"{path}.{key}")
            low, high = value.get("min"), value.get("max")
            if (low is None and high is None) or (low is not None and high is not None and low > high):
                raise SerializationError("a range needs 'min' or 'max', and must not be empty", path)
            return cls((), low, high)
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if not values or not all(isinstance(item, _PLAIN) for item in values):
            raise SerializationError(f"expected a value, a list of values or a range, found {value!r:.60}", path)
        return cls(values)

    def admits(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(self.admits, value))
        if self.allowed:
            return any(_is_same(value, item) for item in self.allowed)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        if self.allowed:
            return " or ".join(map(_text, self.allowed))
        if self.min is None or self.max is None:
            return f"at most {self.max}" if self.min is None else f"at least {self.min}"
        return f"from {self.min} to {self.max}"


class Reference(NamedTuple):
    """`weight.shape[0]` has a `dim`, `stride[0]` a `place`, and `weight.rank` neither."""

    text: str
    name: str
    dim: int | None
    place: int | None


@dataclass(frozen=True)
class Condition:
    """An expression that must hold, and the references behind its names."""

    text: str
    expression: str
    references: Mapping[str, Reference]

    @classmethod
    def read(cls, text: str, path: str) -> Condition:
        """Parse `weight.shape[0] % 8 == 0 and stride[0] <= 2`, in the language of sizes in the graph."""
        references: dict[str, Reference] = {}

        def named(found: re.Match[str]) -> str:
            name = f"_{len(references)}"
            dim, place = (None if digits is None else int(digits) for digits in (found["dim"], found["place"]))
            references[name] = Reference(found[0], found["name"], dim, place)
            return name

        expression = _REFERENCE.sub(named, text)
        try:
            names_in(expression)
        except ExpressionError:
            raise SerializationError(
                f"{text!r:.80} is not a condition such as 'weight.shape[0] % 8 == 0'", path
            ) from None
        return cls(text, expression, references)

    def why_not(self, node: OpNode) -> str:
        """Return why the condition does not hold, or ""."""
        values: dict[str, Any] = {}
        shown: list[str] = []
        for name in sorted(names_in(self.expression)):
            found = self.references.get(name)
            value = _referred(node, found) if found else _value(node, name)
            label = found.text if found else name
            if not isinstance(value, (int, float)):
                return f"needs {self.text}, but {label} is {value}"
            values[name] = value
            shown.append(f"{label} = {value}")
        try:
            holds = evaluate(self.expression, values)
        except ExpressionError as error:
            return f"needs {self.text}: {error}"
        return "" if holds else f"needs {self.text}, but {', '.join(shown)}"


def tensors_of(node: OpNode) -> Iterator[tuple[str, TensorMeta]]:
    """Yield every tensor of a node with its name in a contract."""
    yield from zip(node.args, node.inputs, strict=True)
    for index, tensor in enumerate(node.outputs):
        yield ("output" if len(node.outputs) == 1 else f"output.{index}"), tensor


def _referred(node: OpNode, found: Reference) -> Any:
    """Return the referenced number, or a description if there is none."""
    if found.place is not None:
        value = node.attrs.get(found.name)
        return _item(value, found.place) if isinstance(value, list) else "absent"
    tensor = dict(tensors_of(node)).get(found.name)
    if tensor is None:
        return "absent"
    return len(tensor.shape) if found.dim is None else _item(tensor.shape, found.dim)


def _value(node: OpNode, name: str) -> Any:
    value = node.attrs.get(name, "absent")
    return "a list" if isinstance(value, list) else value


def _item(values: Sequence[Any], index: int) -> Any:
    if not -len(values) <= index < len(values):
        return "absent"
    return f"{values[index]}, which is symbolic" if isinstance(values[index], str) else values[index]


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same kind: 1 is not true, and a symbolic size is not a string."""
    if isinstance(one, bool) is not isinstance(other, bool) or isinstance(one, Expr):
        return False
    return bool(one == other)


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
