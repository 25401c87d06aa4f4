"""Shorten the rows of a plan: equal layers as one row with `*`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch_ir.planning.style_options import Row

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def shortened(rows: Mapping[str, Row], known: Iterable[str]) -> dict[str, Row]:
    """Return the same plan with `layers.*.mlp` for rows of all layers that have such a path and the same style."""
    paths: dict[str, list[str]] = {}
    for path in known:
        paths.setdefault(_NUMBER.sub("*", path), []).append(path)
    common = {pattern: _common([rows.get(path) for path in same]) for pattern, same in paths.items()}
    found: dict[str, Row] = {}
    for path, row in rows.items():
        pattern = _NUMBER.sub("*", path)
        found[pattern if common.get(pattern, row) == row else path] = row
    return found


def _common(rows: list[Row | None]) -> Row | None:
    """Return the row that all are, or None."""
    return rows[0] if all(row == rows[0] for row in rows) else None
