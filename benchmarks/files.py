"""Saving and loading graphs of Llamas as JSON and protobuf, against torch.export's format."""

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import torch_ir
from benchmarks.measure import median_time, race, ratios, table
from benchmarks.models import Case, llama, tokens, torch_export
from torch_ir import IR

HEADER = ["graph", "file", "save", "load", "size", "per node", "torch.export / this (save, load, size)"]
SMALL = Case("Llama, 8 layers", llama, tokens)
MIDDLE = Case("Llama, 32 layers", lambda: llama(layers=32), tokens)
DEEP = Case("Llama, 126 layers", lambda: llama(layers=126), tokens)


@dataclass(frozen=True)
class Way:
    """A file format to measure."""

    name: str
    suffix: str
    save: Callable[[IR, Path], Any]
    load: Callable[[Path], Any]


WAYS = [
    Way("JSON", "json", lambda ir, path: ir.save(path), IR.load),
    Way("JSON, gzip", "json.gz", lambda ir, path: ir.save(path), IR.load),
    Way("protobuf", "pb", torch_ir.save_protobuf, torch_ir.load_protobuf),
]


def run(repeats: int = 7) -> str:
    """Return times and sizes, in total and per node; torch.export also gets a program without weights."""
    ir, deep = captured(SMALL), captured(DEEP)
    calls = deep.at_level("module", leaf=["LlamaDecoderLayer"])
    rows = [
        *compared(SMALL.name, ir, WAYS, repeats, exported(SMALL)),
        *compared(MIDDLE.name, captured(MIDDLE), WAYS, repeats),
        *compared(DEEP.name, deep, WAYS, 3),
        *compared(f"{DEEP.name}, a call each", calls, WAYS, repeats),
    ]
    return table(HEADER, rows)


def captured(case: Case) -> IR:
    model, inputs = case.on_meta()
    return torch_ir.extract_ir(model, (), kwargs=inputs)


def exported(case: Case) -> Way:
    """Return torch.export's format, for its own program of the same model."""
    program = torch_export(*case.on_meta())
    return Way("torch.export", "pt2", lambda _, path: torch.export.save(program, path), torch.export.load)


def compared(name: str, ir: IR, ways: list[Way], repeats: int, other: Way | None = None) -> list[list[str]]:
    """Return a row per file format, with the ratio to torch.export."""
    others = [other] if other else []
    nodes = sum(1 for _ in ir.all_nodes())
    with tempfile.TemporaryDirectory() as folder:
        files = {way.name: _File(way, ir, Path(folder) / f"model.{way.suffix}") for way in [*ways, *others]}
        times = [
            race({name: getattr(file, step) for name, file in files.items()}, repeats) for step in ("save", "load")
        ]
        sizes = {name: file.path.stat().st_size for name, file in files.items()}
    rows = []
    for way, size in sizes.items():
        spent = [median_time(step[way].wall) for step in times]
        each = [f"{statistics.median(step[way].wall) / nodes * 1e6:.1f} µs" for step in times]
        more = [ratios(step[other.name].wall, step[way].wall) for step in times] if other else []
        more += [f"{sizes[other.name] / size:.1f}"] if other else []
        each.append(f"{size / nodes:.0f} bytes")
        rows.append([f"{name}: {nodes} nodes", way, *spent, f"{size / 1e3:.0f} kB", ", ".join(each), ", ".join(more)])
    return rows


@dataclass(frozen=True)
class _File:
    """A graph and its path."""

    way: Way
    ir: IR
    path: Path

    def save(self) -> Any:
        return self.way.save(self.ir, self.path)

    def load(self) -> Any:
        return self.way.load(self.path)
