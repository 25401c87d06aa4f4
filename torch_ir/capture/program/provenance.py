"""Where a captured call came from: the module, which call of it, and the user's source line."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any

import torch
from torch import fx
from torch.overrides import resolve_name

from torch_ir import _version
from torch_ir.errors import printable
from torch_ir.ir import Origin

FUNCTION = "torch_function"  # where a recording notes the torch function that the model called
_FRAME = re.compile(r'File "([^"<][^"]*)", line (\d+)')  # not generated code, which is called "<...>"
_CALL = re.compile(r"@(\d+)$")
# torch, torch_ir, sympy, and frames that torch makes up for what it inserts
_sympy = find_spec("sympy")  # to import it takes long
_INSIDE = (
    *(os.path.dirname(file) + os.sep for file in (torch.__file__, _version.__file__, _sympy and _sympy.origin) if file),
    "torch/",
)
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def origin_of(meta: dict[str, Any]) -> Origin:
    """The origin that torch recorded in an fx node's meta."""
    stack = meta.get("nn_module_stack")
    source = user_line(meta.get("stack_trace") or "")
    function = meta.get(FUNCTION, "")
    if not stack:
        return Origin(source=source, function=function)
    key, (_, module_class) = next(reversed(stack.items()))
    outer = tuple((name, path) for name, (path, _) in stack.items() if name != key and _CALL.search(name))
    found = _origin(key, stack[key][0], class_name(module_class), source, outer)
    return found._replace(function=function) if function else found


@lru_cache(maxsize=65536)
def _origin(key: str, path: str, module_class: str, source: str, outer: tuple[tuple[str, str], ...]) -> Origin:
    """The key `L__self__layers.0@1` is the second call of `layers.0`."""
    number = _call_number(key)
    around = tuple(f"{_CALL.sub('', path)}@{_call_number(name)}" for name, path in outer)
    return Origin(_CALL.sub("", path), number, module_class.rpartition(".")[2], source, around)


def _call_number(key: str) -> int:
    call = _CALL.search(key)
    return int(call[1]) if call else 0


def function_name(function: Any) -> str:
    """`torch.nn.functional.gelu` for a function or method of torch; empty for an attribute, or an operator as such."""
    name = resolve_name(function) or ""
    return "" if name.endswith("__get__") or not name.startswith("torch.") else name


def modules_of(graph: fx.Graph) -> dict[str, str]:
    """The modules whose calls are in an fx graph: path -> full name of the class."""
    calls = (node for node in graph.nodes if not _is_arithmetic(node))
    stacks = {id(stack): stack for node in calls if (stack := node.meta.get("nn_module_stack"))}
    found = {_CALL.sub("", path): class_name(kind) for stack in stacks.values() for path, kind in stack.values()}
    return dict(sorted(found.items()))


def _is_arithmetic(node: fx.Node) -> bool:
    """Whether a node computes a size, which the IR does not show."""
    value = node.meta.get("val")
    is_number = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return is_number and not node.meta.get("unbacked_bindings")


def class_name(kind: Any) -> str:
    """The full name of a class, which torch may have written down already."""
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


@lru_cache(maxsize=65536)
def user_line(trace: str) -> str:
    """The innermost line outside torch, as `package/file.py:12` with no machine's folders in it."""
    outside = [frame for frame in _FRAME.findall(trace) if is_users(frame[0])]
    if not outside:
        return ""
    file, line = outside[-1]
    return f"{printable(_portable(file))}:{line}"


def users_frame(frame: FrameType | None, outermost: CodeType | None = None) -> str:
    """The innermost line of the user's code that is running, as a stack trace has it; up to where `outermost` runs."""
    while frame is not None and frame.f_code is not outermost:
        if is_users(frame.f_code.co_filename):
            return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
        frame = frame.f_back
    return ""


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
