"""Code that compares the class of a tensor, such as `type(w) is nn.Parameter`.

During a capture without values, tensors are of an internal class. `isinstance` returns what it does in eager, but
`type` cannot be made to, so a warning names the lines that call it.
"""

from __future__ import annotations

from functools import lru_cache
from types import CodeType

from torch import nn

from torch_ir.capture.program.provenance import source_line
from torch_ir.capture.state.reached_code import functions_of, instructions_of
from torch_ir.capture.walk import modules

_CLASSES = frozenset(("Parameter", "Tensor", "Buffer", "UninitializedParameter"))
_ASKING = frozenset(("type", "__class__"))
_LOADING = ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD", "LOAD_NAME", "LOAD_CONST", "LOAD_DEREF")


def class_questions(model: nn.Module) -> list[str]:
    """Return the lines of forward, and of functions that it calls by name, that compare a class with a tensor class."""
    kinds = dict.fromkeys(map(type, modules(model)))
    codes = dict.fromkeys(function.__code__ for kind in kinds for function in functions_of(kind))
    return list(dict.fromkeys(place for code in codes for place in _asking(code)))


@lru_cache(maxsize=4096)
def _asking(code: CodeType) -> tuple[str, ...]:
    if not _ASKING.intersection(code.co_names):
        return ()
    loaded: dict[int, set[str]] = {}
    for line, instruction in instructions_of(code):
        if instruction.opname in _LOADING and isinstance(instruction.argval, str):
            loaded.setdefault(line, set()).add(instruction.argval)
    lines = [line for line, names in loaded.items() if names & _ASKING and names & _CLASSES]
    return tuple(source_line(code.co_filename, line) for line in lines)
