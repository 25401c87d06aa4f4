"""Helpers for tests of the file format: a valid document with one change, and the expected error."""

import json
import re
from typing import Any

import pytest

from tests.graphs import everything
from torch_ir.errors import SerializationError
from torch_ir.ir import IR


def without_digest(text: str) -> str:
    return re.sub(r',\n"digest": "[^"]*"\n', "\n", text)


def refused(document: dict[str, Any] | str) -> SerializationError:
    """Return the error of a document; anything but a SerializationError fails the test."""
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(SerializationError) as caught:
        IR.from_json(text)
    return caught.value


def changed(path: str, value: Any) -> dict[str, Any]:
    """A valid document with `value` put at a path such as `nodes[0].attrs.dim`."""
    document: dict[str, Any] = json.loads(without_digest(everything().to_json()))
    *outer, last = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
    place: Any = document
    for part in outer:
        place = place[part]
    place[last] = value
    return document
