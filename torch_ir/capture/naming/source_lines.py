"""The source line that torch.export records for a call: the innermost frame of a user's `forward`."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from torch_ir.capture.program.provenance import is_users, user_line


class SourceLines:
    """Finds the running line of a user's `forward`, up to the frame that runs `outermost`."""

    def __init__(self, outermost: CodeType) -> None:
        self._outermost = outermost
        # identity of a code object (hashing its content is slow) -> line by instruction; None if it is not the user's
        self._lines: dict[int, dict[int, str] | None] = {}
        self._seen: list[CodeType] = []  # keeps the code objects alive, so that identities are not reused

    def here(self, depth: int = 1) -> str:
        """Return the line as `package/file.py:12`, empty if none runs; look from this many frames above the caller."""
        frame = self._frame(sys._getframe(depth + 1))
        if frame is None:
            return ""
        lines = self._lines[id(frame.f_code)]
        assert lines is not None  # the frame is the user's
        line = lines.get(frame.f_lasti)  # computing the line number is slower
        if line is None:
            line = lines[frame.f_lasti] = user_line(_entry(frame))
        return line

    def trace(self) -> str:
        """Return the line as an entry of a stack trace; empty if none runs."""
        frame = self._frame(sys._getframe(2))
        return "" if frame is None else _entry(frame)

    def _frame(self, frame: FrameType | None) -> FrameType | None:
        known, outermost = self._lines, self._outermost
        while frame is not None:
            code = frame.f_code
            try:
                lines = known[id(code)]
            except KeyError:
                is_line = code.co_name == "forward" and is_users(code.co_filename)
                lines = known[id(code)] = {} if is_line else None
                self._seen.append(code)
            if lines is not None:
                return frame
            if code is outermost:
                return None
            frame = frame.f_back
        return None


def _entry(frame: FrameType) -> str:
    return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
