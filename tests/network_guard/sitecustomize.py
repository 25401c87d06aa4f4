"""Refuse every socket except those of the loopback interface, and log the requests.

Python imports this at its start where the folder is in PYTHONPATH, so also in the children of a guarded process.
"""

import ipaddress
import os
import sys
from typing import Any

_NAMED = {"socket.getaddrinfo": 0, "socket.gethostbyname": 0, "socket.gethostbyaddr": 0}
_ADDRESSED = {"socket.connect": 1, "socket.bind": 1, "socket.sendto": 1, "socket.sendmsg": 1}


def _is_loopback(host: object) -> bool:
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    try:
        return host == "localhost" or ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _NAMED:
        host = arguments[_NAMED[event]]
    elif event in _ADDRESSED and isinstance(arguments[_ADDRESSED[event]], tuple):  # those of a local socket are text
        host = arguments[_ADDRESSED[event]][0]
    else:
        return
    if not _is_loopback(host):
        with open(os.environ["NETWORK_GUARD"], "a", encoding="utf-8") as file:
            file.write(f"{event} {host!r} in {sys.argv[:2]}\n")
        raise OSError(f"the test allows no {event} of {host!r}")


if "NETWORK_GUARD" in os.environ:
    sys.addaudithook(_guard)
