"""Plans for a whole model: mesh axes with the rows of each, and where pipeline stages begin; as a JSON file.

plan = load_plan("plan.json")
sharded = plan.shard(ir)
pipeline = plan.split(sharded)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_ir.errors import PlanError, SerializationError
from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import write_text
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.json.json_fields import allow_keys, check_header, optional, texts, typed
from torch_ir.ir.json.json_fields import field as required
from torch_ir.ir.json.json_text import parse_document, read_text
from torch_ir.pipeline import split
from torch_ir.planning.style_options import Row
from torch_ir.sharding import shard

FORMAT = "torch_ir.plan"
VERSION = 1
_KEYS = frozenset(("format", "version", "model", "axes", "stages", "estimate"))
_AXIS_KEYS = frozenset(("axis", "ranks", "rows", "inputs", "outputs"))
_MOST_AXES = 4
_MOST_RANKS = 1 << 20
_MOST_ROWS = 100_000
_MOST_STAGES = 10_000


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh: the arguments of `shard`."""

    axis: str
    ranks: int
    rows: Mapping[str, Row] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimate:
    """The cost of a plan: seconds of a run, and between runs with copies on all devices; bytes of one rank."""

    seconds: float
    interval: float
    memory: float
    sent: float


@dataclass(frozen=True)
class ParallelPlan:
    """Division of a model: mesh axes in the order in which they are applied, and stages after the first."""

    model: str
    axes: tuple[Axis, ...] = ()
    stages: tuple[str, ...] = ()  # the module or node with which each later stage begins
    estimate: Estimate | None = None

    @property
    def devices(self) -> int:
        """The number of devices that the plan uses."""
        return math.prod(axis.ranks for axis in self.axes) * (len(self.stages) + 1)

    @property
    def mesh(self) -> dict[str, int]:
        """The number of ranks along each axis."""
        return {axis.axis: axis.ranks for axis in self.axes}

    def shard(self, ir: IR) -> IR:
        """Return the graph that every rank runs, sharded along all axes."""
        require_graph(ir, "ParallelPlan.shard")
        for axis in self.axes:
            ir = shard(ir, axis.rows, {axis.axis: axis.ranks}, inputs=axis.inputs, outputs=axis.outputs)
        return ir

    def split(self, ir: IR) -> IR:
        """Return the graph, whole or sharded, as a pipeline of the plan's stages."""
        require_graph(ir, "ParallelPlan.split")
        if not self.stages:
            raise PlanError("the plan has one stage: there is nothing to split")
        return split(ir, at=self.stages)

    def to_dict(self) -> dict[str, Any]:
        """Return the document of the file."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "axes": [
                {
                    "axis": each.axis,
                    "ranks": each.ranks,
                    "rows": {path: row if isinstance(row, str) else dict(row) for path, row in each.rows.items()},
                    "inputs": dict(each.inputs),
                    "outputs": dict(each.outputs),
                }
                for each in self.axes
            ],
            "stages": list(self.stages),
            **({"estimate": vars(self.estimate)} if self.estimate else {}),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a JSON file, atomically."""
        write_text(path, json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")


def load_plan(path: str | os.PathLike[str]) -> ParallelPlan:
    """Read a plan file; a PlanError says where it is invalid."""
    try:
        text = read_text(path)
    except SerializationError as error:
        raise PlanError(str(error)) from None
    try:
        return plan_of(parse_document(text))
    except SerializationError as error:
        raise PlanError(f"{os.fspath(path)} is not a plan: {error}") from None


def is_plan(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a plan of this form, and not rows of styles."""
    return document.get("format") == FORMAT


def plan_of(document: dict[str, Any]) -> ParallelPlan:
    """Return the plan of a document; raise SerializationError if it is invalid."""
    check_header(document, FORMAT, VERSION, _KEYS, "plan")
    axes = required(document, "axes", list, "$")
    stages = texts(document, "stages", "$")
    _bound(len(axes), _MOST_AXES, "axes", "$.axes")
    _bound(len(stages), _MOST_STAGES, "stages", "$.stages")
    return ParallelPlan(
        optional(document, "model", str, "$") or "",
        tuple(_axis(each, f"$.axes[{number}]") for number, each in enumerate(axes)),
        tuple(stages),
        _estimate(document.get("estimate"), "$.estimate"),
    )


def _axis(record: Any, path: str) -> Axis:
    allow_keys(record, _AXIS_KEYS, path)
    ranks = required(record, "ranks", int, path)
    if not 1 <= ranks <= _MOST_RANKS:
        raise SerializationError(
            f"expected a number from 1 to {_MOST_RANKS}, found {ranks}", f"{path}.ranks", rule="R4"
        )
    rows: dict[str, Row] = {}
    for name, row in required(record, "rows", dict, path).items():
        rows[name] = row if isinstance(row, str) else _strings(row, f"{path}.rows.{name:.60}")
    _bound(len(rows), _MOST_ROWS, "rows", f"{path}.rows")
    inputs, outputs = (_strings(record.get(key, {}), f"{path}.{key}") for key in ("inputs", "outputs"))
    return Axis(required(record, "axis", str, path), ranks, rows, inputs, outputs)


def _strings(record: Any, path: str) -> dict[str, str]:
    found: dict[str, Any] = typed(record, dict, path)
    _bound(len(found), _MOST_ROWS, "entries", path)
    return {name: typed(text, str, f"{path}.{name:.60}") for name, text in found.items()}


def _estimate(record: Any, path: str) -> Estimate | None:
    if record is None:
        return None
    names = Estimate.__dataclass_fields__
    allow_keys(record, names.keys(), path)
    numbers = {}
    for name in names:
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise SerializationError(f"expected a number, found {value!r:.60}", f"{path}.{name}", rule="R4")
        numbers[name] = float(value)
    return Estimate(**numbers)


def _bound(count: int, most: int, noun: str, path: str) -> None:
    if count > most:
        raise SerializationError(f"{count} {noun} are more than {most}", path, rule="R2")
