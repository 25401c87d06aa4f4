"""The counted sweep of operators on views: all ways through the library itself, and back ends on smaller parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.backend_sweep.coverage import SILENT, verdict
from tests.backend_sweep.measuring import sweep
from tests.backend_sweep.table import records

FOLDER = Path(__file__).resolve().parents[2] / "reports" / "views"
# the parts of 60 or more of the database that each takes, drawn at random; compilers take seconds per case
PARTS = {
    "own": ("3/60", "17/60", "31/60", "44/60"),
    "onednn": ("3/60",),
    "onnxruntime": ("3/60",),
    "openvino": ("3/60",),
    "iree": ("3/240",),
}


def measure() -> dict[str, int | float | str]:
    """Sweep, and count the verdicts of every path."""
    for name, parts in PARTS.items():
        for part in parts:
            sweep(name, "views", part, FOLDER)
    return figures(FOLDER)


def figures(folder: Path) -> dict[str, int | float | str]:
    """The counts of the records in a folder."""
    found = records(sorted(folder.glob("*.jsonl")))
    kinds = [(record["backend"], verdict(record)) for record in found]
    made: dict[str, int | float | str] = {
        "graphs": len({record["case"] for record in found}),
        "operators of the database in them": len({record["operator"] for record in found}),
        "runs, each on one set of values": len(found),
    }
    for name in dict.fromkeys(name for name, _ in kinds):
        tally = Counter(kind for path, kind in kinds if path == name and kind != SILENT)
        made[name] = ", ".join(f"{count:,} {kind}" for kind, count in tally.most_common())
    return {**made, SILENT: sum(kind == SILENT for _, kind in kinds)}
