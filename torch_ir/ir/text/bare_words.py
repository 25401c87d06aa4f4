"""Words of the text form: which names are bare, which are quoted, and what bare words mean.

No pattern repeats a group: Python records every repetition, and untrusted text may have very many.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch_ir.ir.graph.attr_types import DEVICE_KINDS, DTYPES, LAYOUTS, MEMORY_FORMATS

PART = re.compile(r"[^\W\d]\w*")  # a name without dots: function, field or key
WORD = re.compile(r"(?:[^\W\d]|[0-9]+_)[\w.]*")  # tensor, node, model or operator; `0_bias` is not a number
TYPE = re.compile(rf"(?!(?:tuple|object)$){WORD.pattern}")  # class of a container
ARGUMENT = re.compile(r"[\w.]+")  # `weight`, `tensors.0`, or a position
# Bare words that are not tensor names; a tensor with such a name is quoted.
RESERVED = frozenset(
    ("None", "True", "False", "inf", "nan", "infj", "nanj", *DTYPES, *DEVICE_KINDS, *LAYOUTS, *MEMORY_FORMATS)
)


def quoted(name: str) -> str:
    """Return a name in backquotes, with backquotes inside doubled."""
    return f"`{name.replace('`', '``')}`"


def default_name(outputs: Sequence[str]) -> str:
    """Return the name of a node with these outputs if the text states none: `max_1` for `max_1_0`, `max_1_1`."""
    if len(outputs) < 2:
        return outputs[0] if outputs else ""
    return outputs[0].removesuffix("_0")
