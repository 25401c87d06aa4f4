"""`torch-ir doctor`: what is installed here, whether it works, and the command that mends what does not."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_verb, print_json, terminal_width
from torch_ir.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator

    from torch_ir.cli.verb import Verbs

_EXAMPLES = """

draw onnx
--json
"""
_START = "import sys; sys.path[:] = sys.argv[2:]; from torch_ir.cli.verbs.doctor_checks import main; main(sys.argv[1])"
_PAUSE = 0.02  # seconds
_TOGETHER = 4  # children at once, at most
Finding = dict[str, str]


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "doctor", "try what is installed here, and say how to mend what fails", _EXAMPLES, run)
    parser.add_argument("names", metavar="NAME", nargs="*", help="check these alone, such as torch, draw or onnx")
    parser.add_argument(
        "--time", type=float, default=60, metavar="SECONDS", help="how long a check may take (default: 60)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.verbs.doctor_checks import CHECKUPS

    for name in arguments.names:
        if name not in CHECKUPS:
            hint = did_you_mean(name, CHECKUPS) or f"; there are: {', '.join(CHECKUPS)}"
            raise CommandError(f"there is no check {name!r}{hint}")
    found = list(_findings(arguments.names or CHECKUPS, arguments.time))
    works = all(finding["state"] == "ok" for finding in found if CHECKUPS[finding["name"]].is_core)
    if arguments.json:
        print_json({"ok": works, "checks": found})
    else:
        print(*_lines(found), sep="\n")
    return 0 if works else 1


def _findings(names: Iterable[str], seconds: float) -> Iterator[Finding]:
    """What each check says, in order; several run at once."""
    import os
    import time
    from concurrent.futures import ThreadPoolExecutor

    children: set[subprocess.Popen[str]] = set()
    with ThreadPoolExecutor(min(_TOGETHER, os.cpu_count() or 1)) as pool:
        running = [(name, pool.submit(_tried, name, seconds, children)) for name in names]
        try:
            for name, result in running:
                show_progress(f"checking {name}")
                yield result.result()
        except BaseException:  # Ctrl-C: what has not begun does not begin, and what has is ended
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(result.done() for _, result in running):
                for child in [*children]:
                    child.kill()
                time.sleep(_PAUSE)
            raise


def _tried(name: str, seconds: float, children: set[subprocess.Popen[str]]) -> Finding:
    """What a check says that runs in a process of its own, whatever becomes of that."""
    import json
    import signal
    import sys
    from subprocess import TimeoutExpired

    from torch_ir.cli.verbs.doctor_checks import CHECKUPS

    command = [sys.executable, "-c", _START, name, *sys.path]
    try:
        status, said, complaints = _ended(command, seconds, children)
        state, told = json.loads(said.strip().rpartition("\n")[2])
    except TimeoutExpired:
        state, told = "broken", f"no answer in {seconds:g} s"
    except (TypeError, ValueError):  # it ended before it could say anything, or said something else
        last = complaints.strip().rpartition("\n")[2]
        ended = signal.strsignal(-status) if status < 0 else f"status {status}"
        state, told = "broken", f"its process ended with {ended}{f': {last}' if last else ''}"
    return {"name": name, "state": state, "detail": told, "mend": "" if state == "ok" else CHECKUPS[name].mend}


def _ended(command: list[str], seconds: float, children: set[subprocess.Popen[str]]) -> tuple[int, str, str]:
    """The status, output and error output of a process, which is among the children until it ends."""
    from subprocess import DEVNULL, PIPE, Popen

    with Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, errors="replace") as child:
        children.add(child)
        try:
            said, complaints = child.communicate(timeout=seconds)
        finally:
            child.kill()
            children.discard(child)
        return child.returncode, said, complaints


def _lines(found: list[Finding]) -> Iterator[str]:
    from torch_ir.analysis.cost_model.text_table import aligned
    from torch_ir.errors import printable

    rows = [["check", "state", "found"]]
    rows += [[finding["name"], finding["state"], printable(finding["detail"])] for finding in found]
    yield from aligned(rows, left=(0, 1, 2), width=terminal_width(), long=2)
    mends = [f"  {finding['name']}: {finding['mend']}" for finding in found if finding["mend"]]
    if mends:
        yield from ("", "to mend:", *mends)
