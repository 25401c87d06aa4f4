"""Device files: a calibration as JSON, which `torch-ir calibrate` writes.

{"format": "torch_ir.device", "version": 1, "name": "NVIDIA H200", "kind": "cuda", ..., "grids": [
 {"family": "matmul", "dtype": "bfloat16", "weights": "memory", "axes": [[1, 4], [64, 256], [64]], "seconds": [...]}]}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Container, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from torch_ir.analysis.devices.calibration import KINDS, PLACES, Calibration, GridKey, Overheads
from torch_ir.analysis.devices.operator_families import AXES
from torch_ir.analysis.devices.time_grid import Grid
from torch_ir.errors import DeviceError, SerializationError
from torch_ir.ir.checks.limits import Limits
from torch_ir.ir.files.atomic_write import write_text
from torch_ir.ir.files.cache_folder import cache_folder
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.json.json_fields import allow_keys, check_header, typed
from torch_ir.ir.json.json_fields import field as required
from torch_ir.ir.json.json_text import parse_document, read_text

FORMAT = "torch_ir.device"
VERSION = 1
_FACTS = ("format", "version", "name", "kind", "threads", "torch", "peak", "bandwidth", "cache")
_KEYS = frozenset((*_FACTS, "overheads", "dispatch", "grids"))
_GRID_KEYS = frozenset(("family", "dtype", "weights", "axes", "seconds"))
_MOST_BYTES = 8 << 20
_MOST_GRIDS = 1000
_MOST_SIZES = 64  # along an axis
_MOST_POINTS = 100_000
_MOST_TEXT = 200
_MOST_THREADS = 1 << 16
_LONGEST = 1e6  # seconds
_LARGEST = 1e30  # a size, or FLOPs per second
_SMALLEST = 1e-30  # of all of these


def device_path(kind: str) -> Path:
    """Return the file in which the calibration of this machine's CPU or GPU is kept."""
    return cache_folder() / f"device-{kind}.json"


def save_device(device: Calibration, path: str | os.PathLike[str]) -> None:
    """Write a calibration to a file, atomically."""
    target = Path(path)
    if target.parent == cache_folder():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_text(path, to_text(device))


def to_text(device: Calibration) -> str:
    """Return the text of a device file: a line for each fact and for each grid."""
    facts = {
        "format": FORMAT,
        "version": VERSION,
        **{name: getattr(device, name) for name in _FACTS[2:]},
        "overheads": {name: _short(value) for name, value in asdict(device.overheads).items()},
        "dispatch": {
            dtype: {family: _short(value) for family, value in row.items()} for dtype, row in device.dispatch.items()
        },
    }
    grids = [
        {**key._asdict(), "axes": [list(axis) for axis in grid.axes], "seconds": list(map(_short, grid.seconds))}
        for key, grid in device.grids.items()
    ]
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items()]
    body = ",\n".join(map(json.dumps, grids))
    return "{\n" + ",\n".join([*lines, f'"grids": [\n{body}\n]']) + "\n}\n"


def load_device(path: str | os.PathLike[str]) -> Calibration:
    """Read a device file; a DeviceError says where it is invalid."""
    name = os.fspath(path)
    try:
        return device_of(parse_document(read_text(path, Limits(file_bytes=_MOST_BYTES))))
    except SerializationError as error:
        raise DeviceError(f"{name} is not a device file: {error}") from None


def device_of(document: dict[str, Any]) -> Calibration:
    """Return the device of a document; raise SerializationError if it is invalid."""
    check_header(document, FORMAT, VERSION, _KEYS, "calibrate")
    grids = required(document, "grids", list, "$")
    if len(grids) > _MOST_GRIDS:
        raise SerializationError(f"{len(grids)} grids are more than {_MOST_GRIDS}", "$.grids", rule="R2")
    found: dict[GridKey, Grid] = {}
    for number, record in enumerate(grids):
        key, grid = _grid(record, f"$.grids[{number}]")
        if key in found:
            raise SerializationError(f"a second grid of {' '.join(key)}", f"$.grids[{number}]", rule="R4")
        found[key] = grid
    threads = required(document, "threads", int, "$")
    if not 1 <= threads <= _MOST_THREADS:
        raise SerializationError(f"expected 1 to {_MOST_THREADS}, found {threads}", "$.threads", rule="R4")
    return Calibration(
        _number(document.get("peak"), "$.peak", _LARGEST),
        _number(document.get("bandwidth"), "$.bandwidth", _LARGEST),
        _text(document, "name"),
        _one_of(required(document, "kind", str, "$"), KINDS, "$.kind"),
        threads,
        _text(document, "torch"),
        _number(document.get("cache"), "$.cache", _LARGEST, least=0),
        found,
        {
            _one_of(dtype, DTYPES, "$.dispatch"): _seconds_by_name(row, f"$.dispatch.{dtype}", AXES)
            for dtype, row in required(document, "dispatch", dict, "$").items()
        },
        Overheads(
            **_seconds_by_name(document.get("overheads"), "$.overheads", [each.name for each in fields(Overheads)])
        ),
    )


def _grid(record: Any, path: str) -> tuple[GridKey, Grid]:
    allow_keys(record, _GRID_KEYS, path)
    family = _one_of(required(record, "family", str, path), AXES, f"{path}.family")
    dtype = _one_of(required(record, "dtype", str, path), DTYPES, f"{path}.dtype")
    weights = _one_of(required(record, "weights", str, path), PLACES, f"{path}.weights")
    axes = required(record, "axes", list, path)
    if len(axes) != len(AXES[family]):
        message = f"{family} has {len(AXES[family])} axes ({', '.join(AXES[family])}), not {len(axes)}"
        raise SerializationError(message, f"{path}.axes", rule="R4")
    sizes = tuple(_axis(axis, f"{path}.axes[{number}]") for number, axis in enumerate(axes))
    seconds = required(record, "seconds", list, path)
    count = math.prod(map(len, sizes))
    if len(seconds) != count or count > _MOST_POINTS:
        message = f"expected a number of seconds for each of {count} points, found {len(seconds)}"
        raise SerializationError(message, f"{path}.seconds", rule="R2" if count > _MOST_POINTS else "R4")
    times = (_number(value, f"{path}.seconds[{number}]", _LONGEST) for number, value in enumerate(seconds))
    return GridKey(family, dtype, weights), Grid(sizes, tuple(times))


def _axis(axis: Any, path: str) -> tuple[float, ...]:
    sizes: list[Any] = typed(axis, list, path)
    if not 1 <= len(sizes) <= _MOST_SIZES:
        raise SerializationError(f"expected 1 to {_MOST_SIZES} sizes, found {len(sizes)}", path, rule="R2")
    found = tuple(_number(size, f"{path}[{number}]", _LARGEST) for number, size in enumerate(sizes))
    if list(found) != sorted(set(found)):
        raise SerializationError("expected sizes in ascending order", path, rule="R4")
    return found


def _number(value: Any, path: str, most: float, *, least: float | None = None) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (_SMALLEST <= value <= most or value == least):
        message = f"expected a number above 0, at most {most:g} and at least {_SMALLEST:g}, found {value!r:.60}"
        raise SerializationError(message, path, rule="R4")
    return float(value)


def _text(document: dict[str, Any], key: str) -> str:
    text = required(document, key, str, "$")
    if len(text) > _MOST_TEXT or not text.isprintable():
        raise SerializationError(f"expected at most {_MOST_TEXT} printable characters", f"$.{key}", rule="R4")
    return text


def _one_of(text: str, known: Container[str], path: str) -> str:
    if text not in known:
        raise SerializationError(f"unknown {path.rpartition('.')[2]} {text!r:.60}", path, rule="R4")
    return text


def _seconds_by_name(record: Any, path: str, known: Iterable[str]) -> dict[str, float]:
    allow_keys(record, set(known), path)
    return {name: _number(value, f"{path}.{name}", _LONGEST, least=0) for name, value in record.items()}


def _short(number: float) -> float:
    """Round to four digits, which is more than a measurement gives."""
    return float(f"{number:.4g}")
