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
    found: dict[str, Row] = {}
    for path, row in rows.items():
        pattern = _NUMBER.sub("*", path)
        same = all(rows.get(each) == row for each in paths.get(pattern, [path]))
        found[pattern if same else path] = row
    return found
