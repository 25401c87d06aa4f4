"""The user's source line that torch.export notes for a call: the innermost frame of a `forward` outside torch."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from torch_ir.capture.program.provenance import is_users, user_line


class SourceLines:
    """The running line of a `forward` of the user's, up to the frame that runs `outermost`."""

    def __init__(self, outermost: CodeType) -> None:
        self._outermost = outermost
        self._is_users: dict[CodeType, bool] = {}
        self._known: dict[tuple[CodeType, int], str] = {}

    def here(self) -> str:
        """Return the line as `package/file.py:12`; empty if none runs."""
        frame = self._frame(sys._getframe(2))
        if frame is None:
            return ""
        place = (frame.f_code, frame.f_lineno)
        if place not in self._known:
            self._known[place] = user_line(_entry(frame))
        return self._known[place]

    def trace(self) -> str:
        """Return the line as an entry of a stack trace; empty if none runs."""
        frame = self._frame(sys._getframe(2))
        return "" if frame is None else _entry(frame)

    def _frame(self, frame: FrameType | None) -> FrameType | None:
        known = self._is_users
        while frame is not None:
            code = frame.f_code
            users = known.get(code)
            if users is None:
                users = known[code] = code.co_name == "forward" and is_users(code.co_filename)
            if users:
                return frame
            if code is self._outermost:
                return None
            frame = frame.f_back
        return None


def _entry(frame: FrameType) -> str:
    return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
