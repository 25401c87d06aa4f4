"""The whole sweep, in separate processes, and the counts for the page; existing records are kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.backend_sweep.coverage import DEVIATES, SILENT, counts
from tests.backend_sweep.judging import REFUSED, ROUNDING, SAME
from tests.backend_sweep.table import records

FOLDER = Path(__file__).resolve().parents[2] / "reports" / "backends"
BACKENDS = ("onednn", "inductor", "onnxruntime", "openvino", "iree")
# back end -> (parts swept, equal parts of the database), per dtype; compilers take seconds per case
PARTS = {"onednn": (16, 16), "inductor": (96, 8), "onnxruntime": (16, 16), "openvino": (16, 16), "iree": (48, 8)}
DTYPES = ("float32", "float16", "int64", "bool")


def measure() -> dict[str, int | float | str]:
    """Sweep, and count the verdicts of every back end."""
    for backend in BACKENDS:
        for kind in ("functions", "open"):
            sweep(backend, kind, "0/1")
        parts, swept = PARTS[backend]
        for dtype in ("pairs", *DTYPES):
            for part in range(0, parts, parts // swept):
                sweep(backend, dtype, f"{part}/{parts}")
    return figures(FOLDER)


def figures(folder: Path) -> dict[str, int | float | str]:
    """The counts of the records in a folder."""
    found = records(sorted(folder.glob("*.jsonl")))
    tally = counts(found)
    made: dict[str, int | float | str] = {
        "runs of operators and functions, each on one set of values": len(found),
        "operators in them": len({node["op"] for record in found for node in record["nodes"]}),
    }
    for backend in [backend for backend in BACKENDS if any(name == backend for name, _ in tally)]:
        made |= {f"{backend}: {kind}": tally[backend, kind] for kind in (SAME, ROUNDING, DEVIATES, REFUSED, SILENT)}
    return made


def sweep(backend: str, dtype: str, part: str, folder: Path = FOLDER) -> Path:
    """Sweep one part, unless its records exist, and return the file of records."""
    command = ["--backend", backend, "--dtype", dtype, "--part", part, "--samples", "2", "-o", str(folder)]
    subprocess.run([sys.executable, "-m", "tests.backend_sweep", *command], check=True)
    return folder / f"{backend}-{dtype}-{part.replace('/', 'of')}.jsonl"
