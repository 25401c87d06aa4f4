"""HTML summary of a sweep: counts, failures by reason, and a sortable table. It loads nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from torch_ir.explorer.html_page import filled
from torch_ir.ir.files.atomic_write import plain_target, write_text
from torch_ir.sweep.row import Row

SUMMARY = "summary.html"


def write_summary(rows: Sequence[Row], folder: Path) -> None:
    """Write the page; texts from models are data, which it shows as text."""
    write_text(plain_target(folder / SUMMARY), summary(rows))


def summary(rows: Sequence[Row]) -> str:
    """Return the text of the page."""
    records = json.dumps([row.to_record() for row in rows], allow_nan=False, separators=(",", ":"))
    data = records.replace("<", "\\u003c")  # no text can close the script element
    return filled(_asset("summary.html"), _asset("summary.js"), _asset("summary.css"), data)


def _asset(name: str) -> str:
    return (files("torch_ir.sweep") / "assets" / name).read_text(encoding="utf-8")
