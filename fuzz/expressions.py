"""Any text as an expression: rejected, or equal to Python's result, also after substituting symbols."""

import keyword
import math

from torch_ir.errors import ExpressionError
from torch_ir.ir.sizes.expressions import FUNCTIONS, KEYWORDS, Number, evaluate, names_in
from torch_ir.ir.sizes.specialize import substitute

VALUES = {"batch": 4, "seq": 7, "zero": 0, "minus": -3, "large": 2**63 - 1}
_PYTHON = {"__builtins__": {}, "inf": math.inf, "nan": math.nan, **FUNCTIONS}


def seeds() -> list[bytes]:
    texts = [
        "2*batch + 1",
        "(seq - 1) // 2 % 3",
        "max(batch, 2, zero) - min(seq, minus)",
        "seq % 2 == 0 and seq != 4 or not batch > 3",
        "where(batch < seq, batch ** 2, -1.5e3 / seq)",
        "round(sqrt(large), 2) + floor(log(batch)) - trunc(abs(minus))",
        "int(ceil(seq / 2)) * 2 * batch * 3",
        " * ".join(KEYWORDS),
    ]
    return [text.encode() for text in texts]


def check(data: bytes) -> None:
    try:
        text = data.decode()
        found = evaluate(text, VALUES)
    except (ExpressionError, UnicodeDecodeError):
        return
    if text.isascii() and not any(map(keyword.iskeyword, names_in(text))):
        assert _is_same(found, _in_python(text, found)), text
    for name in names_in(text) & VALUES.keys():
        try:
            rest = substitute(text, {name: VALUES[name]})
            again = evaluate(rest, VALUES)
        except ExpressionError:  # what is skipped in the whole may be computed in a part
            continue
        assert _is_same(found, again), (text, name, rest)


def _in_python(text: str, otherwise: Number) -> Number:
    """Evaluate in Python a text that the closed language accepted, which is therefore harmless."""
    try:
        code = compile(f"({text})", "expression", "eval")
    except (SyntaxError, RecursionError, MemoryError):  # numbers such as 007, and what is too much for its parser
        return otherwise
    value: Number = eval(code, _PYTHON, VALUES)
    return value


def _is_same(one: Number, other: Number) -> bool:
    return type(one) is type(other) and (one == other or (one != one and other != other))
