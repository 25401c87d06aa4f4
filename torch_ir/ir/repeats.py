"""The compact document: records that repeat, but for numbers in their texts that grow, are written once.

    {"$repeat": 3, "items": [{"name": "layers.<0+1>.weight", ...}]}

stands for the records of `layers.0.weight`, `layers.1.weight` and `layers.2.weight`: where a text says `<a+b>`, the
k-th repetition, from 0 on, has the number `a + b*k`. In a table, a run stands under a key of its own, and its items are
entries. Whatever is read is expanded first, so that all that is known of documents holds for these, too.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch_ir.errors import SerializationError
from torch_ir.ir.document import parse_json
from torch_ir.ir.limits import Budget, Limits, allow_more
from torch_ir.ir.records import allow_keys, field

Document = dict[str, Any]
_LISTS = ("graph_inputs", "graph_outputs", "weights", "nodes")
_TABLES = ("weight_name_mapping", "params", "modules")
_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,11})(?![0-9])")
_GROWING = re.compile(r"<(0|[1-9][0-9]{0,11})\+([1-9][0-9]{0,11})>")
_RUN = frozenset(("$repeat", "items"))
_MAX_DIGITS = 30  # room for a number that grows, which never has so many
_LEAST = 3  # repetitions that are worth a run
_CANDIDATES = 16  # lengths of a period that are tried at one place
_COMPARISONS = 64  # of records, for each of them
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


# -- writing ----------------------------------------------------------------------------------------------------------


def fold(document: Document) -> Document:
    """The same document, with runs in the place of what repeats."""
    folded: Document = {"format": document["format"], "version": document["version"], "compact": True, **document}
    for key in _LISTS:
        folded[key] = [run or record for run, record in _fold(document[key])]
    for key in _TABLES:
        if key in document and not any(name.startswith("$") for name in document[key]):  # as the keys of runs do
            entries = [{name: value} for name, value in document[key].items()]
            folded[key] = {}
            for number, (run, entry) in enumerate(_fold(entries)):
                folded[key].update({f"${number}": _merged(run)} if run else entry)
    return folded


def _merged(run: Document) -> Document:
    """A run of entries, as one table of them."""
    return {**run, "items": {name: value for entry in run["items"] for name, value in entry.items()}}


class _Text(NamedTuple):
    """A record as text: what stands between its numbers, and these."""

    skeleton: tuple[str, ...]
    numbers: tuple[int, ...]


def _fold(records: Sequence[Document]) -> Iterator[tuple[Document | None, Document]]:
    """Runs, and the records that are in none."""
    texts = [_split(_dump(record)) for record in records]
    places: dict[tuple[str, ...], list[int]] = {}
    for place, text in enumerate(texts):
        places.setdefault(text.skeleton, []).append(place)
    start, work = 0, Budget(_COMPARISONS * len(texts))
    while start < len(texts):
        run, end = _run_at(texts, start, places[texts[start].skeleton], work)
        yield run, records[start]
        start = end if run else start + 1


def _split(text: str) -> _Text:
    parts = _NUMBER.split(text)
    return _Text(tuple(parts[::2]), tuple(map(int, parts[1::2])))


def _run_at(texts: Sequence[_Text], start: int, alike: Sequence[int], work: Budget) -> tuple[Document | None, int]:
    """The run that covers most from here on, and where it ends."""
    after = bisect_right(alike, start)
    best, end = 0, start
    for length in (place - start for place in alike[after : after + _CANDIDATES]):
        if best and length % best == 0:  # which repeats as far, and less often
            continue
        count = _repetitions(texts, start, length, work)
        if count >= _LEAST and start + count * length > end:
            best, end = length, start + count * length
    if not best or any("<" in part for text in texts[start : start + best] for part in text.skeleton):
        return None, start
    items = [_template(texts[place], texts[place + best]) for place in range(start, start + best)]
    try:
        return {"$repeat": (end - start) // best, "items": [json.loads(item) for item in items]}, end
    except json.JSONDecodeError:  # a number that grows is none of a text
        return None, start


def _repetitions(texts: Sequence[_Text], start: int, length: int, work: Budget) -> int:
    """How often what begins here, and is so long, repeats, as far as there is time to look."""
    place = start + length
    while place < len(texts) and work.take() and _continues(texts, start, place, length):
        place += 1
    return (place - start) // length


def _continues(texts: Sequence[_Text], start: int, place: int, length: int) -> bool:
    """Whether a record is like the one a period before it, and its numbers grow as they did at first."""
    before, now = texts[place - length], texts[place]
    if now.skeleton != before.skeleton:
        return False
    first = start + (place - start) % length
    steps = zip(texts[first].numbers, texts[first + length].numbers, before.numbers, now.numbers, strict=True)
    return all(b - a == d - c >= 0 for a, b, c, d in steps)


def _template(first: _Text, second: _Text) -> str:
    numbers = [str(a) if a == b else f"<{a}+{b - a}>" for a, b in zip(first.numbers, second.numbers, strict=True)]
    return "".join(part for pair in zip(first.skeleton, [*numbers, ""], strict=True) for part in pair)


# -- reading ----------------------------------------------------------------------------------------------------------


def expand(document: Document, limits: Limits) -> Document:
    """The document that a compact one stands for."""
    if document["compact"] is not True:
        raise SerializationError("it can only be true", "$.compact", rule="R4")
    expanded = {key: value for key, value in document.items() if key != "compact"}
    runs = _Runs(limits.expanded_bytes)
    for key in filter(document.__contains__, _LISTS):
        expanded[key] = [
            record
            for place, part in enumerate(field(document, key, list, "$"))
            for record in (runs.read(part, list, f"$.{key}[{place}]") if _is_run(part) else [part])
        ]
    for key in filter(document.__contains__, _TABLES):
        entries = [
            entry
            for name, part in field(document, key, dict, "$").items()
            for entry in (runs.read(part, dict, f"$.{key}.{name:.200}") if _is_run(part) else [{name: part}])
        ]
        expanded[key] = _joined(entries, f"$.{key}")
    return expanded


def _is_run(part: Any) -> bool:
    return isinstance(part, dict) and "$repeat" in part


class _Runs:
    """Reads runs, as long as there is room for what they stand for."""

    def __init__(self, room: int) -> None:
        self._room = room

    def read(self, run: Document, kind: type[Any], path: str) -> list[Any]:
        """The records of a run, or a table for each repetition."""
        allow_keys(run, _RUN, path)
        count, items = field(run, "$repeat", int, path), field(run, "items", kind, path)
        try:
            text = _dump(items)[1:-1] if kind is list else _dump(items)
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:  # a program may give what is no JSON
            raise SerializationError(f"not JSON: {error}", f"{path}.items", rule="R3") from None
        parts = _GROWING.split(text)
        starts, steps = list(map(int, parts[1::3])), list(map(int, parts[2::3]))
        self._room -= count * (_memory(text) + _MAX_DIGITS * len(starts))
        if not items or count < 1:
            told = "a run has no items" if not items else "a run repeats nothing"
            raise SerializationError(told, path, rule="R4")
        if self._room < 0:
            hint = allow_more("expanded_bytes")
            raise SerializationError("a run says more than it may", path, rule="R2", hint=hint)
        found: list[Any] = parse_json(f"[{', '.join(_repeated(parts[::3], starts, steps, count))}]")
        return found


def _memory(text: str) -> int:
    """The bytes that JSON takes as text and as Python's objects, about."""
    return len(text) + 256 * text.count("{") + 64 * text.count("[") + 16 * text.count(",")


def _repeated(parts: Sequence[str], starts: Sequence[int], steps: Sequence[int], count: int) -> Iterator[str]:
    for k in range(count):
        numbers = [str(start + step * k) for start, step in zip(starts, steps, strict=True)]
        yield "".join(text for pair in zip(parts, [*numbers, ""], strict=True) for text in pair)


def _joined(entries: Sequence[Document], path: str) -> Document:
    """All entries in one table; no name stands twice."""
    table: Document = {}
    for entry in entries:
        if not entry.keys().isdisjoint(table):
            twice = next(name for name in entry if name in table)
            raise SerializationError(f"{twice!r:.60} stands twice", path, rule="R3")
        table.update(entry)
    return table
