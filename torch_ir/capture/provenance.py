"""Where a captured call came from: the module, which call of it, and the user's source line."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from typing import Any

import sympy
import torch

from torch_ir.ir import Origin

_FRAME = re.compile(r'File "([^"<][^"]*)", line (\d+)')  # not generated code, which is called "<...>"
_CALL = re.compile(r"@(\d+)$")
# torch, torch_ir, sympy, and frames that torch makes up for what it inserts
_INSIDE = (
    *(os.path.dirname(file) + os.sep for file in (torch.__file__, os.path.dirname(__file__), sympy.__file__)),
    "torch/",
)
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def origin_of(meta: dict[str, Any]) -> Origin:
    """The origin that torch recorded in an fx node's meta."""
    stack = meta.get("nn_module_stack")
    source = user_line(meta.get("stack_trace") or "")
    if not stack:
        return Origin(source=source)
    key, (path, module_class) = next(reversed(stack.items()))
    return _origin(key, path, module_class if isinstance(module_class, str) else module_class.__qualname__, source)


@lru_cache(maxsize=65536)
def _origin(key: str, path: str, module_class: str, source: str) -> Origin:
    """The key `L__self__layers.0@1` is the second call of `layers.0`."""
    call = _CALL.search(key)
    return Origin(_CALL.sub("", path), int(call[1]) if call else 0, module_class.rpartition(".")[2], source)


@lru_cache(maxsize=65536)
def user_line(trace: str) -> str:
    """The innermost line outside torch, as `package/file.py:12` with no machine's folders in it."""
    outside = [frame for frame in _FRAME.findall(trace) if is_users(frame[0])]
    if not outside:
        return ""
    file, line = outside[-1]
    return f"{_portable(file)}:{line}"


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a source file is neither torch's nor ours, of the standard library nor generated."""
    is_standard = file.startswith(_STANDARD_LIBRARY) and "-packages" not in file  # which may lie in its folder
    return not is_standard and not file.startswith(("<", *_INSIDE))


@lru_cache(maxsize=4096)
def _portable(file: str) -> str:
    """A path as Python would import it: relative to the longest search path that holds it."""
    roots = [os.path.abspath(root) + os.sep for root in sys.path]
    inside = [root for root in roots if file.startswith(root)]
    return file[len(max(inside, key=len)) :].replace(os.sep, "/") if inside else os.path.basename(file)
