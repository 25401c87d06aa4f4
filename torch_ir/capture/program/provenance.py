"""The origin of a captured call: the module, the number of its call, and the user's source line."""

from __future__ import annotations

import dis
import itertools
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

FUNCTION = "torch_function"  # key in fx meta: the torch function that the model called
_FRAME = re.compile(r'File "([^"<][^"]*)", line (\d+)')  # not generated code, whose file is "<...>"
_CALL = re.compile(r"@(\d+)$")
# found and not imported, which is slow; an `assert` in a test file calls pytest, whose session holds every test
_LIBRARIES = [spec.origin for name in ("sympy", "_pytest", "pluggy") if (spec := find_spec(name)) and spec.origin]
# torch, torch_ir, these, and frames that torch invents for inserted code
_INSIDE = (
    *(os.path.dirname(file) + os.sep for file in (torch.__file__, _version.__file__, *_LIBRARIES) if file),
    "torch/",
)
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_GENERATED = ("<frozen ", "<eval_with_key>", "<attrs ", "<__")  # names of code without a file that is not the user's
_MAKERS = ("__create_fn__", "___make_guard_fn")  # of data classes and Dynamo: the functions inside are generated
_NAMELESS = ("guard",) if sys.version_info < (3, 11) else ()  # the same on Python 3.10, where code has no full name
_BEFORE_JUMP = ("TO_BOOL", "COMPARE_OP")  # since Python 3.13
_ASSERTION = ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT")
_GENERATED_NAMES = ("__new__", *_NAMELESS)


def origin_of(meta: dict[str, Any]) -> Origin:
    """Return the origin that torch recorded in an fx node's meta."""
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
    """Return an origin; the key `L__self__layers.0@1` is the second call of `layers.0`."""
    number = _call_number(key)
    around = tuple(f"{_CALL.sub('', path)}@{_call_number(name)}" for name, path in outer)
    return Origin(_CALL.sub("", path), number, module_class.rpartition(".")[2], source, around)


def _call_number(key: str) -> int:
    call = _CALL.search(key)
    return int(call[1]) if call else 0


def function_name(function: Any) -> str:
    """Return `torch.nn.functional.gelu` for a function or method of torch; empty for attributes and operators."""
    name = resolve_name(function) or ""
    return "" if name.endswith("__get__") or not name.startswith("torch.") else name


def modules_of(graph: fx.Graph) -> dict[str, str]:
    """Return the modules whose calls are in an fx graph: path -> full class name."""
    calls = (node for node in graph.nodes if not _is_arithmetic(node))
    stacks = {id(stack): stack for node in calls if (stack := node.meta.get("nn_module_stack"))}
    found = {_CALL.sub("", path): class_name(kind) for stack in stacks.values() for path, kind in stack.values()}
    return dict(sorted(found.items()))


def _is_arithmetic(node: fx.Node) -> bool:
    """Whether a node computes a size, which has no node in the IR."""
    value = node.meta.get("val")
    is_number = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return is_number and not node.meta.get("unbacked_bindings")


def class_name(kind: Any) -> str:
    """Return the full name of a class, which may be a string already."""
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


@lru_cache(maxsize=65536)
def user_line(trace: str) -> str:
    """Return the innermost line outside torch as `package/file.py:12`, without absolute paths."""
    outside = [frame for frame in _FRAME.findall(trace) if is_users(frame[0])]
    if not outside:
        return ""
    file, line = outside[-1]
    return f"{printable(_portable(file))}:{line}"


def users_frame(frame: FrameType | None, outermost: CodeType | None = None) -> str:
    """Return the innermost running line of the user's code as a stack entry, up to the frame of `outermost`."""
    found = running_frame(frame, outermost)
    return f'File "{found.f_code.co_filename}", line {found.f_lineno}, in {found.f_code.co_name}' if found else ""


def running_frame(frame: FrameType | None, outermost: CodeType | None = None) -> FrameType | None:
    """Return the innermost frame of the user's code, up to the frame of `outermost`."""
    while frame is not None and frame.f_code is not outermost:
        if is_users_code(frame.f_code):
            return frame
        frame = frame.f_back
    return None


def is_asserting(frame: FrameType | None) -> bool:
    """Whether a frame is at the condition of an `assert`."""
    if frame is None:
        return False
    here = frame.f_lasti
    following = itertools.dropwhile(lambda each: each.offset < here, dis.get_instructions(frame.f_code))
    names = [each.opname for each in itertools.islice(following, 4) if each.opname not in _BEFORE_JUMP]
    return len(names) > 1 and names[0].startswith("POP_JUMP") and names[1] in _ASSERTION


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a source file is neither torch's nor ours, of the standard library nor generated."""
    is_standard = file.startswith(_STANDARD_LIBRARY) and "-packages" not in file  # site-packages may be in its folder
    return not is_standard and not file.startswith(("<", *_INSIDE))


def is_users_code(code: CodeType) -> bool:
    """Whether code is the user's, also without a file: that of `python -c`, of a console and of `exec`.

    What libraries generate, such as the methods of data classes and Dynamo's guards, has no file either.
    """
    file = code.co_filename
    if not file.startswith("<"):
        return is_users(file)
    is_generated = code.co_name in _GENERATED_NAMES or getattr(code, "co_qualname", "").startswith(_MAKERS)
    return not is_generated and not file.startswith(_GENERATED)


def code_line(code: CodeType, line: int) -> str:
    """Return the line of code, `<string>:12` if it has no file; an empty string if it is not the user's."""
    if not is_users_code(code):
        return ""
    return source_line(code.co_filename, line) or f"{code.co_filename}:{line}"


def is_users_module(name: str) -> bool:
    """Whether an imported module is neither torch's nor ours nor of the standard library; `__main__` needs no file."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_users(file) if file else name == "__main__" and name in sys.modules


def calling_line() -> str:
    """Return the line that calls the caller of the caller, if it is the user's; else an empty string."""
    frame = sys._getframe(3)
    return source_line(frame.f_code.co_filename, frame.f_lineno) if is_users(frame.f_code.co_filename) else ""


def source_line(file: str | None, line: int) -> str:
    """Return `package/file.py:12`; an empty string for a file that is not the user's."""
    return user_line(f'File "{file}", line {line}')


@lru_cache(maxsize=4096)
def _portable(file: str) -> str:
    """Return a path relative to the longest entry of sys.path that contains it."""
    roots = [os.path.abspath(root) + os.sep for root in sys.path]
    inside = [root for root in roots if file.startswith(root)]
    return file[len(max(inside, key=len)) :].replace(os.sep, "/") if inside else os.path.basename(file)
