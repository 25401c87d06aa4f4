"""Why a model could not be captured, in one sentence: where, what, and the usual remedy."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator

from torch_ir.capture.provenance import user_line

# exception class or words in its message -> what happened and what to do about it
_CAUSES = {
    "GuardOnDataDependentSymNode": "Python branches on a value that only the data decides; use torch.cond or "
    "torch.where there, or torch._check for sizes",
    "not a known type": "the model returns an object that torch cannot take apart; register it as a pytree node, or "
    "return tensors",
    "DynamicOutputShapeException": "the size of a result depends on the data in a way that torch cannot follow",
}
_CHATTY = (
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch._export.non_strict_utils",
    "torch.export",
)


def explain(error: BaseException) -> str:
    """Where the user's code was when capture failed, and why, in plain words where the cause is a known one."""
    trace = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    place = user_line(trace)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    told = _violated(lines) if lines[0].startswith("Constraints violated") else lines[0]
    known = [cause for sign, cause in _CAUSES.items() if sign == type(error).__name__ or sign in told]
    reason = f"{known[0]} ({told})" if known else told
    return f"{place}: {reason}" if place else reason


def _violated(lines: list[str]) -> str:
    """Which sizes cannot vary as asked, and what torch proposes instead."""
    reasons = [line.removeprefix("- ").partition(". If you")[0].rstrip(".") for line in lines if line.startswith("- ")]
    start = lines.index("Suggested fixes:") + 1 if "Suggested fixes:" in lines else len(lines)
    fixes = list(itertools.takewhile(lambda line: " = " in line, lines[start:]))
    proposed = f"; torch proposes {', '.join(fixes)}" if fixes else ""
    return f"a size cannot vary as asked: {'; '.join(reasons[:2]) or lines[0]}{proposed}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back what torch prints about its own internals; what a model prints is passed on when all went well."""
    held = io.StringIO()
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stderr(held):
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")
            warnings.filterwarnings("ignore", message=".*were assigned during export.*")
            yield
        sys.stderr.write(held.getvalue())
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
