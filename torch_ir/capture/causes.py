"""The cause of an error that torch or forward raised, found by its text; no other code matches the text of errors."""

from __future__ import annotations

import re
import textwrap

from torch_ir.errors import Cause, TorchIRError

_LONGEST = 200  # characters of a message
# pattern for the name and the first line of an error -> its cause; the first match counts
_SIGNS = {
    r"^\w+: Constraints violated": Cause.SIZE_CANNOT_VARY,
    r"Could not extract specialized integer": Cause.NUMBER_FROM_DATA,
    r"GuardOnDataDependentSymNode|data-dependent": Cause.BRANCH_ON_DATA,
    r"not a known type|Unexpected type": Cause.UNKNOWN_RESULT,
    r"DynamicOutputShapeException": Cause.SIZE_FROM_DATA,
    r"\.numpy\(\) is not supported|Can't call numpy|ufunc does not support argument \d+ of type Sym": Cause.NUMPY,
    r"no fake impl|UnsupportedOperatorException|Meta kernel": Cause.NO_SHAPE_RULE,
    # pickle before Python 3.13 and after it "Can't pickle local object", with 3.13 "Can't get local object"
    r"Cannot access data pointer|Can't pickle|Can't get local (object|attribute)": Cause.DATA_POINTER,
    r"fake tensor in the exported program|Cannot mix": Cause.UNTRACKED_TENSOR,
    r"Unable to cast NotImplemented": Cause.KEPT_TENSOR,
    r"NoValueError": Cause.NO_VALUE,
    r"RecursionError": Cause.ENDLESS_RECURSION,
    r"SystemExit": Cause.EXIT,
    r"TypeError: (too many positional|missing a required|got an unexpected keyword)": Cause.WRONG_INPUTS,
}


def cause_by_words(error: BaseException) -> Cause:
    """Return the cause that matches the name and the first line of an error."""
    named = named_message(error)
    return next((cause for sign, cause in _SIGNS.items() if re.search(sign, named)), Cause.UNKNOWN)


def cause_of(error: BaseException) -> Cause:
    """Return the cause of any error; an error of torch_ir, from a capture inside forward, carries its own."""
    found = cause_by_words(error)
    return error.cause if found is Cause.UNKNOWN and isinstance(error, TorchIRError) else found


def lines_of(error: BaseException) -> list[str]:
    """Return the non-blank lines of an error's message."""
    return [line.strip() for line in str(error).splitlines() if line.strip()]


def message(error: BaseException) -> str:
    """Return the first line of an error's message, shortened; empty if there is no message."""
    lines = lines_of(error)
    return textwrap.shorten(lines[0], _LONGEST, placeholder=" ...").removesuffix(".") if lines else ""


def named_message(error: BaseException) -> str:
    """Return the class name of an error, and its message if it has one."""
    first = message(error)
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
