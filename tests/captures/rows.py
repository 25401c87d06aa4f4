"""A row for one capture: digest and size of the graph, strategy, warnings, refusal, and result of a comparison."""

from __future__ import annotations

import contextlib
import hashlib
import io
import linecache
import logging
import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_ir import IR, CaptureWarning
from torch_ir.capture import crosscheck

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
DIGITS = 16  # of a digest
LENGTH = 120  # of a warning or a reason not to record fast
LONG = 300  # of a refusal
_VERSION = re.compile(r'"pytorch_version": "[^"]*"')
_PLACE = re.compile(r"\b((?:tests|catalogue)/[\w/]+\.py):(\d+)")
_ADDRESS = re.compile(r"\b(0x[0-9a-f]{6,}|\d{12,})\b")
_log = logging.getLogger("torch_ir.capture")


@dataclass(frozen=True)
class Case:
    """A named capture; `result` compares the graph with eager, given the warnings of the capture."""

    name: str
    capture: Callable[[], IR]
    result: Callable[[IR, list[str]], str] | None = None
    is_forked: bool = False  # whether the model leaves something in the process that another capture can find


class Captured(NamedTuple):
    """The row of a case, and its graphs as normalised text: as captured, and with equal blocks folded."""

    row: Row
    texts: dict[str, str]


def captured(case: Case) -> Captured:
    """Capture a model with seeded random numbers, and describe the graph."""
    with surroundings(), _noted() as notes:
        try:
            ir = case.capture()
        except Exception as error:
            notes.pop("by", None)  # the last one that was tried
            return Captured({"refused": first_line(f"{type(error).__name__}: {error}", LONG), **notes}, {})
    texts = {"graph": normalised(ir)}
    row: Row = {"digest": digest(texts["graph"]), "nodes": sum(1 for _ in ir.all_nodes()), **notes}
    folded = ir.fold_blocks()
    if len(folded.nodes) < len(ir.nodes):
        texts["folded"] = normalised(folded)
        row["folded"] = digest(texts["folded"])
    if case.result:
        with surroundings():
            row["result"] = case.result(ir, notes.get("warnings", []))
    return Captured(row, texts)


def normalised(ir: IR) -> str:
    """Return the JSON of a graph without torch's version; a line of a test file is its text instead of its number."""
    text = _VERSION.sub('"pytorch_version": ""', ir.to_json())
    return _PLACE.sub(_line, text.partition(',\n"digest": ')[0] + "\n}")


def first_line(sentence: str, length: int = LENGTH) -> str:
    """Return the start of the first line of a text, without line numbers of test files and addresses."""
    return _ADDRESS.sub("0x", _PLACE.sub(r"\1", sentence.partition("\n")[0]))[:length]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _line(place: re.Match[str]) -> str:
    """Return a place as `file: text of the line`, so that an edit above the line changes nothing."""
    line = linecache.getline(str(ROOT / place[1]), int(place[2])).strip()
    return f"{place[1]}: {line}".replace("\\", "/").replace('"', "'")


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """Seed random numbers, and hide what the model prints and what torch warns of; restore everything afterwards."""
    states, threads = (random.getstate(), np.random.get_state()), torch.get_num_threads()
    torch.set_num_threads(1)
    with (
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            random.setstate(states[0])
            np.random.set_state(states[1])


@contextlib.contextmanager
def _noted() -> Iterator[Row]:
    """Note the strategy of the capture in the block, why it is not the fast one, and the warnings."""
    notes: Row = {}
    handler, level = logging.Handler(), _log.level
    handler.emit = lambda record: _note(record, notes)  # type: ignore[method-assign]
    original = crosscheck.record_fast

    def record_fast(*args: Any, **options: Any) -> IR:
        ir = original(*args, **options)
        notes["by"] = "fast recording"
        return ir

    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    crosscheck.record_fast = record_fast
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CaptureWarning)
            yield notes
    finally:
        crosscheck.record_fast = original
        _log.removeHandler(handler)
        _log.setLevel(level)
        if said := dict.fromkeys(first_line(str(each.message)) for each in caught if each.category is CaptureWarning):
            notes["warnings"] = list(said)


def _note(record: logging.LogRecord, notes: Row) -> None:
    if "step" in record.msg and isinstance(record.args, tuple):
        notes["by"] = record.args[1]
    if hasattr(record, "fallback"):
        notes["not fast"] = first_line(record.fallback)
    if hasattr(record, "runs_again"):
        notes["runs again"] = True
