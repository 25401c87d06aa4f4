"""The nodes to show in red, by name; a name that no node has is an error."""

from __future__ import annotations

from collections.abc import Collection

from torch_ir.errors import DrawError, did_you_mean
from torch_ir.ir import IR


def named_placeholders(placeholders: str | Collection[str], *graphs: IR) -> frozenset[str]:
    """Return the names of placeholders; raise DrawError for one that is not a node of the graphs or their functions."""
    given = [placeholders] if isinstance(placeholders, str) else list(placeholders)
    if not given:
        return frozenset()
    known = {node.name for ir in graphs for node in ir.all_nodes()}
    for name in given:
        if name not in known:
            raise DrawError(f"placeholders: unknown node {name!r:.80}{did_you_mean(str(name), known)}")
    return frozenset(given)
