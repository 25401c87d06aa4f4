"""Recipes: which layers are quantised, and how. Plain data, readable from JSON and TOML.

Recipe.of("int4-g64")                                        # every layer
Recipe.of({"lm_head": None, "*.mlp.*": "int4-g64", "*": "int8"})   # the first pattern that matches a layer decides
Recipe([LayerRule("*", Scheme(weight="int8", activation="uint8", ranges="static"), operator="aten.conv2d*")])
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Union

from torch_ir.errors import QuantizationError, SerializationError, did_you_mean
from torch_ir.formats.table_file import read_table
from torch_ir.ir import IR
from torch_ir.ir.checks.limits import Limits
from torch_ir.ir.files.atomic_write import write_text

KEY = "quantization"  # of the graph's extensions: the recipe with which it was quantised
FP8 = "float8_e4m3fn"
FLOAT = "float"  # in a file: leave the layer as it is
_WEIGHTS = ("int8", "int4", FP8)
_ACTIVATIONS = ("uint8", "int8", FP8)
_RANGES = ("dynamic", "static")
_SIZE = Limits(file_bytes=1 << 24)
_WILDCARDS = frozenset("*?[")
_MOST_PATTERNS = 200  # of a recipe: each is compared with each layer
_LONGEST = 1000  # characters of a pattern, or of the name of a scheme


@dataclass(frozen=True)
class Scheme:
    """Quantisation of a layer: its weight, and its input if `activation` is set.

    `weight` is int8, int4 or float8_e4m3fn, with one scale per output channel, or per `group` elements of a channel. An
    integer weight is symmetric or has zero points. `activation` is uint8 (with a zero point), int8 (symmetric) or
    float8_e4m3fn; its `ranges` are measured in each run (dynamic) or observed before (static).
    """

    weight: str = "int8"
    group: int | None = None
    symmetric: bool = True
    activation: str | None = None
    ranges: str = "dynamic"

    def __post_init__(self) -> None:
        _one_of("weight", self.weight, _WEIGHTS)
        _one_of("ranges", self.ranges, _RANGES)
        if self.activation is not None:
            _one_of("activation", self.activation, _ACTIVATIONS)
        if type(self.symmetric) is not bool:
            raise QuantizationError(f"symmetric must be true or false, not {self.symmetric!r:.40}")
        if self.group is not None and (type(self.group) is not int or self.group < 2 or self.group % 2):
            raise QuantizationError(f"group must be an even number of elements, or absent, not {self.group!r:.40}")
        if self.weight == FP8 and not self.symmetric:
            raise QuantizationError(f"{FP8} weights are symmetric; remove symmetric = false")
        if self.activation is not None and (self.weight == FP8) != (self.activation == FP8):
            raise QuantizationError(f"{self.weight} weights and {self.activation} activations cannot be combined")

    def __str__(self) -> str:
        """The preset name, or the same spelling for other combinations: `int4-g64-asym`."""
        parts = ["fp8" if self.weight == FP8 else self.weight]
        parts += [f"g{self.group}"] if self.group else []
        parts += [] if self.symmetric else ["asym"]
        parts += [f"{self.ranges}-{'fp8' if self.activation == FP8 else self.activation}"] if self.activation else []
        return "-".join(parts)

    @classmethod
    def of(cls, given: SchemeLike) -> Scheme | None:
        """Return a scheme from a name such as `int8`, `int4-g64-asym` or `w8a8`, a dict, or None for float."""
        if given is None or isinstance(given, Scheme):
            return given
        if isinstance(given, str):
            return None if given == FLOAT else _parsed(given)
        if not isinstance(given, Mapping):
            raise QuantizationError(f"a scheme is a name, a table or null, not {type(given).__name__}")
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                known = ", ".join(names)
                raise QuantizationError(
                    f"a scheme has no {name!r:.40}; expected {known}{did_you_mean(str(name), names)}"
                )
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, and the weight."""
        usual = asdict(Scheme())
        return {name: value for name, value in asdict(self).items() if name == "weight" or value != usual[name]}


SchemeLike = Union[Scheme, str, Mapping[str, Any], None]
_PRESETS: dict[str, dict[str, Any]] = {
    "int8": {"weight": "int8"},
    "int4": {"weight": "int4"},
    "w8a8": {"weight": "int8", "activation": "uint8", "ranges": "static"},
    "w8a8-static": {"weight": "int8", "activation": "uint8", "ranges": "static"},
    "w8a8-dynamic": {"weight": "int8", "activation": "int8", "ranges": "dynamic"},
    "fp8": {"weight": FP8},
    "fp8-static": {"weight": FP8, "activation": FP8, "ranges": "static"},
    "fp8-dynamic": {"weight": FP8, "activation": FP8, "ranges": "dynamic"},
}


@dataclass(frozen=True)
class LayerRule:
    """The scheme of the layers whose module path and operator match these patterns; None leaves them in float."""

    match: str
    scheme: Scheme | None
    operator: str = "*"

    @property
    def is_pattern(self) -> bool:
        """Whether the rule must be compared with each layer: it is not the name of one, or it names operators."""
        return self.operator != "*" or not _WILDCARDS.isdisjoint(self.match)

    def fits(self, name: str, path: str, op_type: str) -> bool:
        """Whether the rule applies to a layer."""
        is_here = fnmatchcase(name, self.match) or fnmatchcase(path, self.match)
        return is_here and fnmatchcase(op_type, self.operator)


@dataclass(frozen=True)
class Recipe:
    """Rules for layers; the first that matches a layer decides, and a layer without a rule stays in float."""

    rules: tuple[LayerRule, ...]

    def __post_init__(self) -> None:
        if (count := len(self._patterns)) > _MOST_PATTERNS:
            raise QuantizationError(f"{count} rules with patterns are more than {_MOST_PATTERNS}; use names of layers")

    @cached_property
    def _patterns(self) -> list[tuple[int, LayerRule]]:
        return [(at, rule) for at, rule in enumerate(self.rules) if rule.is_pattern]

    @cached_property
    def _names(self) -> dict[str, int]:
        """The first rule for each name."""
        exact = [(rule.match, at) for at, rule in enumerate(self.rules) if not rule.is_pattern]
        return dict(reversed(exact))

    @classmethod
    def of(cls, given: RecipeLike) -> Recipe:
        """Return a recipe from a scheme for all layers, a dict of patterns, or the content of a recipe file."""
        if isinstance(given, Recipe):
            return given
        if isinstance(given, (str, Scheme)):
            return cls((LayerRule("*", Scheme.of(given)),))
        if isinstance(given, Mapping) and "layers" in given:
            return cls(tuple(_rules(given)))
        if isinstance(given, Mapping):
            return cls(tuple(LayerRule(_text("a pattern", name), Scheme.of(value)) for name, value in given.items()))
        raise QuantizationError(f"a recipe is a scheme, a dict of patterns or a Recipe, not {type(given).__name__}")

    def rule_for(self, name: str, path: str, op_type: str) -> LayerRule | None:
        """Return the rule that decides on a layer."""
        named = min(self._names.get(name, len(self.rules)), self._names.get(path, len(self.rules)))
        earlier = (at for at, rule in self._patterns if at < named and rule.fits(name, path, op_type))
        found = next(earlier, named)
        return self.rules[found] if found < len(self.rules) else None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a recipe file."""
        return {"layers": [_record(rule) for rule in self.rules]}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recipe:
        """Read a recipe from a .json or .toml file."""
        try:
            return cls.of(read_table(Path(path), _SIZE, "a recipe"))
        except (SerializationError, QuantizationError) as error:
            if str(path) in str(error):
                raise
            raise type(error)(f"{path}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recipe as JSON, atomically."""
        write_text(path, json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def from_ir(cls, ir: IR) -> Recipe | None:
        """Return the recipe with which a graph was quantised; None if it was not."""
        found = ir.extensions.get(KEY)
        return cls.of(found) if isinstance(found, Mapping) else None


RecipeLike = Union[Recipe, Scheme, str, Mapping[str, Any]]


def _rules(given: Mapping[str, Any]) -> Iterable[LayerRule]:
    known = ("layers",)
    for name in given:
        if name not in known:
            raise QuantizationError(f"a recipe has no {name!r:.40}; expected layers{did_you_mean(str(name), known)}")
    if not isinstance(given["layers"], (list, tuple)):
        raise QuantizationError("layers of a recipe is a list of tables, each with match and scheme")
    names = ("match", "operator", "scheme")
    for at, record in enumerate(given["layers"]):
        if not isinstance(record, Mapping) or "scheme" not in record:
            raise QuantizationError(f'layers[{at}] of the recipe needs a scheme (write "{FLOAT}" to quantise nothing)')
        for name in record:
            if name not in names:
                message = f"layers[{at}] of the recipe has no {name!r:.40}; expected {', '.join(names)}"
                raise QuantizationError(f"{message}{did_you_mean(str(name), names)}")
        match, operator = (_text(name, record.get(name, "*")) for name in ("match", "operator"))
        yield LayerRule(match, Scheme.of(record["scheme"]), operator)


def _record(rule: LayerRule) -> dict[str, Any]:
    found: dict[str, Any] = {"match": rule.match}
    if rule.operator != "*":
        found["operator"] = rule.operator
    return {**found, "scheme": FLOAT if rule.scheme is None else rule.scheme.to_dict()}


def _parsed(name: str) -> Scheme:
    """Parse the name of a scheme: a preset, then `-g64` and `-asym`."""
    first, *rest = name[:_LONGEST].split("-")
    for count in range(len(rest), -1, -1):
        preset = _PRESETS.get("-".join([first, *rest[:count]]))
        if preset is not None:
            return _adjusted(preset, name, rest[count:])
    found = did_you_mean(name, _PRESETS)
    raise QuantizationError(f"unknown scheme {name!r:.40}; expected {FLOAT}, {', '.join(_PRESETS)}, or int4-g64{found}")


def _adjusted(preset: Mapping[str, Any], name: str, parts: Iterable[str]) -> Scheme:
    settings = dict(preset)
    for part in parts:
        if part == "asym":
            settings["symmetric"] = False
        elif part[:1] == "g" and part[1:].isdecimal():
            settings["group"] = int(part[1:])
        elif part in _RANGES:
            settings["ranges"] = part
        elif (dtype := {"fp8": FP8}.get(part, part)) in _ACTIVATIONS:
            settings["activation"] = dtype
        else:
            raise QuantizationError(
                f"unknown part {part!r:.40} of scheme {name!r:.60}; expected g and a number, or asym"
            )
    return Scheme(**settings)


def _one_of(field: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        close = did_you_mean(value, known) if isinstance(value, str) else ""
        raise QuantizationError(
            f"{field} of a scheme cannot be {value!r:.40}; expected one of {', '.join(known)}{close}"
        )


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        raise QuantizationError(f"{what} of a recipe must be a text such as 'model.layers.*', not {value!r:.40}")
    return value
