"""`python` in a forked process: runs a script, or the code that starts a rank."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.documents import IMPORTED

_RANK = "from torch_ir.sharding.rank_process import main"


def is_known(words: Sequence[str], folder: str) -> bool:
    """Whether a fork does what Python does: a script that does not show imported modules, or a rank; no options."""
    first, *rest = [*_without_u(words), ""]
    if first == "-c":
        return _RANK in rest[0]
    try:
        text = Path(folder, first).read_text(encoding="utf-8") if first.endswith(".py") else None
    except OSError:
        text = None
    return text is not None and not any(word in text for word in IMPORTED)


def main() -> int:
    """Run `sys.argv[1:]` as Python does."""
    words = _without_u(sys.argv[1:])
    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(words[1], vars(sys.modules["__main__"]))
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.realpath(words[0]))
        runpy.run_path(words[0], run_name="__main__")
    return 0


def _without_u(words: Sequence[str]) -> list[str]:
    """`-u`, with which torchrun starts ranks, only makes output appear earlier."""
    return list(words[words[:1] == ["-u"] :])
