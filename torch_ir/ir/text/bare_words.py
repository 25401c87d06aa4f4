"""The words of the text form: which names are bare, which are quoted, and what bare words mean.

No pattern repeats a group: Python keeps a record of every repetition, and a stranger's text may have very many.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch_ir.ir.graph.attr_types import DEVICE_KINDS, DTYPES, LAYOUTS, MEMORY_FORMATS

PART = re.compile(r"[^\W\d]\w*")  # a name without dots: of a function, a field, a key
WORD = re.compile(r"(?:[^\W\d]|[0-9]+_)[\w.]*")  # of a tensor, a node, a model, an operator; `0_bias` is no number
TYPE = re.compile(rf"(?!(?:tuple|object)$){WORD.pattern}")  # of a container's class
ARGUMENT = re.compile(r"[\w.]+")  # `weight`, `tensors.0`, or a position
# A bare word that is not the name of a tensor; a tensor of that name is quoted.
RESERVED = frozenset(
    ("None", "True", "False", "inf", "nan", "infj", "nanj", *DTYPES, *DEVICE_KINDS, *LAYOUTS, *MEMORY_FORMATS)
)


def quoted(name: str) -> str:
    """A name in backquotes, which are doubled inside."""
    return f"`{name.replace('`', '``')}`"


def default_name(outputs: Sequence[str]) -> str:
    """The name of a node that makes these tensors, unless the text says another: `max_1` for `max_1_0`, `max_1_1`."""
    if len(outputs) < 2:
        return outputs[0] if outputs else ""
    return outputs[0].removesuffix("_0")
