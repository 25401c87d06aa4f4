"""Models for sweeps, one for each status, and the output folder of a sweep."""

import ctypes
import json
import os
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torch_ir.sweep import Entry, Row

ENDS = {
    "hangs": "timeout",
    "fine": "ok",
    "raises": "refused",
    "differs": "failed",
    "aborts": "crashed",
    "segfaults": "crashed",
    "exits": "crashed",
    "grows": "out of memory",
}
_built: list[str] = []


class Net(nn.Module):
    """Two layers; a setting selects how it ends when it is run."""

    def __init__(self, end: str = "fine", width: int = 4, pause: float = 0.0) -> None:
        super().__init__()
        time.sleep(pause)
        _built.append(end)
        self.first, self.second, self.end = nn.Linear(8, width), nn.Linear(width, 8), end
        self.scale = float(len(_built)) if end == "differs" else 1.0  # another number in every model that is built

    def forward(self, x: Tensor) -> Tensor:
        if self.end in _ACTIONS:
            _ACTIONS[self.end]()
        return self.second(self.first(x).relu()) * self.scale


def _raise() -> None:
    raise ValueError("this model does not like its input")


def _segfault() -> None:
    ctypes.string_at(0)


def _hang() -> None:
    time.sleep(1000)


def _grow() -> None:
    held = []
    while True:
        held.append(bytearray(b"1") * (1 << 26))


_ACTIONS = {
    "raises": _raise,
    "aborts": os.abort,
    "segfaults": _segfault,
    "exits": lambda: os._exit(3),
    "hangs": _hang,
    "grows": _grow,
}


def entry(end: str = "fine", **settings: Any) -> Entry:
    """A line that names a model with this end."""
    query = "&".join(f"{key}={value}" for key, value in {"end": end, **settings}.items())
    return Entry(f"tests.swept:Net?{query}", ("2x8",))


def journal(folder: Path) -> list[dict[str, Any]]:
    """Every row that a sweep has written, in the order of writing."""
    file = folder / "rows.jsonl"
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []


def ends(rows: list[Row]) -> dict[str, str]:
    """The status of each model by its end."""
    return {row.model.partition("end=")[2].partition("&")[0]: row.status for row in rows}
