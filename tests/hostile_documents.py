"""Documents of JSON with one hostile part: a value of another type or of any size, a key twice, missing or unknown."""

import json
from collections.abc import Iterator
from typing import Any

from tests.damage.subject import Json

_NESTED = "[" * 90 + "]" * 90
_WORDS = ("", "x", "__proto__", "constructor", "__class__", "../../etc/passwd", "\x1b[31m\x07", "\u202e", "a" * 100_000)
_NUMBERS = (-1, 0, 1, 2**31, 2**62, 2**63 - 1, -(2**63), 0.5, -0.0, 1e308, -1e308, 1e-320)
_CONTAINERS: tuple[Any, ...] = ([], {}, [[]], [None] * 10_000, dict.fromkeys(map(str, range(10_000)), 1))
_TEXTS = ("NaN", "-Infinity", "1e999", "9" * 400, '"\\ud800"', _NESTED, "[" * 200, "{", "01", "'x'")  # of JSON, or not
_MARK = "@@"  # stands for a value until the document is text


def hostile_documents(document: Json) -> Iterator[tuple[str, bytes]]:
    """Yield documents that differ from a valid one in one place, with a label each."""
    texts = [*map(json.dumps, (None, True, *_NUMBERS, *_WORDS, *_CONTAINERS)), *_TEXTS]
    for path in _paths(document):
        label = "".join(f"[{step!r}]" for step in path)
        marked = json.dumps(_replaced(document, path, _MARK))
        for text in texts:
            yield f"{label} = {text:.40}", marked.replace(f'"{_MARK}"', text).encode()
        yield f"{label} removed", json.dumps(_replaced(document, path, None, is_kept=False)).encode()
        if isinstance(path[-1], str):
            key = f'"{path[-1]}": "{_MARK}"'
            for other in ("__proto__", "\u202e", "k" * 2000, ""):
                renamed = marked.replace(key, f"{json.dumps(other)}: 1")
                yield f"{label} renamed to {other:.20}", renamed.encode()
            yield f"{label} twice", marked.replace(key, f"{key}, {key}").replace(f'"{_MARK}"', "1").encode()
        found = _at(document, path)
        if isinstance(found, list) and found:
            many = json.dumps(found * (10_000 // len(found)))
            yield f"{label} repeated", marked.replace(f'"{_MARK}"', many).encode()


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in steps:
        yield from _paths(item, (*path, step))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def _replaced(document: Json, path: tuple[Any, ...], value: Any, *, is_kept: bool = True) -> Json:
    copy: Json = json.loads(json.dumps(document))
    parent = _at(copy, path[:-1])
    if is_kept:
        parent[path[-1]] = value
    else:
        del parent[path[-1]]
    return copy
