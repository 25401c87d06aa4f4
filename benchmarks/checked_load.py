"""CPU time per node of loading files with every rule checked, against the reader alone."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch_ir
from benchmarks.measure import forget_peak, measured_alone, memory, table
from benchmarks.models import EXTRACTED, Case, llama, tokens
from torch_ir import IR

HEADER = ["graph", "read", "trusted", "checked", "checked, cold", "memory / file size"]
CASES = [*EXTRACTED[:2], Case("Llama, 80 layers", lambda: llama(layers=80), tokens)]
REPEATS = 7


def run() -> str:
    """Load each file in a separate process, in which torch is imported."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            path = Path(folder) / "model.json"
            model, inputs = case.on_meta()
            ir = torch_ir.extract_ir(model, (), kwargs=inputs)
            ir.save(path)
            found = measured_alone("benchmarks.checked_load", path)
            each = [f"{found[kind] / len(ir.nodes) * 1e6:.0f} µs" for kind in ("read", "trusted", "checked", "first")]
            rows.append([f"{case.name}: {len(ir.nodes)} nodes", *each, f"{found['bytes'] / path.stat().st_size:.1f}"])
    return table(HEADER, rows)


def measured(path: str) -> dict[str, float]:
    """Return the seconds of each way to load a file, and the peak memory of a checked load."""
    forget_peak()
    before = memory("VmRSS")
    first = _seconds(lambda: torch_ir.load_ir(path))
    taken = memory("VmHWM") - before
    ways: dict[str, Callable[[], Any]] = {
        "read": lambda: IR.load(path),
        "trusted": lambda: torch_ir.load_ir(path, trusted=True),
        "checked": lambda: torch_ir.load_ir(path),
    }
    best = {name: min(_seconds(load) for _ in range(REPEATS)) for name, load in ways.items()}
    return {**best, "first": first, "bytes": taken}


def _seconds(action: Callable[[], Any]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1])))
