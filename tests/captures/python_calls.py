"""The number of Python calls in a warm capture: a measure of its work that needs no clock."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.export import Dim

import catalogue
import torch_ir
from tests.architectures.sweep import select
from tests.captures.counted_models import Branches, StoresTensor
from tests.captures.rows import Captured, Case, Row, surroundings
from tests.proof import to_meta
from torch_ir import IR, extract_ir
from torch_ir.ir.graph.garbage_collection import uncollected

COUNTS = ("calls", "files", "functions")
TOLERANCE = 0.01  # of each count: searches of namespaces depend on what else is imported
_PACKAGE = str(Path(torch_ir.__file__).parent)


def models() -> list[Case]:
    """The models whose captures are counted; `capture` captures a new model, as often as it is called."""
    batch = {"dynamic_shapes": ({0: Dim.AUTO},)}
    entries = {"mlp": {}, "resnet18": {}, "lstm": {}, "mlp (dynamic batch)": batch}
    own: dict[str, type[nn.Module]] = {"stores a tensor": StoresTensor, "branches on data": Branches}
    return [
        *(
            Case(name, partial(_entry, name.partition(" ")[0], options), is_forked=True)
            for name, options in entries.items()
        ),
        *(Case(name, partial(_architecture, name), is_forked=True) for name in ("bert", "llama", "vit", "gpt2")),
        *(Case(name, partial(_own, kind), is_forked=True) for name, kind in own.items()),
    ]


def _entry(name: str, options: dict[str, Any]) -> Callable[[], IR]:
    entry = catalogue.find(name)
    return _capture(entry.build, entry.inputs(), **options)


def _architecture(name: str) -> Callable[[], IR]:
    (each,) = select([name])
    return _capture(each.build, (), kwargs=to_meta(each.inputs()))


def _own(kind: type[nn.Module]) -> Callable[[], IR]:
    return _capture(kind, (torch.empty(2, 4),))


def _capture(build: Callable[[], nn.Module], inputs: Any, **options: Any) -> Callable[[], IR]:
    with torch.device("meta"):
        model = build().eval()
    return partial(extract_ir, model, to_meta(inputs), **options)


def counted(case: Case) -> Captured:
    """Return the number of Python calls of the third capture, and of files and functions of torch_ir that it enters.

    In a thread, whose stack is empty: for each traceback, torch looks at every frame of the stack.
    """
    found: list[Row] = []
    thread = threading.Thread(target=lambda: found.append(_counted(case)))
    thread.start()
    thread.join()
    (row,) = found
    return Captured(row, {})


def _counted(case: Case) -> Row:
    with surroundings():
        capture = case.capture()
        for _ in range(2):
            capture()
        calls = _calls(capture)
    own = [code for code in calls if code.co_filename.startswith(_PACKAGE)]
    functions = [code for code in own if not code.co_name.startswith("<")]  # no lambdas, comprehensions, module bodies
    return {"calls": sum(calls.values()), "files": len({code.co_filename for code in own}), "functions": len(functions)}


def _calls(run: Callable[[], Any]) -> Counter[CodeType]:
    found: Counter[CodeType] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found[frame.f_code] += 1

    with uncollected():
        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            run()
        finally:
            sys.setprofile(before)
    return found
