"""A Python process that replies to requests: a line of JSON on its standard input, then one on its standard output."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from torch_ir.processes.program import python_command

_GRACE_SECONDS = 5.0  # for a server to exit after its input is closed


class LineServer:
    """A server process; it ends with this process, because its standard input is closed then."""

    def __init__(
        self, main: str, *arguments: str, environment: Mapping[str, str], own_session: bool = False, quiet: bool = False
    ) -> None:
        self.process = subprocess.Popen(
            python_command(main, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            env=environment,
            start_new_session=own_session,  # then Ctrl-C goes to this process only
        )

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, request: Any) -> dict[str, Any] | None:
        """Send a request and return the reply; None if the process exits without replying."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            reply = self.process.stdout.readline()
        except (OSError, ValueError):  # a broken pipe, or one that `end` closed
            reply = b""
        return json.loads(reply) if reply.endswith(b"\n") else None

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Let the process exit, or kill it after some seconds; close the pipes."""
        self.close_input()
        try:
            self.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        _close(self.process.stdout)

    def close_input(self) -> None:
        """Let the process exit, without waiting for it."""
        _close(self.process.stdin)


def _close(pipe: IO[bytes] | None) -> None:
    assert pipe is not None
    with suppress(OSError, RuntimeError):  # unsent data, or another thread is reading
        pipe.close()
