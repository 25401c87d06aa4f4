"""`python` in a forked process: runs a script, a module of the tests, or the code that starts a rank or a sweep."""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from tests.documents import IMPORTED

_STARTS = ("from torch_ir.sharding.rank_process import main", "from torch_ir.sweep.fork_server import main")
_QUIET = ["-W", "ignore"]


def is_known(words: Sequence[str], folder: str) -> bool:
    """Whether a fork does what Python does: no options that matter, and nothing that shows imported modules."""
    first, *rest = [*_split(words)[1], "", ""]
    if first == "-c":
        return any(start in rest[0] for start in _STARTS)
    if first == "-m":
        return rest[0].split(".")[0] == "tests"
    try:
        text = Path(folder, first).read_text(encoding="utf-8") if first.endswith(".py") else None
    except OSError:
        text = None
    return text is not None and not any(word in text for word in IMPORTED)


def main() -> int:
    """Run `sys.argv[1:]` as Python does."""
    is_quiet, (first, *rest) = _split(sys.argv[1:])
    if is_quiet:
        warnings.simplefilter("ignore")
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(rest[0], vars(sys.modules["__main__"]))
    elif first == "-m":
        sys.argv, sys.path[0] = ["-m", *rest[1:]], os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.realpath(first))
        runpy.run_path(first, run_name="__main__")
    return 0


def _split(words: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether warnings are ignored, and the words without options; `-u` only makes output appear earlier."""
    rest = list(words[words[:1] == ["-u"] :])
    return (True, rest[2:]) if rest[:2] == _QUIET else (False, rest)
