"""Complete calls of torch's operators: arguments that a file or a user leaves out get the defaults of the schema.

`attr_defaults.json` stores the defaults, so that a graph is complete with or without torch. An argument whose default
differs between supported versions of torch is not in it.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.ir.json.json_values import decode

if TYPE_CHECKING:
    from torch_ir.ir.graph.node import OpNode


def fill_defaults(node: OpNode) -> None:
    """Add the arguments with a default that a call does not have, if its arguments are named."""
    if node.op_type in _table() and node.has_named_args:
        for name, value in _absent(node.op_type, (*node._args, *node.attrs)):
            node.attrs[name] = decode(value, "$")  # a new list for each node


@lru_cache(maxsize=1 << 14)
def _absent(op_type: str, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    given = {name.partition(".")[0] for name in names}
    return [(name, value) for name, value in _table()[op_type].items() if name not in given]


@cache
def _table() -> dict[str, dict[str, Any]]:
    """Return the default of each argument, as in a JSON file, by op_type."""
    return dict(json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")))
