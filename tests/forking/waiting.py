"""Wait for the first program, and only then import torch and serve: a run that forks nothing pays nothing.

python -m tests.forking.waiting LISTENING_SOCKET
"""

from __future__ import annotations

import select
import signal
import sys


def main() -> None:
    """Become the fork server once somebody connects; end where standard input ends before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the server does
    ready, *_ = select.select([int(sys.argv[1]), sys.stdin], [], [])
    if sys.stdin not in ready:
        from tests.forking import server

        server.main()


if __name__ == "__main__":
    main()
