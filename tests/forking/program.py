"""Client of the fork server that acts as the program: pass everything on, wait, exit with the same status.

Copied, with `FRESH` filled in: the command to run instead, where the server declines. It imports next to nothing: the
modules behind `signal` and `socket`, which take as long as the start of Python. Only the standard streams can
be passed on, so that a program with other open files is run directly.
"""

import _signal as signal
import _socket as socket
import os
import sys

FRESH: list[str] = []
_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Run this program in the server, or directly if the server says so or is gone."""
    inherited = [
        name for name in os.listdir("/proc/self/fd") if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}")
    ]
    server = socket.socket(socket.AF_UNIX)
    try:
        if inherited:
            raise OSError
        server.connect(os.path.join(os.path.dirname(sys.argv[0]), "socket"))
        words = [os.fsencode(word) for word in sys.argv]
        variables = [name + b"=" + value for name, value in os.environb.items()]
        ignored = b",".join(b"%d" % number for number in _PASSED_ON if signal.getsignal(number) == signal.SIG_IGN)
        request = b"\0".join([b"%d" % len(words), *words, os.fsencode(os.getcwd()), ignored, *variables])
        streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
        server.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        server.sendall(request)
        process = int(server.recv(20) or 0)
    except OSError:
        process = 0
    if not process:
        os.execv(FRESH[0], [*FRESH, *sys.argv[1:]])
    for number in _PASSED_ON:  # the program's own process decides what a signal does
        signal.signal(number, lambda number, _: os.kill(process, number))
    status = int(server.recv(20) or 1)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
