"""ONNX and MLIR files of a Llama as wide as the 405B model, without weights: layers as functions, and inlined."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch_ir
from benchmarks.measure import Samples, median_time, table
from benchmarks.models import Case, llama_405b, tokens

HEADER = ["graph", "file", "form", "first call, CPU", "second call, CPU", "size", "of it names of weights"]
LAYERS = (16, 126)
MOST_INLINE = 16  # layers that are also written as inlined ONNX, which takes half a second each


def run() -> str:
    """Return CPU times of the first and the second call in one process, and sizes; the function form comes first."""
    return table(HEADER, [row for layers in LAYERS for row in _rows(layers)])


def _rows(layers: int) -> list[list[str]]:
    case = Case(f"Llama, {layers} layers", partial(llama_405b, layers), tokens)
    model, inputs = case.on_meta()
    ir = torch_ir.extract_ir(model, (), kwargs=inputs, strict=False, blocks="function")
    ways = [
        (kind, form, partial(write, functions="none" if form == "inlined" else "blocks"))
        for form in ("functions", "inlined")
        for kind, write in (("onnx", torch_ir.to_onnx), ("mlir", torch_ir.to_mlir))
        if kind == "mlir" or form == "functions" or layers <= MOST_INLINE
    ]
    return [[case.name, kind.upper(), form, *_measured(ir, kind, write)] for kind, form, write in ways]


def _measured(ir: torch_ir.IR, kind: str, write: Callable[..., Any]) -> list[str]:
    samples = Samples()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model.{kind}"
        for _ in range(2):
            samples.add(partial(write, ir, path))
        content = path.read_bytes()
    names = sum(content.count(key.encode()) * len(key) for key in ir.weight_name_mapping.values())
    return [*(median_time([cpu]) for cpu in samples.cpu), f"{len(content) / 1e3:.0f} kB", f"{names / 1e3:.0f} kB"]
